/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that open and close writers and readers, and those that look where the library shows nothing. */
#include "tests/gpu_scenarios/world.h"

struct side side;

/* ---- Handles ---------------------------------------------------------------------------------------------------- */

static long do_ring(struct words *words) {
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = number_of(words, "ring", 1 << 20),
                                            .readers = (uint32_t)number_of(words, "readers", 8)};
  options.memory = (uint32_t)number_of(words, "memory", RINGCAST_MEMORY_AUTO);
  if (has_word(words, "evict")) options.on_death = RINGCAST_EVICT;
  if (has_word(words, "evict-slow")) options.on_slow = RINGCAST_EVICT, options.slow_ns = 1000000;
  int rc = ringcast_writer_create_ex(&options, &side.writer);
  if (rc == 0) strcpy(board->handle, ringcast_writer_handle(side.writer));
  return rc;
}

/* On a failure no handle may be given; one that is open stays open. */
static long do_gpu_writer(struct words *words) {
  struct ringcast_gpu_writer_options options = {.size = (uint32_t)number_of(words, "size", sizeof options),
                                                .device = (int32_t)number_of(words, "device", (uint64_t)-1),
                                                .pool_bytes = number_of(words, "pool", 2 << 20),
                                                .slots = (uint32_t)number_of(words, "slots", 4),
                                                .flags = (uint32_t)number_of(words, "flags", 0)};
  ringcast_gpu_writer *opened = NULL;
  int rc = ringcast_gpu_writer_open(side.writer, has_word(words, "default") ? NULL : &options, &opened);
  must((rc == 0) == (opened != NULL));
  if (rc == 0) side.gpu_writer = opened;
  return rc;
}

static long do_writer(struct words *words) {
  open_device();
  long rc = do_ring(words);
  return rc != 0 ? rc : do_gpu_writer(words);
}

static long do_ring_reader(struct words *words) {
  const struct ringcast_reader_options options = {.size = sizeof options,
                                                  .leases = (uint32_t)number_of(words, "leases", 0)};
  return ringcast_reader_attach_ex(board->handle, &options, &side.reader);
}

static long do_gpu_reader(struct words *words) {
  struct ringcast_gpu_reader_options options = {.size = (uint32_t)number_of(words, "size", sizeof options),
                                                .device = (int32_t)number_of(words, "device", (uint64_t)-1),
                                                .flags = (uint32_t)number_of(words, "flags", 0),
                                                .reserved = (uint32_t)number_of(words, "reserved", 0)};
  ringcast_gpu_reader *opened = NULL;
  int rc = ringcast_gpu_reader_open(side.reader, has_word(words, "default") ? NULL : &options, &opened);
  must((rc == 0) == (opened != NULL));
  if (rc == 0) side.gpu_reader = opened;
  return rc;
}

static long do_reader(struct words *words) {
  open_device();
  long rc = do_ring_reader(words);
  return rc != 0 ? rc : do_gpu_reader(words);
}

static long do_prepare(struct words *words) { return (void)words, ringcast_gpu_reader_prepare(side.gpu_reader); }
static long do_check(struct words *words) { return (void)words, ringcast_gpu_check(side.gpu_reader); }

static void close_gpu_reader(void) { ringcast_gpu_reader_close(side.gpu_reader), side.gpu_reader = NULL; }
static void close_gpu_writer(void) { ringcast_gpu_writer_close(side.gpu_writer), side.gpu_writer = NULL; }
static void close_ring_reader(void) { ringcast_reader_close(side.reader), side.reader = NULL; }
static void close_ring(void) { ringcast_writer_close(side.writer), side.writer = NULL; }
void close_reader(void) { close_gpu_reader(), close_ring_reader(); }
void close_writer(void) { close_gpu_writer(), close_ring(); }

static long do_close(struct words *words) {
  static const struct {
    const char *what;
    void (*close)(void);
  } closes[] = {{"reader", close_reader}, {"gpu-reader", close_gpu_reader}, {"ring-reader", close_ring_reader},
                {"writer", close_writer}, {"gpu-writer", close_gpu_writer}, {"ring", close_ring}};
  for (size_t i = 0; i < sizeof closes / sizeof *closes; i++)
    if (strcmp(closes[i].what, words->at[1]) == 0) return closes[i].close(), 0;
  wrong("close what?");
}

