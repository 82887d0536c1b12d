/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast record`: its options and words. */
#include "tools/record.h"

#include <errno.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/disk.h"
#include "tools/report.h"
#include "tools/view.h"

static const char usage[] =
    "usage: ringcast record RING FILE [--seconds S] [--frames N] [--bytes BYTES] [--lossless]\n"
    "                       [--buffer BYTES] [--format text|json]\n";

static const char help[] =
    "\n"
    "Writes the frames of a ring to a new file, from now on, until Ctrl-C, a limit, or the end of\n"
    "the ring's writer. RING is a name, NAME@PID, @PID or a handle; 'ringcast list' shows all.\n"
    "\n"
    "  --seconds S       end after so many seconds (default 0: no limit)\n"
    "  --frames N        end after so many frames (default 0: no limit)\n"
    "  --bytes BYTES     end with the frame that completes so many bytes, such as 10G (default 0:\n"
    "                    no limit)\n"
    "  --lossless        be an ordinary reader: the writer waits, and nothing is missing\n"
    "  --buffer BYTES    memory for what is not on the disk yet, 64K to 4G (default 64M)\n"
    "  --format FORMAT   of the summary at the end: text or json (default text)\n";

static volatile sig_atomic_t stop;

static void on_signal(int number) {
  (void)number;
  stop = 1;
}

/* A second signal ends the process, if the disk hangs. */
static void watch_signals(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, &action, NULL);
  signal(SIGXFSZ, SIG_IGN); /* a file that may not be longer is an error of the write */
}

/* ---- Words ----------------------------------------------------------------------------------- */

static void tell_start(void *context) {
  const struct record_options *options = context;
  cli_fail(CLI_OK, "recording %s to %s%s; Ctrl-C ends it", options->ring, options->file,
           options->lossless ? " as a reader, for which the writer waits" : "");
}

static void tell_end(const struct record_options *options, const struct record_result *result) {
  if (result->end == RECORD_RING_FAILED) cli_fail(CLI_FAILED, "%s: %s", options->ring, result->why);
  if (result->end == RECORD_DISK_FAILED)
    cli_fail(CLI_FAILED, "can't write %s: %s; 'ringcast dump' shows which frames it holds",
             options->file, result->why);
  if (result->sum.gaps > 0)
    cli_fail(
        CLI_OK,
        "%s went on without the recorder %llu time%s: %llu bytes of the ring are missing, each "
        "place is marked in the file; a larger ring, a larger --buffer, a faster disk or "
        "--lossless helps",
        options->ring, (unsigned long long)result->sum.gaps, result->sum.gaps == 1 ? "" : "s",
        (unsigned long long)result->gap_bytes);
}

static void print(const struct record_options *options, const struct record_result *result) {
  static const char *const ends[] = {[RECORD_STOPPED] = "stopped",
                                     [RECORD_ENOUGH] = "limit",
                                     [RECORD_WRITER_GONE] = "writer gone",
                                     [RECORD_RING_FAILED] = "ring failed"};
  struct report report = {.json = options->json};
  char digest[20];
  snprintf(digest, sizeof digest, "%016llx", (unsigned long long)result->sum.digest);
  report_open(&report, NULL, '{');
  report_string(&report, "file", options->file);
  report_integer(&report, "frames", (int64_t)result->sum.frames);
  report_integer(&report, "bytes", (int64_t)result->sum.bytes);
  report_integer(&report, "gaps", (int64_t)result->sum.gaps);
  report_integer(&report, "gap_bytes", (int64_t)result->gap_bytes);
  report_number(&report, "seconds", result->seconds);
  report_number(&report, "bytes_per_s", (double)result->sum.bytes / result->seconds);
  report_string(&report, "hash", digest);
  report_string(&report, "ended_by", ends[result->end]);
  report_close(&report);
}

/* ---- The command ----------------------------------------------------------------------------- */

static bool parse_buffer(const char *text, void *out) {
  uint64_t *bytes = out;
  return parse_bytes(text, bytes) && *bytes >= DISK_LEAST && *bytes <= DISK_MOST;
}

static int parse(int argc, char **argv, struct record_options *options) {
  static const struct cli_texts texts = {usage, help};
  const struct cli_option known[] = {
      {"seconds", parse_seconds, &options->seconds, PARSE_SECONDS, false},
      {"frames", parse_whole, &options->frames, PARSE_WHOLE, false},
      {"bytes", parse_bytes, &options->bytes, PARSE_BYTES, false},
      {"lossless", NULL, &options->lossless, NULL, false},
      {"buffer", parse_buffer, &options->buffer, "a number of bytes, 64K to 4G", false},
      {"format", parse_format, &options->json, PARSE_FORMAT, false},
  };
  const char *words[2];
  int status = cli_parse(argc, argv, &texts, known, sizeof known / sizeof *known, words, 2);
  if (status != CLI_GO_ON) return status;
  if (!words[1]) return cli_misused(usage, "say which ring to record, and the file to write");
  options->ring = words[0];
  options->file = words[1];
  return CLI_GO_ON;
}

int record_main(int argc, char **argv) {
  struct record_options options = {.buffer = RECORD_BUFFER, .stop = &stop};
  struct record_result result;
  char handle[RINGCAST_HANDLE_BYTES];
  int status = parse(argc, argv, &options);
  if (status == CLI_GO_ON) status = view_find(options.ring, handle);
  if (status != CLI_GO_ON) return status;
  watch_signals();
  int failed = record_run(&options, handle, tell_start, &options, &result);
  if (failed != 0) {
    bool of_ring = result.end == RECORD_RING_FAILED;
    cli_fail(CLI_FAILED, "%s%s%s", of_ring ? options.ring : "", of_ring ? ": " : "", result.why);
    return of_ring && failed == -ENOENT ? CLI_NO_RING : CLI_FAILED;
  }
  tell_end(&options, &result);
  if (result.end == RECORD_DISK_FAILED) return CLI_FAILED; /* what is in the file is not known */
  print(&options, &result);
  return cli_finish(stdout, result.end == RECORD_RING_FAILED ? CLI_FAILED : CLI_OK);
}
