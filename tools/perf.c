/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast perf`: its options. tools/measure/ has the measurements. */
#include <string.h>

#include "tools/cli.h"
#include "tools/measure/perf.h"

static const char help[] =
    "usage: ringcast perf latency|throughput|wake [OPTION]...\n"
    "       ringcast perf cadence [--gap MS] [OPTION]...\n"
    "       ringcast perf gpu [--sizes A,B,...] [OPTION]...\n"
    "\n"
    "How fast a ring is on this machine, beside the hardware's own limit, which is measured in\n"
    "the same run.\n"
    "\n"
    "  latency      one way from process to process, while both sides spin\n"
    "  throughput   one process copies into each frame, and another reads every byte in place\n"
    "  wake         how long a sleeping reader takes to run\n"
    "  cadence      one message every --gap milliseconds: the commit, the wake-up, CPU time\n"
    "  gpu          a tensor of a GPU to other processes on the same GPU\n"
    "\n"
    "  --size BYTES       of a frame, at least 8, such as 64K (default 40; throughput: 64K)\n"
    "  --sizes A,B,...    of a tensor, for gpu: up to 32 (default 1K to 256M, by powers of 4)\n"
    "  --readers N        1 to 256 (default 1)\n"
    "  --seconds S        how long to measure (default 2; gpu, for each size: 1)\n"
    "  --gap MS           cadence: milliseconds between two sends, 0.01 to 60000 (default 10)\n"
    "  --capacity BYTES   of the ring (default 0: the library's own default)\n"
    "  --format FORMAT    text or json (default text)\n";

struct measurement {
  const char *name;
  int (*run)(const struct perf_options *options);
  size_t size;
  double seconds;
};

static const struct measurement measurements[] = {
    {"latency", perf_latency, 40, 2}, {"throughput", perf_throughput, 65536, 2},
    {"wake", perf_wake, 40, 2},       {"cadence", perf_cadence, 40, 2},
    {"gpu", perf_gpu, 40, 1},
};

static const struct measurement *find(const char *name) {
  for (size_t i = 0; i < sizeof measurements / sizeof *measurements; i++)
    if (strcmp(name, measurements[i].name) == 0) return &measurements[i];
  return NULL;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static bool parse_size(const char *text, void *out) {
  return parse_bytes(text, out) && *(uint64_t *)out > 0;
}

/* "1K,4K": none is 0. */
static bool parse_sizes(const char *text, void *out) {
  struct perf_options *options = out;
  char one[32];
  for (options->size_count = 0;; text++) {
    size_t length = strcspn(text, ",");
    if (length >= sizeof one || options->size_count == PERF_MAX_SIZES) return false;
    memcpy(one, text, length);
    one[length] = '\0';
    uint64_t *size = &options->sizes[options->size_count++];
    if (!parse_size(one, size) || *size > SIZE_MAX / 8) return false;
    text += length;
    if (*text == '\0') return true;
  }
}

static bool parse_readers(const char *text, void *out) {
  uint64_t value;
  if (!parse_whole(text, &value) || value < 1 || value > PERF_MAX_READERS) return false;
  *(uint32_t *)out = (uint32_t)value;
  return true;
}

static bool parse_duration(const char *text, void *out) {
  return parse_number(text, 0.001, 86400, out);
}
static bool parse_gap(const char *text, void *out) { return parse_number(text, 0.01, 60000, out); }

/* ---- The command ----------------------------------------------------------------------------- */

/* Defaults that depend on other options, and options that exclude each other. */
static int settle(const struct measurement *measurement, struct perf_options *options) {
  bool gpu = measurement->run == perf_gpu, cadence = measurement->run == perf_cadence;
  if (gpu && options->size != measurement->size)
    return cli_misused(help, "gpu takes --sizes, and no --size");
  if (!cadence && options->gap_ms >= 0)
    return cli_misused(help, "--gap is for cadence; %s sends without gaps", options->name);
  if (!gpu && options->size_count > 0)
    return cli_misused(help, "--sizes is for gpu; %s takes --size", options->name);
  if (options->size < 8)
    return cli_misused(help, "--size is at least 8: a frame carries a number that is checked");
  if (options->size > SIZE_MAX / 8)
    return cli_misused(help, "--size is at most %zu: no machine has room for more", SIZE_MAX / 8);
  if (options->gap_ms < 0) options->gap_ms = 10;
  if (gpu && options->size_count == 0)
    for (uint64_t size = 1024; size <= 256 << 20; size *= 4)
      options->sizes[options->size_count++] = size;
  return CLI_GO_ON;
}

int perf_main(int argc, char **argv) {
  struct perf_options options = {.readers = 1, .gap_ms = -1};
  const struct cli_option known[] = {
      {"size", parse_size, &options.size, "a number of bytes, at least 8, such as 40, 64K or 1M",
       false},
      {"readers", parse_readers, &options.readers, "a whole number, 1 to 256", false},
      {"seconds", parse_duration, &options.seconds, "a number of seconds, 0.001 to 86400", false},
      {"capacity", parse_bytes, &options.capacity,
       "a number of bytes, such as 64K or 1M; 0: the library's own default", false},
      {"format", parse_format, &options.json, PARSE_FORMAT, false},
      {"sizes", parse_sizes, &options,
       "up to 32 numbers of bytes with commas between them, such as 4K,1M", false},
      {"gap", parse_gap, &options.gap_ms, "a number of milliseconds, 0.01 to 60000", false}};
  const struct measurement *measurement = argc > 1 ? find(argv[1]) : NULL;
  const char *words[1];
  if (measurement) {
    options.name = measurement->name;
    options.size = measurement->size;
    options.seconds = measurement->seconds;
    argc--;
    argv++;
  }
  int most = measurement ? 0 : 1;
  int result = cli_parse(argc, argv, help, known, sizeof known / sizeof *known, words, most);
  if (result != CLI_GO_ON) return result;
  if (!measurement && words[0]) return cli_misused(help, "there is no measurement '%s'", words[0]);
  if (!measurement) return cli_misused(help, "say what to measure, such as latency");
  result = settle(measurement, &options);
  if (result != CLI_GO_ON) return result;
  perf_find_cpus(&options);
  perf_watch_children();
  return cli_finish(stdout, measurement->run(&options));
}
