/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer and a reader of device tensors for tests in which calls fail and peers die: each in a process of its own,
 * with the fake driver. Frame number n holds: n itself; a tensor in C order and a strided one, of the device. All bytes
 * follow from n. What went wrong in a child is told by its exit status.
 *
 * The test's own calls of the driver are made again when they fail, as a fault may be meant for any call.
 */
#ifndef RC_TESTS_GPU_PEERS_H
#define RC_TESTS_GPU_PEERS_H

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "gpu/writer.h"
#include "ringcast/gpu.h"
#include "tests/support/children.h"
#include "tests/support/gpu.h"
#include "tests/support/leaks.h"
#include "tests/support/pattern.h"

enum {
  PLAIN_BYTES = 4000,
  ROWS = 10,
  ROW_BYTES = 80,
  SQUARE_BYTES = ROWS * ROW_BYTES,
  PLAIN_AT = 0,
  SQUARE_AT = 4096,
  OWN_BYTES = 16384
};

/* ---- The life of a peer ---------------------------------------------------------------------------------------- */

enum { HANG_S = 600, LOOKS = 100000 }; /* only a hang takes so long, however busy the machine is */
static const char *peer_name;

static inline void tell_hang(int signal) {
  (void)signal;
  dprintf(STDERR_FILENO, "the %s hangs; '%s' had failed in it\n", peer_name, fake_cuda()->failed());
  _exit(5);
}

/* Returns how many descriptors there are, for await_nothing_left. A stream that is only late must not count as one that
 * hangs, as the library leaves that stream's memory as it is. */
static inline int begin_peer(const char *name) {
  peer_name = name;
  rc_semaphore_patience_ns = (int64_t)HANG_S * 1000000000;
  signal(SIGALRM, tell_hang); /* not check's, which would end the test as well */
  alarm(HANG_S);
  return open_descriptors();
}

/* Calls that give something back, and those without which no call can: their failure leaves something behind. */
static inline bool may_leave(const char *failed) {
  static const char *const names[] = {"cuMemFree",           "cuMemFreeHost",   "cuIpcCloseMemHandle",
                                      "cuMemHostUnregister", "cuStreamDestroy", "cuCtxPushCurrent",
                                      "cuCtxGetCurrent",     "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], failed) == 0) return true;
  return false;
}

/* A reader's watcher may still be about it, or the reader has not closed the pool yet. */
static inline void await_nothing_left(int files) {
  static const char *const kinds[] = {"allocations", "imports", "registered", "streams",
                                      "contexts",    "queued",  "lost",       "spoilt"};
  const struct timespec pause = {.tv_nsec = 1000000};
  for (int look = 0;; look++, nanosleep(&pause, NULL)) {
    rc_exported_tidy(rc_gpu_close_ns);
    bool clean = open_descriptors() == files && ring_mappings() == 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) clean &= fake_cuda()->live(kinds[i]) == 0;
    if (clean || may_leave(fake_cuda()->failed())) return;
    if (look < LOOKS) continue;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      fprintf(stderr, "left: %ld %s\n", fake_cuda()->live(kinds[i]), kinds[i]);
    fprintf(stderr, "left: %d descriptors, %d mappings; %s had failed\n", open_descriptors() - files, ring_mappings(),
            fake_cuda()->failed());
    _exit(4);
  }
}

/* ---- A device of the test's own -------------------------------------------------------------------------------- */

struct own_device {
  const struct rc_cuda *cuda; /* NULL: it could not be had */
  rc_cu_context context;
  rc_cu_stream stream;
  rc_cu_ptr memory;
};

/* The call, and once more if it failed. */
#define twice(call) ((call) == RC_CU_SUCCESS || (call) == RC_CU_SUCCESS)

static inline bool own_device_open(struct own_device *own) {
  *own = (struct own_device){.cuda = rc_cuda()};
  const struct rc_cuda *cuda = own->cuda;
  if (!cuda || !twice(cuda->primary_retain(&own->context, 0))) return own->cuda = NULL, false;
  bool has = twice(cuda->ctx_push(own->context)) && twice(cuda->stream_create(&own->stream, 1)) &&
             twice(cuda->mem_alloc(&own->memory, OWN_BYTES));
  return has;
}

/* What it has, whatever of it; twice, as a fault may hit this, too. */
static inline void own_device_close(struct own_device *own) {
  const struct rc_cuda *cuda = own->cuda;
  rc_cu_context left;
  if (!cuda) return;
  if (own->stream && cuda->stream_destroy(own->stream) == 999) cuda->stream_destroy(own->stream);
  if (own->memory && cuda->mem_free(own->memory) == 999) cuda->mem_free(own->memory);
  if (cuda->ctx_pop(&left) == 999) cuda->ctx_pop(&left);
  if (cuda->primary_release(0) == 999) cuda->primary_release(0);
  own->cuda = NULL;
}

/* ---- Sending --------------------------------------------------------------------------------------------------- */

static inline void must_say_why(int rc) {
  if (rc == 0 || strlen(ringcast_last_error()) > 8) return;
  fprintf(stderr, "a call gave %d (%s), and no words\n", rc, strerror(-rc));
  _exit(1);
}

/* Fills the device memory of the sender, in the order of its stream. False: its device is broken. */
static inline bool fill_frame(struct own_device *own, uint64_t number) {
  static uint8_t plain[PLAIN_BYTES], square[SQUARE_BYTES];
  const struct rc_cuda *cuda = own->cuda;
  pattern_fill(plain, sizeof plain, 4 * number);
  pattern_fill(square, sizeof square, 4 * number + 1);
  return twice(cuda->copy_htod(own->memory + PLAIN_AT, plain, sizeof plain, own->stream)) &&
         twice(cuda->copy_htod(own->memory + SQUARE_AT, square, sizeof square, own->stream));
}