static long do_leave(struct words *words) { return (void)words, ringcast_reader_leave(side.reader), 0; }

/* ---- What the library does not show ----------------------------------------------------------------------------- */

/* As by whoever can write to the segment. */
static long do_forge(struct words *words) {
  struct rc_gpu_control *control = rc_gpu_control(&side.gpu_writer->exported->segment);
  struct rc_gpu_importer *place = &control->importers[0];
  if (strcmp(words->at[1], "pool-bytes") == 0) {
    control->id.pool_bytes = NUMBER(2);
  } else if (strcmp(words->at[1], "closed") == 0) {
    rc_store_release(&control->closed, (uint32_t)NUMBER(2));
  } else {
    must(strcmp(words->at[1], "refusal") == 0);
    rc_store_relaxed(&place->reason, (int32_t)NUMBER(2));
    rc_store_release(&place->refused, side.reader->ring.owner);
  }
  return 0;
}

void tidy(void) { rc_exported_tidy(rc_gpu_close_ns); }
static long do_tidy(struct words *words) { return (void)words, tidy(), 0; }
/* How many frames the ring holds for its reader; how many readers the ring has. */
static long do_held(struct words *words) { return (void)words, (long)rc_ring_held(&side.reader->ring); }
static long do_readers(struct words *words) { return (void)words, (long)rc_peer_count(&side.writer->ring.view); }

struct ringcast_gpu_info info_of(bool is_writer) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  must((is_writer ? ringcast_gpu_writer_info(side.gpu_writer, &info)
                  : ringcast_gpu_reader_info(side.gpu_reader, &info)) == 0);
  return info;
}
static long do_info(struct words *words) {
  struct ringcast_gpu_info info = {.size = (uint32_t)number_of(words, "size", sizeof info)};
  return strcmp(words->at[1], "writer") == 0 ? ringcast_gpu_writer_info(side.gpu_writer, &info)
                                             : ringcast_gpu_reader_info(side.gpu_reader, &info);
}
static long do_says(struct words *words) {
  if (!strstr(ringcast_last_error(), words->at[1])) wrong("it says: %s", ringcast_last_error());
  return 0;
}

/* Both, and the reader has opened the pool: by a frame that came by the ring. */
static long do_pair(struct words *words) {
  struct words sent = {.count = 3, .at = {"send", "0", "10"}};
  for (int i = 3; i <= MOST_WORDS; i++) sent.at[i] = "";
  must(do_writer(words) == 0 && do_reader(words) == 0 && do_send(&sent) == 0);
  sent.count = 2;
  sent.at[2] = "";
  must(do_recv(&sent) == RINGCAST_PLACEMENT_INLINE);
  return 0;
}

const struct verb handles_verbs[] = {
    {"ring", do_ring},               /* ring=BYTES readers=N memory=N evict evict-slow */
    {"gpu-writer", do_gpu_writer},   /* pool=BYTES slots=N device=N flags=N size=N default */
    {"writer", do_writer},           /* both */
    {"ring-reader", do_ring_reader}, /* leases=N */
    {"gpu-reader", do_gpu_reader},   /* device=N flags=N reserved=N size=N default */
    {"reader", do_reader},           /* both */
    {"prepare", do_prepare},
    {"check", do_check},
    {"close", do_close}, /* reader, gpu-reader, ring-reader, writer, gpu-writer or ring */
    {"leave", do_leave},
    {"forge", do_forge}, /* pool-bytes N, closed N, refusal N: in the device segment */
    {"tidy", do_tidy},
    {"held", do_held},
    {"readers", do_readers},
    {"info", do_info}, /* writer|reader [size=N] */
    {"says", do_says}, /* TEXT in the last error */
    {NULL, NULL},
};

long do_step(struct words *words) {
  if (strcmp(words->at[0], "pair") == 0) return do_pair(words);
  static const struct verb *const tables[] = {device_verbs,  handles_verbs, send_verbs,
                                              receive_verbs, expect_verbs,  probe_verbs};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    for (const struct verb *verb = tables[i]; verb->name; verb++)
      if (strcmp(verb->name, words->at[0]) == 0) return verb->verb(words);
  wrong("there is no verb '%s'", words->at[0]);
}
