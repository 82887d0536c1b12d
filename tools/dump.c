/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast dump`: what is in a recording, or what a ring carries now. */
#define _GNU_SOURCE
#include "tools/dump.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>

#include "tools/cli.h"
#include "tools/recording.h"
#include "tools/text.h"
#include "tools/view.h"

static const char help[] =
    "usage: ringcast dump FILE|RING [--frames N] [--data] [--format text|json]\n"
    "\n"
    "Shows the frames of a recording, or of a ring from now on. A word that is the name of a file\n"
    "is one; else RING is a name, NAME@PID, @PID or a handle; 'ringcast list' shows all.\n"
    "\n"
    "  --frames N        end after so many frames (default 0: no limit)\n"
    "  --data            the payload too, in hexadecimal\n"
    "  --format FORMAT   text, or json: an object a line (default text)\n";

static const uint64_t LARGEST = 1 << 30; /* bytes of a payload that is looked into */
static const int64_t SLICE = 100000000;  /* nanoseconds */

struct dump {
  const char *what;
  uint64_t frames, shown;
  bool data, json;
  int64_t first; /* time of the first frame; INT64_MIN: none yet */
  uint8_t *memory;
  uint64_t room;
};

/* ---- Lines ----------------------------------------------------------------------------------- */

static double seconds_of(struct dump *dump, int64_t time) {
  if (dump->first == INT64_MIN) dump->first = time;
  return ((double)time - (double)dump->first) / 1e9;
}

static const char *kind_name(uint16_t kind, char out[16]) {
  if (kind == RINGCAST_KIND_BYTES) return "bytes";
  if (kind == RINGCAST_KIND_TENSORS) return "tensors";
  snprintf(out, 16, "kind %u", kind);
  return out;
}

static void print_data(const uint8_t *data, uint64_t bytes, bool json) {
  if (json) fputs(", \"data\": \"", stdout);
  for (uint64_t i = 0; i < bytes && !cli_stop; i++) {
    if (!json && i % 32 == 0) printf("\n  %08" PRIx64 " ", i);
    printf(!json && i % 4 == 0 ? " %02x" : "%02x", data[i]);
  }
  if (json) putchar('"');
}

/* `data` NULL: too large to be looked into. */
static void print_frame(struct dump *dump, const struct recording_record *frame,
                        const uint8_t *data) {
  char kind[16];
  const char *name = kind_name(frame->kind, kind);
  double seconds = seconds_of(dump, frame->time);
  if (dump->json)
    printf("{\"type\": \"frame\", \"time\": %.9f, \"position\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"kind\": \"%s\"",
           seconds, frame->position, frame->bytes, name);
  else
    printf("%14.6f %16" PRIu64 " %12" PRIu64 "  %s", seconds, frame->position, frame->bytes, name);
  if (data && frame->kind == RINGCAST_KIND_TENSORS)
    dump_tensors(data, (size_t)frame->bytes, dump->json);
  if (!data && (dump->data || frame->kind == RINGCAST_KIND_TENSORS))
    fputs(dump->json ? ", \"error\": \"too large to be looked into\""
                     : "  (too large to be looked into)",
          stdout);
  if (data && dump->data) print_data(data, frame->bytes, dump->json);
  puts(dump->json ? "}" : "");
  dump->shown++;
}

static void print_head(const struct dump *dump, const struct recording_header *header) {
  char wall[64] = "at an unknown time";
  time_t second = (time_t)(header->wall_ns / 1000000000);
  struct tm parts;
  if (gmtime_r(&second, &parts)) strftime(wall, sizeof wall, "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (dump->json) {
    fputs("{\"type\": \"recording\", \"file\": ", stdout);
    text_json(dump->what, strlen(dump->what), stdout);
    printf(", \"ring\": \"%s\", \"writer_pid\": %d, \"capacity\": %" PRIu64
           ", \"begun\": \"%s\", \"version\": %u, \"ringcast\": \"%s\"}\n",
           header->name, header->writer_pid, header->capacity, wall, header->version,
           header->ringcast);
    return;
  }
  printf("recording of the ring %s, writer's pid %d, begun %s by ringcast %s\n",
         *header->name ? header->name : "(no name)", header->writer_pid, wall, header->ringcast);
  printf("%14s %16s %12s  %s\n", "seconds", "position", "bytes", "kind");
}

static void print_gap(struct dump *dump, const struct recording_gap *gap) {
  double seconds = seconds_of(dump, gap->began),
         length = ((double)gap->ended - (double)gap->began) / 1e9;
  bool known = gap->to != RECORDING_UNKNOWN && gap->to >= gap->from;
  const char *why = "the writer was faster";
  if (dump->json) {
    printf("{\"type\": \"gap\", \"time\": %.9f, \"seconds\": %.9f, \"from\": %" PRIu64, seconds,
           length, gap->from);
    if (known) printf(", \"to\": %" PRIu64 ", \"bytes\": %" PRIu64, gap->to, gap->to - gap->from);
    else fputs(", \"to\": null, \"bytes\": null", stdout);
    printf(", \"reason\": \"%s\"}\n", why);
    return;
  }
  printf("%14.6f %16" PRIu64 " gap of %.6f s: %s and missed ", seconds, gap->from, length, why);
  if (known) printf("%" PRIu64 " bytes of the ring\n", gap->to - gap->from);
  else puts("the rest");
}

static void print_stretch(const struct dump *dump, enum recording_found found,
                          const struct recording_item *item) {
  static const char *const types[] = {[RECORDING_FOUND_DAMAGE] = "damage",
                                      [RECORDING_FOUND_TORN] = "torn",
                                      [RECORDING_FOUND_UNWRITTEN] = "unwritten"};
  static const char *const words[] = {
      [RECORDING_FOUND_DAMAGE] = "are damaged",
      [RECORDING_FOUND_TORN] = "at the end are torn and cut off: the recorder did not end it",
      [RECORDING_FOUND_UNWRITTEN] = "were not written: the recorder died first, or is still busy"};
  bool known = item->missing != RECORDING_UNKNOWN;
  if (dump->json) {
    printf("{\"type\": \"%s\", \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"frames\": ",
           types[found], item->offset, item->bytes);
    if (known) printf("%" PRIu64 "}\n", item->missing);
    else puts("null}");
    return;
  }
  printf("%14s %" PRIu64 " bytes from byte %" PRIu64 " of the file on %s", "", item->bytes,
         item->offset, words[found]);
  if (known)
    printf("; %" PRIu64 " frame%s missing", item->missing, item->missing == 1 ? " is" : "s are");
  puts("");
}

/* ---- A file ---------------------------------------------------------------------------------- */

static void print_facts(const struct dump *dump, const struct recording_facts *facts) {
  const struct recording_sum *sum = &facts->sum;
  const char *ended = "not ended";
  if (facts->is_ended) ended = "ended well";
  if (facts->is_live) ended = "recorder still writing";
  if (dump->json) {
    printf("{\"type\": \"summary\", \"frames\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"gaps\": %" PRIu64 ", \"gap_bytes\": %" PRIu64 ", \"damages\": %" PRIu64
           ", \"damaged_bytes\": %" PRIu64 ", \"missing_frames\": %" PRIu64
           ", \"torn_bytes\": %" PRIu64 ", \"unwritten_bytes\": %" PRIu64,
           sum->frames, sum->bytes, sum->gaps, facts->gap_bytes, facts->damages,
           facts->damaged_bytes, facts->missing, facts->torn_bytes, facts->unwritten_bytes);
    printf(", \"hash\": \"%016" PRIx64 "\", \"state\": \"%s\"}\n", sum->digest, ended);
    return;
  }
  printf("%" PRIu64 " frames, %" PRIu64 " bytes, hash %016" PRIx64 ", %s", sum->frames, sum->bytes,
         sum->digest, ended);
  if (sum->gaps > 0)
    printf(", %" PRIu64 " gaps (%" PRIu64 " bytes of the ring)", sum->gaps, facts->gap_bytes);
  if (facts->damages > 0) printf(", %" PRIu64 " damaged places", facts->damages);
  if (facts->missing > 0) printf(", %" PRIu64 " frames missing", facts->missing);
  if (facts->torn_bytes > 0) printf(", a torn end of %" PRIu64 " bytes", facts->torn_bytes);
  puts("");
}

/* Memory for a payload; NULL if it is not looked into. */
static uint8_t *room_for(struct dump *dump, const struct recording_record *frame) {
  if ((frame->kind != RINGCAST_KIND_TENSORS && !dump->data) || frame->bytes > LARGEST) return NULL;
  if (dump->room > frame->bytes) return dump->memory;
  uint8_t *memory = realloc(dump->memory, (size_t)frame->bytes + 1);
  if (!memory) return NULL;
  dump->memory = memory;
  dump->room = frame->bytes + 1;
  return memory;
}

static int dump_recorded(struct dump *dump, struct recording *recording,
                         const struct recording_record *frame) {
  uint8_t *data = room_for(dump, frame);
  int result;
  if (data) result = recording_load(recording, data);
  else result = recording_check(recording);
  if (result < 0) return result;
  if (result == 0) print_frame(dump, frame, data);
  return 0;
}

/* -EAGAIN: the end. */
static int dump_next(struct dump *dump, struct recording *recording) {
  struct recording_item item;
  int found = recording_next(recording, &item);
  switch (found) {
  case RECORDING_FOUND_FRAME: return dump_recorded(dump, recording, &item.record);
  case RECORDING_FOUND_GAP: print_gap(dump, &item.gap); return 0;
  case RECORDING_FOUND_DAMAGE:
  case RECORDING_FOUND_UNWRITTEN:
  case RECORDING_FOUND_TORN: print_stretch(dump, (enum recording_found)found, &item); return 0;
  case RECORDING_FOUND_END: return -EAGAIN;
  default: return found;
  }
}

static int dump_file(struct dump *dump) {
  struct recording *recording;
  char why[256];
  int result = recording_open(dump->what, &cli_stop, &recording, why);
  if (result != 0) return cli_fail(cli_status(result), "%s", why);
  print_head(dump, recording_header_of(recording));
  while (result == 0 && !cli_stop && (dump->frames == 0 || dump->shown < dump->frames))
    result = dump_next(dump, recording);
  const struct recording_facts *facts = recording_facts_of(recording);
  print_facts(dump, facts);
  bool read = result == 0 || result == -EAGAIN || result == -ECANCELED,
       good = read && facts->damages == 0;
  if (!read) cli_fail(CLI_FAILED, "can't read %s: %s", dump->what, strerror(-result));
  recording_close(recording);
  return good ? CLI_OK : CLI_FAILED;
}

/* ---- A ring ---------------------------------------------------------------------------------- */

static void print_lost(const struct dump *dump, const ringcast_tap *tap, uint64_t *told) {
  uint64_t bytes, gaps;
  if (ringcast_tap_lost(tap, &bytes, &gaps) != 0 || bytes == *told) return;
  if (dump->json) printf("{\"type\": \"lost\", \"bytes\": %" PRIu64 "}\n", bytes - *told);
  else
    printf("%14s %" PRIu64 " bytes of the ring were lost: the writer was faster than this dump\n",
           "", bytes - *told);
  *told = bytes;
}

/* What each wait gives. -EAGAIN: the end. */
static int dump_tapped(struct dump *dump, ringcast_tap *tap, uint64_t *lost) {
  struct ringcast_frame frame;
  int result = ringcast_tap_next(tap, SLICE, &frame);
  print_lost(dump, tap, lost);
  if (result == -ETIMEDOUT || result == -EINTR) return fflush(stdout), 0;
  if (result == -EPIPE) return -EAGAIN;
  if (result != 0) return result;
  const struct recording_record record = {
      .kind = frame.kind, .bytes = frame.bytes, .position = frame.position, .time = cli_now_ns()};
  print_frame(dump, &record, frame.data);
  return 0;
}

static int dump_ring(struct dump *dump) {
  char handle[RINGCAST_HANDLE_BYTES];
  ringcast_tap *tap;
  uint64_t lost = 0;
  int status = view_find(dump->what, handle);
  if (status != CLI_GO_ON) return status;
  int result = ringcast_tap_attach(handle, &tap);
  if (result != 0) return cli_fail(cli_status(result), "%s: %s", dump->what, ringcast_last_error());
  if (!dump->json) printf("%14s %16s %12s  %s\n", "seconds", "position", "bytes", "kind");
  fflush(stdout);
  while (result == 0 && !cli_stop && (dump->frames == 0 || dump->shown < dump->frames))
    result = dump_tapped(dump, tap, &lost);
  if (result < 0 && result != -EAGAIN)
    cli_fail(CLI_FAILED, "%s: %s", dump->what, ringcast_last_error());
  if (dump->json)
    printf("{\"type\": \"summary\", \"frames\": %" PRIu64 ", \"lost_bytes\": %" PRIu64 "}\n",
           dump->shown, lost);
  else printf("%" PRIu64 " frames, %" PRIu64 " bytes of the ring lost\n", dump->shown, lost);
  ringcast_tap_close(tap);
  if (result == -EAGAIN && dump->frames > 0) return CLI_GONE;
  if (result == 0 || result == -EAGAIN) return CLI_OK;
  return CLI_FAILED;
}

/* ---- The command ----------------------------------------------------------------------------- */

static int parse(int argc, char **argv, struct dump *dump) {
  const struct cli_option known[] = {
      {"frames", parse_whole, &dump->frames, PARSE_WHOLE, false},
      {"data", NULL, &dump->data, NULL, false},
      {"format", parse_format, &dump->json, PARSE_FORMAT, false},
  };
  int status = cli_parse(argc, argv, help, known, sizeof known / sizeof *known, &dump->what, 1);
  if (status == CLI_GO_ON && !dump->what)
    return cli_misused(help, "say which recording or ring to show");
  return status;
}

int dump_main(int argc, char **argv) {
  struct dump dump = {.first = INT64_MIN};
  struct stat status;
  int result = parse(argc, argv, &dump);
  if (result != CLI_GO_ON) return result;
  cli_catch_stops();
  bool is_file =
      strchr(dump.what, '/') || (stat(dump.what, &status) == 0 && S_ISREG(status.st_mode));
  if (is_file) result = dump_file(&dump);
  else result = dump_ring(&dump);
  free(dump.memory);
  return cli_finish(stdout, result);
}