static inline const void *device_data(rc_cu_ptr pointer) { return (const void *)(uintptr_t)pointer; }

static inline int send_frame(ringcast_gpu_writer *gpu, struct own_device *own, uint64_t number, int64_t timeout_ns) {
  const struct ringcast_dtype bytes = {1, 8, 1}, words = {0, 32, 1};
  const int64_t eight[1] = {8}, plain[1] = {PLAIN_BYTES}, shape[2] = {ROWS, ROW_BYTES / 4};
  const struct ringcast_gpu_item items[] = {
      {"n", 1, {.data = &number, .dtype = bytes, .ndim = 1, .shape = eight}, 0},
      {"p", 1, {.data = device_data(own->memory + PLAIN_AT), .dtype = bytes, .ndim = 1, .shape = plain}, 1},
      {"s", 1, {.data = device_data(own->memory + SQUARE_AT), .dtype = words, .ndim = 2, .shape = shape}, 1},
  };
  int rc = ringcast_gpu_send(gpu, items, 3, 0, 0, own->stream, timeout_ns);
  must_say_why(rc);
  return rc;
}

static inline void send_must(ringcast_gpu_writer *gpu, struct own_device *own, uint64_t number) {
  child_must(fill_frame(own, number));
  child_must(send_frame(gpu, own, number, RINGCAST_FOREVER) == 0);
}

/* ---- Receiving -------------------------------------------------------------------------------------------------- */

struct received {
  uint64_t number;
  bool whole; /* all its bytes came, and were compared */
  bool by_pool, mapped;
  int failed; /* the first code that said otherwise */
};

static inline void note(struct received *out, int rc) {
  must_say_why(rc);
  if (out->failed == 0) out->failed = rc;
}

static inline void compare(const uint8_t *found, size_t bytes, uint64_t seed, const struct received *frame,
                           const char *what) {
  if (pattern_matches(found, bytes, seed)) return;
  fprintf(stderr, "CORRUPT: frame %llu, %s, by %s\n", (unsigned long long)frame->number, what,
          frame->by_pool ? "pool" : "ring");
  _exit(3);
}

/* Compares the bytes, in the order of the stream; they must be right unless a call has said that they are not. */
static inline void look_at_bytes(ringcast_gpu_reader *gpu, struct own_device *own, struct received *out) {
  static uint8_t found[OWN_BYTES];
  const struct rc_cuda *cuda = own->cuda;
  bool read = twice(cuda->copy_dtoh(found, own->memory, sizeof found, own->stream)) &&
              twice(cuda->stream_synchronize(own->stream));
  if (!read) out->failed = -EIO;
  note(out, ringcast_gpu_check(gpu));
  if (out->failed != 0) return;
  compare(found + PLAIN_AT, PLAIN_BYTES, 4 * out->number, out, "plain");
  compare(found + SQUARE_AT, SQUARE_BYTES, 4 * out->number + 1, out, "square");
  out->whole = true;
}

/* Every other frame of the pool is read where it lies. */
static inline int take_item(ringcast_gpu_reader *gpu, struct own_device *own, struct ringcast_gpu_take *take,
                            const struct ringcast_item *item, ringcast_gpu_hold **hold, struct received *out) {
  rc_cu_ptr to = own->memory + (*item->key == 'p' ? PLAIN_AT : SQUARE_AT);
  ringcast_device_ptr where;
  out->by_pool |= item->placement == RINGCAST_PLACEMENT_POOL;
  if (item->placement != RINGCAST_PLACEMENT_POOL || *item->key != 'p' || out->number % 2 == 0)
    return ringcast_gpu_copy_out(gpu, take, item, to);
  int rc = ringcast_gpu_map(gpu, take, item, &where, hold);
  out->mapped = rc == 0;
  if (rc == 0 && !twice(own->cuda->copy_dtod(to, where, item->bytes, own->stream))) out->failed = -EIO;
  return rc;
}

/* 0: a frame was received, rightly or not, and given back; else as ringcast_gpu_next. */
static inline int receive_frame(ringcast_gpu_reader *gpu, struct own_device *own, int64_t timeout_ns,
                                struct received *out) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_gpu_take take;
  struct ringcast_item items[3];
  ringcast_gpu_hold *hold = NULL;
  int rc = ringcast_gpu_next(gpu, timeout_ns, &frame);
  must_say_why(rc);
  if (rc != 0) return rc;
  child_must(ringcast_frame_open(&opened, frame.data, frame.bytes) == 0 && opened.count == 3);
  for (uint32_t i = 0; i < opened.count; i++) child_must(ringcast_frame_item(&opened, i, &items[i]) == 0);
  *out = (struct received){0};
  memcpy(&out->number, items[0].data, sizeof out->number);
  rc = ringcast_gpu_begin(gpu, &frame, own->stream, &take);
  must_say_why(rc);
  if (rc == -EIO) rc = ringcast_gpu_begin(gpu, &frame, own->stream, &take); /* the frame is still held */
  note(out, rc);
  if (out->failed != 0) {
    int released = ringcast_gpu_release(gpu, &frame);
    must_say_why(released);
    return 0;
  }
  for (uint32_t i = 1; i < opened.count && out->failed == 0; i++)
    note(out, take_item(gpu, own, &take, &items[i], &hold, out));
  note(out, ringcast_gpu_end(gpu, &take));
  ringcast_gpu_unmap(hold);
  look_at_bytes(gpu, own, out);
  return 0;
}

#endif
