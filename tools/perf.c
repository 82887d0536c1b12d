/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast perf`: its options. */
#include <ctype.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/parse.h"
#include "tools/perf.h"

static const char usage[] =
    "usage: ringcast perf latency|throughput|wake|scale|cadence [--size BYTES] [--readers N] [--seconds S]\n"
    "                     [--capacity BYTES] [--format text|json]\n"
    "                     latency: [--cold[=BYTES]]; cadence: [--gap MS] [--jitter F] [--cold[=BYTES]]\n"
    "       ringcast perf gpu [--sizes A,B,...] [--readers N] [--seconds S] [--capacity BYTES] [--format text|json]\n"
    "       ringcast perf record [--file FILE] [--bytes BYTES] [--size BYTES] [--seconds S] [--capacity BYTES]\n"
    "                     [--format text|json]\n";

static const char help[] =
    "\n"
    "How fast a ring is on this machine, beside the hardware's own limit, which is measured in the same run. Of the\n"
    "CPUs that the command may use (taskset) the writer gets the first and the readers the last ones; if there are "
    "too\n"
    "few, no process is pinned.\n"
    "\n"
    "MEASUREMENTS\n"
    "  latency      one way from process to process: half a round trip over two rings, while both sides spin\n"
    "               floor_ns: the bare ping-pong, a cache line each way; line_ns: one line that both write in turn;\n"
    "               ratio, ratio_line: the ring's time by each; below 1, if the bare loop's looks delay the stores\n"
    "  throughput   one process copies into each frame, and another reads every byte in place\n"
    "               memcpy: the same copying and reading in the same kind of memory, with two counters for a ring\n"
    "  wake         how long a sleeping reader takes to run: from just before the send, with a message every 0.5 ms\n"
    "               and readers that never spin; futex: the same with a bare futex; and the CPU time of a reader\n"
    "               while no message comes\n"
    "  scale        the writer's time per frame, for each number of readers from 1 on (its CPU time, where there are\n"
    "               more processes than CPUs)\n"
    "  cadence      one message every --gap milliseconds, with the default waiting: the time of the commit, the time\n"
    "               from just before the commit until a reader runs (wake_us; slowest_us: the last reader of each\n"
    "               message), and a reader's CPU time; beside them the same with a bare futex, and with readers that\n"
    "               spin without end. system_calls_per_message: the sleeps and wakes that a reader's own statistics\n"
    "               count (ringcast_reader_stats); one sleep can be more than one system call. The power of the\n"
    "               CPUs, in watts, where RAPL can be read (/sys/class/powercap)\n"
    "  gpu          a tensor of a GPU to other processes on the same GPU, by the device pool (POOL) and through the\n"
    "               ring (INLINE): the CPU's time, the time until all readers have the tensor (completion_us), the\n"
    "               rate of several in a row; beside them a plain copy of the same bytes within the device, and a\n"
    "               copy from the host to the device; and each of POOL's two copies alone, beside the plain copy\n"
    "  record       what 'ringcast record' writes, beside the disk's own rate by the same means, and the latency of a\n"
    "               writer and its reader with a recorder and without, in turns (64K and 256 bytes every 2 ms)\n"
    "\n"
    "OPTIONS\n"
    "  --size BYTES       of a frame, at least 8; K, M and G are understood (default 40; throughput: 64K;\n"
    "                     record: 1M)\n"
    "  --sizes A,B,...    of a tensor, for gpu: up to 32 (default 1K to 256M, by powers of 4)\n"
    "  --readers N        1 to 256 (default 1; scale: the most readers, by default one per CPU but the writer's,\n"
    "                     at most 14)\n"
    "  --seconds S        how long to measure (default 2; wake: and twice as long with nothing sent; cadence: for\n"
    "                     each of the three ways; scale: for each number of readers, default 1; gpu: for each size,\n"
    "                     default 1; record: for each size of message, default 12)\n"
    "  --file FILE        record: a file that does not exist yet; it is removed (default ringcast-perf.rcrec)\n"
    "  --bytes BYTES      record: how much the disk and then the recorder writes, at least 256M (default 4G)\n"
    "  --gap MS           cadence: from one send to the next, 0.01 to 60000 milliseconds (default 10)\n"
    "  --jitter F         cadence: by which part of itself each gap varies at most, 0 to 1 (default 0.02)\n"
    "  --cold[=BYTES]     latency, cadence: between two messages each process walks over a block of memory (default\n"
    "                     twice the L3 cache), so that the message meets cold caches. cadence: the gap must be twice\n"
    "                     as long as the walk, or longer; latency: --seconds of such trips follow the usual ones\n"
    "  --capacity BYTES   of the ring (default 0: the library's own default)\n"
    "  --format FORMAT    text or json (default text)\n"
    "  --help             this text\n"
    "\n"
    "EXIT STATUS\n"
    "  0 well; 1 failed; 2 wrong command line; 128 and the signal's number if interrupted\n"
    "\n"
    "EXAMPLES\n"
    "  ringcast perf latency\n"
    "  taskset -c 0,8 ringcast perf latency --size 1K\n"
    "  ringcast perf throughput --size 40 --seconds 5\n"
    "  ringcast perf wake --readers 8 --format json\n"
    "  ringcast perf scale --readers 14\n"
    "  ringcast perf cadence --gap 5 --readers 4\n"
    "  ringcast perf gpu --sizes 64K,16M --readers 2\n"
    "  ringcast perf record --bytes 10G\n";

struct measurement {
  const char *name;
  int (*run)(const struct perf_options *options);
  size_t size;
  double seconds;
};

static const struct measurement measurements[] = {
    {"latency", perf_latency, 40, 2},     {"throughput", perf_throughput, 65536, 2}, {"wake", perf_wake, 40, 2},
    {"scale", perf_scale, 40, 1},         {"cadence", perf_cadence, 40, 2},          {"gpu", perf_gpu, 40, 1},
    {"record", perf_record, 1 << 20, 12},
};

static const struct measurement *find(const char *name) {
  for (size_t i = 0; i < sizeof measurements / sizeof *measurements; i++)
    if (strcmp(name, measurements[i].name) == 0) return &measurements[i];
  return NULL;
}

/* "1K,4K": none is 0. */
static bool parse_sizes(const char *text, struct perf_options *options) {
  char one[32];
  for (options->size_count = 0;; text++) {
    size_t length = strcspn(text, ",");
    if (length >= sizeof one || options->size_count == PERF_MAX_SIZES) return false;
    memcpy(one, text, length);
    one[length] = '\0';
    uint64_t *size = &options->sizes[options->size_count++];
    if (!parse_bytes(one, size) || *size == 0 || *size > SIZE_MAX / 8) return false;
    text += length;
    if (*text == '\0') return true;
  }
}

static bool parse_readers(const char *text, uint32_t *out) {
  char *end;
  unsigned long value = strtoul(text, &end, 10);
  if (!isdigit((unsigned char)*text) || *end || value < 1 || value > PERF_MAX_READERS) return false;
  *out = (uint32_t)value;
  return true;
}

/* Defaults that depend on other options, and options that exclude each other. 0, or CLI_USAGE. */
static int settle(const struct measurement *measurement, struct perf_options *options) {
  bool scale = measurement->run == perf_scale, gpu = measurement->run == perf_gpu;
  uint32_t others = options->cpu_count > 1 ? (uint32_t)options->cpu_count - 1 : 1;
  if (options->readers == 0) options->readers = !scale ? 1 : others < 14 ? others : 14;
  if (gpu && options->size != measurement->size) return cli_misused(usage, "gpu takes --sizes, and no --size");
  if (measurement->run != perf_cadence && (options->gap_ms >= 0 || options->jitter >= 0))
    return cli_misused(usage, "--gap and --jitter are for cadence; %s sends without gaps", options->name);
  if (options->cold && measurement->run != perf_cadence && measurement->run != perf_latency)
    return cli_misused(usage, "--cold is for latency and cadence, not for %s", options->name);
  if (measurement->run != perf_record && (options->file || options->bytes > 0))
    return cli_misused(usage, "--file and --bytes are for record; %s writes no file", options->name);
  if (options->bytes == 0) options->bytes = UINT64_C(4) << 30;
  if (options->gap_ms < 0) options->gap_ms = 10;
  if (options->jitter < 0) options->jitter = 0.02;
  if (!gpu && options->size_count > 0) return cli_misused(usage, "--sizes is for gpu; %s takes --size", options->name);
  if (gpu && options->size_count == 0)
    for (uint64_t size = 1024; size <= 256 << 20; size *= 4) options->sizes[options->size_count++] = size;
  if (options->size < 8) return cli_misused(usage, "--size is at least 8: a frame carries a number that is checked");
  if (options->size > SIZE_MAX / 8)
    return cli_misused(usage, "--size is at most %zu: no machine has room for more", SIZE_MAX / 8);
  return 0;
}

static int parse(int argc, char **argv, struct perf_options *options) {
  enum { SIZE = 1, READERS, SECONDS, CAPACITY, FORMAT, SIZES, GAP, JITTER, COLD, FILE_, BYTES, HELP };
  static const struct option known[] = {{"size", 1, NULL, SIZE},
                                        {"readers", 1, NULL, READERS},
                                        {"seconds", 1, NULL, SECONDS},
                                        {"capacity", 1, NULL, CAPACITY},
                                        {"format", 1, NULL, FORMAT},
                                        {"sizes", 1, NULL, SIZES},
                                        {"gap", 1, NULL, GAP},
                                        {"jitter", 1, NULL, JITTER},
                                        {"cold", 2, NULL, COLD},
                                        {"file", 1, NULL, FILE_},
                                        {"bytes", 1, NULL, BYTES},
                                        {"help", 0, NULL, HELP},
                                        {0}};
  static const char *const takes[] = {[SIZE] = "a number of bytes, at least 8, such as 40, 64K or 1M",
                                      [READERS] = "a whole number, 1 to 256",
                                      [SECONDS] = "a number of seconds, 0.001 to 86400",
                                      [CAPACITY] = "a number of bytes, such as 64K or 1M; 0: the library's own default",
                                      [FORMAT] = CLI_FORMATS,
                                      [SIZES] = "up to 32 numbers of bytes with commas between them, such as 4K,1M",
                                      [GAP] = "a number of milliseconds, 0.01 to 60000",
                                      [JITTER] = "a number, 0 to 1",
                                      [COLD] = "nothing, or =BYTES, at least 64",
                                      [BYTES] = "a number of bytes, at least 256M"};
  uint64_t size = options->size;
  bool good = true;
  int option;
  opterr = 0;
  while ((option = getopt_long(argc, argv, ":", known, NULL)) >= 0) {
    switch (option) {
    case SIZE: good = parse_bytes(optarg, &size) && size > 0; break;
    case READERS: good = parse_readers(optarg, &options->readers); break;
    case SECONDS: good = parse_number(optarg, 0.001, 86400, &options->seconds); break;
    case CAPACITY: good = parse_bytes(optarg, &options->capacity); break;
    case FORMAT: good = cli_format(optarg, &options->json); break;
    case SIZES: good = parse_sizes(optarg, options); break;
    case GAP: good = parse_number(optarg, 0.01, 60000, &options->gap_ms); break;
    case JITTER: good = parse_number(optarg, 0, 1, &options->jitter); break;
    case COLD:
      options->cold = true;
      good = !optarg || (parse_bytes(optarg, &options->cold_bytes) && options->cold_bytes >= 64);
      break;
    case FILE_: options->file = optarg; break;
    case BYTES: good = parse_bytes(optarg, &options->bytes) && options->bytes >= PERF_LEAST_RECORDED; break;
    case ':': return cli_misused(usage, "%s needs a value", argv[optind - 1]);
    default: return cli_misused(usage, "there is no option '%s'", argv[optind - 1]);
    }
    if (!good)
      return cli_misused(usage, "'%s' is not valid for --%s: it takes %s", optarg, known[option - 1].name,
                         takes[option]);
  }
  if (optind < argc) return cli_misused(usage, "unexpected argument '%s'", argv[optind]);
  options->size = size;
  perf_find_cpus(options);
  return 0;
}

static bool asks_help(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
  return false;
}

int perf_main(int argc, char **argv) {
  if (asks_help(argc, argv)) {
    printf("%s%s", usage, help);
    return cli_finish(stdout, CLI_OK);
  }
  if (argc < 2 || argv[1][0] == '-') return cli_misused(usage, "say what to measure, such as latency");
  const struct measurement *measurement = find(argv[1]);
  if (!measurement) return cli_misused(usage, "there is no measurement '%s'", argv[1]);
  struct perf_options options = {.name = measurement->name,
                                 .size = measurement->size,
                                 .seconds = measurement->seconds,
                                 .gap_ms = -1,
                                 .jitter = -1};
  int result = parse(argc - 1, argv + 1, &options);
  if (result == 0) result = settle(measurement, &options);
  if (result != 0) return result;
  perf_watch_children();
  return cli_finish(stdout, measurement->run(&options));
}
