/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors from process to process by the library itself. That no call waits for the device is shown, not timed: the
 * writer's stream stands behind a kernel that spins until the CPU says so, which it does only once the writer's call
 * has returned and every reader has enqueued all that it does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringcast/gpu.h"
#include "tests/gpu/probe.h"
#include "tests/gpu/run.h"

enum { PAGE = 4096, BYTES = 1 << 20, SEEDS = 8, MOST_READERS = 3, FILLED = 99 };
static const int64_t LIMIT_NS = 20000000000;
static const uint64_t BOUND_NS = 20000000000; /* of a kernel that nobody releases */

/* ---- A reader --------------------------------------------------------------------------------------------------- */

struct job {
  uint32_t *spin;   /* on a page of its own */
  bool says_enqueued;
};

struct opened {
  struct gpu gpu;
  ringcast_reader *ring;
  ringcast_gpu_reader *reader;
  rc_cu_ptr mine;
};

static struct opened open_reader(struct helper *me) {
  struct opened opened = {0};
  struct ringcast_gpu_reader_options options = {.size = sizeof options, .device = 0};
  char handle[96];
  helper_hear(me, handle, sizeof handle);
  opened.gpu = gpu_open();
  opened.mine = gpu_alloc(&opened.gpu, BYTES);
  must_ringcast(ringcast_reader_attach(handle, &opened.ring), "attach");
  must_ringcast(ringcast_gpu_reader_open(opened.ring, &options, &opened.reader), "ringcast_gpu_reader_open");
  return opened;
}

static void close_reader(struct opened *opened) {
  ringcast_gpu_reader_close(opened->reader);
  ringcast_reader_close(opened->ring);
}

/* Enqueues all of it; the tag is the pattern that is to come. Every third tensor is read where it lies, if it is in the
 * pool. */
static uint32_t read_one(struct opened *opened, int number) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr at;
  must_ringcast(ringcast_gpu_next(opened->reader, LIMIT_NS, &frame), "ringcast_gpu_next");
  must_ringcast(ringcast_gpu_begin(opened->reader, &frame, opened->gpu.stream, &take), "ringcast_gpu_begin");
  must_ringcast(ringcast_frame_open(&tensors, frame.data, frame.bytes), "ringcast_frame_open");
  must_ringcast(ringcast_frame_item(&tensors, 0, &item), "ringcast_frame_item");
  if (item.bytes != BYTES) failed("a tensor of %llu bytes came", (unsigned long long)item.bytes);
  if (number % 3 == 2 && item.placement == RINGCAST_PLACEMENT_POOL) {
    must_ringcast(ringcast_gpu_map(opened->reader, &take, &item, &at, &hold), "ringcast_gpu_map");
    must(opened->gpu.cuda->copy_dtod(opened->mine, at, BYTES, opened->gpu.stream), "cuMemcpyDtoDAsync");
    ringcast_gpu_unmap(hold);
  } else {
    must_ringcast(ringcast_gpu_copy_out(opened->reader, &take, &item, opened->mine), "ringcast_gpu_copy_out");
  }
  must_ringcast(ringcast_gpu_end(opened->reader, &take), "ringcast_gpu_end");
  return tensors.tag;
}

/* Reads as many as it is told, and says of each when it is enqueued, and how many bytes of it were wrong. */
static void read_all(struct helper *me, void *context) {
  const struct job *job = context;
  struct opened opened = open_reader(me);
  struct ringcast_gpu_info info = {.size = sizeof info};
  int count;
  char byte = 1;
  helper_tell(me, &byte, 1);
  helper_hear(me, &count, sizeof count);
  for (int i = 0; i < count; i++) {
    uint32_t seed = read_one(&opened, i);
    if (job->says_enqueued) helper_tell(me, &byte, 1);
    uint64_t wrong = gpu_differing(&opened.gpu, opened.mine, BYTES, seed);
    helper_tell(me, &wrong, sizeof wrong);
  }
  must_ringcast(ringcast_gpu_reader_info(opened.reader, &info), "ringcast_gpu_reader_info");
  helper_tell(me, &info, sizeof info);
  helper_hear(me, &byte, 1);
  close_reader(&opened);
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

struct world {
  struct gpu gpu;
  ringcast_writer *ring;
  ringcast_gpu_writer *writer;
  rc_cu_ptr source, patterns[SEEDS], filler, spin_address;
  uint32_t *spin;
  uint32_t sent;
};

static struct world open_writer(uint32_t *spin, uint64_t pool_bytes, uint32_t flags) {
  struct world world = {.spin = spin, .gpu = gpu_open()};
  struct ringcast_writer_options ring = {
      .size = sizeof ring, .capacity = 8 << 20, .readers = 8, .on_death = RINGCAST_EVICT};
  struct ringcast_gpu_writer_options options = {.size = sizeof options, .pool_bytes = pool_bytes, .flags = flags};
  gpu_alloc(&world.gpu, BYTES / 2); /* the driver gives out parts of blocks: the source is not the first of one */
  world.source = gpu_alloc(&world.gpu, BYTES);
  world.filler = gpu_alloc(&world.gpu, BYTES);
  gpu_fill(&world.gpu, world.filler, BYTES, FILLED);
  for (unsigned i = 0; i < SEEDS; i++) gpu_fill(&world.gpu, world.patterns[i] = gpu_alloc(&world.gpu, BYTES), BYTES, i);
  world.spin_address = gpu_register(&world.gpu, spin, PAGE);
  must_ringcast(ringcast_writer_create_ex(&ring, &world.ring), "ringcast_writer_create_ex");
  must_ringcast(ringcast_gpu_writer_open(world.ring, &options, &world.writer), "ringcast_gpu_writer_open");
  return world;
}

static void close_writer(struct world *world) {
  ringcast_gpu_writer_close(world->writer);
  ringcast_writer_close(world->ring);
}

static struct ringcast_gpu_info info_of(struct world *world) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  must_ringcast(ringcast_gpu_writer_info(world->writer, &info), "ringcast_gpu_writer_info");
  return info;
}

/* On the stream: the next pattern to the tensor, the send, and other bytes to the tensor again. */
static int try_to_send(struct world *world, uint32_t lent, uint32_t flags) {
  const int64_t shape[1] = {BYTES};
  uint32_t seed = world->sent++ % SEEDS;
  const struct ringcast_gpu_item item = {
      .key = "x", .key_bytes = 1, .on_device = 1, .lent = lent,
      .tensor = {.data = (const void *)(uintptr_t)world->source, .dtype = {1, 8, 1}, .ndim = 1, .shape = shape,
                 .flags = RINGCAST_ITEM_CUDA}};
  must(world->gpu.cuda->copy_dtod(world->source, world->patterns[seed], BYTES, world->gpu.stream), "cuMemcpyDtoDAsync");
  int result = ringcast_gpu_send(world->writer, &item, 1, seed, flags, world->gpu.stream, LIMIT_NS);
  if (!lent)
    must(world->gpu.cuda->copy_dtod(world->source, world->filler, BYTES, world->gpu.stream), "cuMemcpyDtoDAsync");
  return result;
}

static void send_one(struct world *world, uint32_t lent) {
  must_ringcast(try_to_send(world, lent, 0), "ringcast_gpu_send");
}

static void introduce(struct world *world, struct helper *helpers, int readers, int count) {
  char handle[96] = "", byte;
  snprintf(handle, sizeof handle, "%s", ringcast_writer_handle(world->ring));
  for (int i = 0; i < readers; i++) helper_tell(&helpers[i], handle, sizeof handle);
  for (int i = 0; i < readers; i++) helper_hear(&helpers[i], &byte, 1);
  for (int i = 0; i < readers; i++) helper_tell(&helpers[i], &count, sizeof count);
}

static void hear_all(struct helper *helpers, int readers) {
  for (int i = 0; i < readers; i++) {
    uint64_t wrong;
    helper_hear(&helpers[i], &wrong, sizeof wrong);
    if (wrong) failed("reader %d: %llu bytes of a tensor are wrong", i, (unsigned long long)wrong);
  }
}

static void figures_of_writer(const struct ringcast_gpu_info *writer) {
  figure_integer("pool_frames", (int64_t)writer->pool_frames);
  figure_integer("inline_frames", (int64_t)writer->inline_frames);
  figure_integer("writer_syncs", (int64_t)writer->syncs);
  figure_integer("word_bits", writer->word_bits);
  figure_integer("full", (int64_t)writer->full);
  if (*writer->why) figure_text("why", writer->why);
}

/* It has opened the pool once, and waited for no device; but where the ring's memory is not registered, for each frame
 * that came by the ring. */
static void must_have_read_by_pool(const struct ringcast_gpu_info *reader, int number) {
  uint64_t syncs = reader->registered ? 0 : reader->inline_frames;
  if (reader->opens != 1)
    failed("reader %d has opened %llu handles, and not 1", number, (unsigned long long)reader->opens);
  if (reader->syncs > syncs)
    failed("reader %d has waited for its device %llu times", number, (unsigned long long)reader->syncs);
}

/* What all must show: frames by the pool, and that the writer has waited for the device only for what went INLINE. */
static void must_have_sent_by_pool(const struct ringcast_gpu_info *writer) {
  if (writer->pool_frames == 0) no_pool(writer->why);
  if (writer->syncs != writer->inline_frames)
    failed("the writer has waited for the device %llu times, with %llu frames that went INLINE",
           (unsigned long long)writer->syncs, (unsigned long long)writer->inline_frames);
}

/* Returns the writer's counts. */
static struct ringcast_gpu_info finish(struct world *world, struct helper *helpers, int readers) {
  struct ringcast_gpu_info writer = info_of(world), read[MOST_READERS];
  uint64_t opens = 0, syncs = 0;
  char byte = 1;
  figures_of_writer(&writer);
  for (int i = 0; i < readers; i++) {
    helper_hear(&helpers[i], &read[i], sizeof read[i]);
    opens += read[i].opens;
    syncs += read[i].syncs;
    helper_tell(&helpers[i], &byte, 1);
    helper_end(&helpers[i]);
  }
  figure_integer("readers", readers);
  figure_integer("readers_opens", (int64_t)opens);
  figure_integer("readers_syncs", (int64_t)syncs);
  must_have_sent_by_pool(&writer);
  for (int i = 0; i < readers; i++) must_have_read_by_pool(&read[i], i);
  close_writer(world);
  return writer;
}

/* ---- Broadcasts ------------------------------------------------------------------------------------------------- */

static void must_be_pending(struct world *world, const char *when) {
  if (world->gpu.cuda->stream_query(world->gpu.stream) != RC_CU_NOT_READY)
    failed("the writer's stream has gone on %s", when);
}

static void delayed_by_a_kernel(int readers) {
  struct job job = {.spin = shared_memory(PAGE), .says_enqueued = true};
  struct helper helpers[MOST_READERS];
  int count = 3 + rounds(50);
  char byte;
  for (int i = 0; i < readers; i++) helpers[i] = helper_start(read_all, &job);
  struct world world = open_writer(job.spin, 16 << 20, 0);
  introduce(&world, helpers, readers, count);
  for (int round = 0; round < count; round++) {
    bool spins = info_of(&world).way == RINGCAST_GPU_WAY_POOL;
    if (spins) gpu_spin(&world.gpu, world.gpu.stream, world.spin_address, BOUND_NS);
    if (!spins && round > 2) no_pool(info_of(&world).why);
    send_one(&world, 0);
    if (spins) must_be_pending(&world, "before the kernel before it has ended");
    for (int i = 0; i < readers; i++) helper_hear(&helpers[i], &byte, 1);
    if (spins) must_be_pending(&world, "while the readers only enqueued");
    __atomic_store_n(job.spin, 1, __ATOMIC_RELEASE);
    hear_all(helpers, readers);
    must(world.gpu.cuda->stream_synchronize(world.gpu.stream), "cuStreamSynchronize");
    __atomic_store_n(job.spin, 0, __ATOMIC_RELEASE);
  }
  struct ringcast_gpu_info writer = finish(&world, helpers, readers);
  if (writer.inline_frames != 1)
    failed("%llu frames went INLINE, and not the first alone", (unsigned long long)writer.inline_frames);
}
static void delayed_one(void) { delayed_by_a_kernel(1); }
static void delayed_three(void) { delayed_by_a_kernel(3); }

/* As fast as it goes: the pool holds only a few, so it wraps, is full, and frames go INLINE in between. */
static void in_a_row(int readers) {
  struct job job = {.spin = shared_memory(PAGE)};
  struct helper helpers[MOST_READERS];
  int count = is_little() ? 40 : 400;
  for (int i = 0; i < readers; i++) helpers[i] = helper_start(read_all, &job);
  struct world world = open_writer(job.spin, 4 << 20, 0);
  introduce(&world, helpers, readers, count);
  for (int round = 0; round < 3; round++) { /* the readers open the pool by the first */
    send_one(&world, 0);
    hear_all(helpers, readers);
  }
  double begun = now_us();
  for (int round = 3; round < count; round++) {
    if (round % 4 == 3) gpu_spin(&world.gpu, world.gpu.stream, world.spin_address, (uint64_t)(round % 5) * 40000);
    send_one(&world, 0);
  }
  figure_number("sent_us", (now_us() - begun) / (count - 3));
  for (int round = 3; round < count; round++) hear_all(helpers, readers);
  finish(&world, helpers, readers);
}
static void in_a_row_one(void) { in_a_row(1); }
static void in_a_row_three(void) { in_a_row(3); }

/* ---- A reader's stream that is behind --------------------------------------------------------------------------- */

enum { HELD = 4, MORE = 12, WARM_UP = 3 };

static void read_behind_a_kernel(struct helper *me, void *context) {
  const struct job *job = context;
  struct opened opened = open_reader(me);
  rc_cu_ptr all = gpu_alloc(&opened.gpu, (WARM_UP + HELD + MORE) * (size_t)BYTES), spin;
  uint32_t seeds[WARM_UP + HELD + MORE];
  int count, came = 0;
  char byte = 1;
  spin = gpu_register(&opened.gpu, job->spin, PAGE);
  helper_tell(me, &byte, 1);
  helper_hear(me, &count, sizeof count);
  for (; byte; came++) {
    if (came == WARM_UP) gpu_spin(&opened.gpu, opened.gpu.stream, spin, BOUND_NS);
    opened.mine = all + (rc_cu_ptr)came * BYTES;
    seeds[came] = read_one(&opened, came);
    if (came < WARM_UP) must(opened.gpu.cuda->stream_synchronize(opened.gpu.stream), "cuStreamSynchronize");
    helper_tell(me, &byte, 1);
    helper_hear(me, &byte, 1);
  }
  uint64_t wrong = 0; /* the kernel has been released */
  for (int i = 0; i < came; i++) wrong += gpu_differing(&opened.gpu, all + (rc_cu_ptr)i * BYTES, BYTES, seeds[i]);
  helper_tell(me, &wrong, sizeof wrong);
  close_reader(&opened);
}

/* What the reader's stream has not read yet must not be overwritten, however long that takes: the pool is full. */
static void reader_behind_a_kernel(void) {
  struct job job = {.spin = shared_memory(PAGE)};
  struct helper helper = helper_start(read_behind_a_kernel, &job);
  uint32_t *unused = shared_memory(PAGE);
  struct world world = open_writer(unused, HELD * (uint64_t)BYTES, 0);
  int sent = 0, result = 0;
  char byte = 1;
  introduce(&world, &helper, 1, 0);
  for (; sent < WARM_UP + HELD + MORE; sent++) {
    if ((result = try_to_send(&world, 0, sent < WARM_UP ? 0 : RINGCAST_GPU_NO_INLINE)) != 0) break;
    if (sent > 0) helper_tell(&helper, &byte, 1); /* read one more */
    helper_hear(&helper, &byte, 1);               /* it is enqueued */
    must(world.gpu.cuda->stream_synchronize(world.gpu.stream), "cuStreamSynchronize"); /* it lies in the pool */
  }
  struct ringcast_gpu_info info = info_of(&world);
  __atomic_store_n(job.spin, 1, __ATOMIC_RELEASE);
  helper_tell(&helper, (char[]){0}, 1);
  hear_all(&helper, 1);
  figure_integer("pool_frames", (int64_t)info.pool_frames);
  figure_integer("full", (int64_t)info.full);
  if (info.way != RINGCAST_GPU_WAY_POOL) no_pool(info.why);
  if (result != -EAGAIN || sent > WARM_UP + HELD)
    failed("%d tensors went to a pool of %d that nobody has read from", sent - WARM_UP, HELD);
  close_writer(&world);
  helper_end(&helper);
}

/* ---- EXTERN ----------------------------------------------------------------------------------------------------- */

static void read_lent(struct helper *me, void *context) {
  struct opened opened = open_reader(me);
  char byte = 1;
  int count;
  (void)context;
  helper_tell(me, &byte, 1);
  helper_hear(me, &count, sizeof count);
  for (int i = 0; i < count; i++) {
    uint32_t seed = read_one(&opened, i);
    uint64_t wrong = gpu_differing(&opened.gpu, opened.mine, BYTES, seed);
    helper_tell(me, &wrong, sizeof wrong);
  }
  struct ringcast_frame frame; /* until the writer has gone: its next calls close what is taken back */
  int result;
  while ((result = ringcast_gpu_next(opened.reader, 10000000, &frame)) != -EPIPE)
    if (result == 0) failed("a frame came that nobody has sent");
    else if (result != -ETIMEDOUT) must_ringcast(result, "ringcast_gpu_next");
  close_reader(&opened);
}

static void lent_memory(void) {
  struct job job = {.spin = shared_memory(PAGE)};
  struct helper helper = helper_start(read_lent, &job);
  struct world world = open_writer(job.spin, 4 << 20, RINGCAST_GPU_EXTERN);
  uint32_t lent;
  int count = 1 + rounds(20);
  must_ringcast(ringcast_gpu_writer_lend(world.writer, world.source, &lent), "ringcast_gpu_writer_lend");
  figure_integer("lent_at_kib_of_a_2_mib_block", (int64_t)(world.source % (2 << 20) >> 10));
  introduce(&world, &helper, 1, count);
  for (int round = 0; round < count; round++) {
    if (round == 1 && info_of(&world).way != RINGCAST_GPU_WAY_POOL) no_pool(info_of(&world).why);
    send_one(&world, round == 0 ? 0 : lent); /* by one that goes INLINE the reader opens the pool first */
    hear_all(&helper, 1);
    double until = now_us() + 5e6;
    while (ringcast_gpu_lent_is_idle(world.writer, lent) == 0 && now_us() < until) sched_yield();
    if (ringcast_gpu_lent_is_idle(world.writer, lent) != 1) failed("what was lent is not told to have been read");
  }
  figure_integer("pool_frames", (int64_t)info_of(&world).pool_frames);
  figure_integer("inline_frames", (int64_t)info_of(&world).inline_frames);
  if (info_of(&world).inline_frames != 1) failed("a frame of lent memory went INLINE");
  double begun = now_us();
  must_ringcast(ringcast_gpu_writer_unlend(world.writer, lent, LIMIT_NS), "ringcast_gpu_writer_unlend");
  figure_number("unlend_us", now_us() - begun);
  close_writer(&world);
  helper_end(&helper);
}

/* ---- Deaths ----------------------------------------------------------------------------------------------------- */

struct doomed {
  uint32_t *spin;
  bool forks;
  int until[2]; /* a pipe: the child lives until the end for writing is closed */
};

/* It uses nothing of CUDA, and has all that its parent had: descriptors of the driver's, mappings, registrations. */
static pid_t have_child(const struct doomed *doomed) {
  char byte;
  pid_t pid = fork();
  if (pid < 0) failed("can't fork: %s", strerror(errno));
  if (pid > 0) return pid;
  close(doomed->until[1]);
  _exit(read(doomed->until[0], &byte, 1) != 0);
}

static void write_and_hang(struct helper *me, void *context) {
  const struct doomed *doomed = context;
  struct world world = open_writer(doomed->spin, 16 << 20, 0);
  char handle[96] = "", byte = 1;
  snprintf(handle, sizeof handle, "%s", ringcast_writer_handle(world.ring));
  helper_tell(me, handle, sizeof handle);
  helper_hear(me, &byte, 1); /* attached */
  for (int i = 0; i < 4; i++) {
    if (i == 3 && info_of(&world).way == RINGCAST_GPU_WAY_POOL)
      gpu_spin(&world.gpu, world.gpu.stream, world.spin_address, BOUND_NS);
    send_one(&world, 0);
    if (i < 3) helper_hear(me, &byte, 1);
  }
  pid_t child = doomed->forks ? have_child(doomed) : 0;
  helper_tell(me, &child, sizeof child);
  pause();
}

/* The reader's stream waits for what will never come, also while a child has all that was the writer's. */
static void writer_dies(bool forks) {
  struct doomed doomed = {.spin = shared_memory(PAGE), .forks = forks};
  pid_t child;
  if (pipe(doomed.until) != 0) failed("no pipe: %s", strerror(errno));
  struct helper helper = helper_start(write_and_hang, &doomed);
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* the child becomes this process's own */
  struct opened opened = {0};
  struct ringcast_gpu_reader_options options = {.size = sizeof options, .device = 0};
  struct ringcast_gpu_info info = {.size = sizeof info};
  char handle[96], byte = 1;
  helper_hear(&helper, handle, sizeof handle);
  opened.gpu = gpu_open();
  gpu_load_spin(&opened.gpu); /* if it can't be, then neither by the writer, which would end */
  opened.mine = gpu_alloc(&opened.gpu, BYTES);
  must_ringcast(ringcast_reader_attach(handle, &opened.ring), "attach");
  must_ringcast(ringcast_gpu_reader_open(opened.ring, &options, &opened.reader), "ringcast_gpu_reader_open");
  for (int i = 0; i < 4; i++) {
    helper_tell(&helper, &byte, 1);
    read_one(&opened, 0);
    if (i < 3) must(opened.gpu.cuda->stream_synchronize(opened.gpu.stream), "cuStreamSynchronize");
  }
  must_ringcast(ringcast_gpu_reader_info(opened.reader, &info), "ringcast_gpu_reader_info");
  if (info.pool_frames == 0) no_pool(info.why);
  helper_hear(&helper, &child, sizeof child);
  if (opened.gpu.cuda->stream_query(opened.gpu.stream) != RC_CU_NOT_READY) failed("the stream does not wait");
  size_t before = gpu_free_bytes(&opened.gpu);
  double begun = now_us();
  helper_kill(&helper);
  rc_cu_result result;
  while ((result = opened.gpu.cuda->stream_query(opened.gpu.stream)) == RC_CU_NOT_READY) sched_yield();
  figure_number("released_after_ms", (now_us() - begun) / 1e3);
  figure_result("stream", result);
  int check;
  while ((check = ringcast_gpu_check(opened.reader)) == 0 && now_us() - begun < 5e6) sched_yield();
  figure_integer("check", check);
  if (check != -EPIPE) failed("ringcast_gpu_check gives %d, and not -EPIPE", check);
  if (forks && waitpid(child, NULL, WNOHANG) != 0) failed("nothing was shown: the writer's child did not outlive it");
  close_reader(&opened);
  figure_number("free_after_close_mib", ((double)gpu_free_bytes(&opened.gpu) - (double)before) / (1 << 20));
  close(doomed.until[1]);
  if (forks && waitpid(child, NULL, 0) != child) failed("the writer's child does not end: %s", strerror(errno));
  if (forks)
    figure_number("free_after_the_child_mib", ((double)gpu_free_bytes(&opened.gpu) - (double)before) / (1 << 20));
}
static void writer_dies_alone(void) { writer_dies(false); }
static void writer_dies_with_a_child(void) { writer_dies(true); }

static void read_and_hang(struct helper *me, void *context) {
  struct opened opened = open_reader(me);
  struct ringcast_frame frame;
  struct ringcast_gpu_take take;
  char byte = 1;
  int count;
  (void)context;
  helper_tell(me, &byte, 1);
  helper_hear(me, &count, sizeof count);
  for (int i = 0; i < 3; i++) {
    uint32_t seed = read_one(&opened, i);
    uint64_t wrong = gpu_differing(&opened.gpu, opened.mine, BYTES, seed);
    helper_tell(me, &wrong, sizeof wrong);
  }
  must_ringcast(ringcast_gpu_next(opened.reader, LIMIT_NS, &frame), "ringcast_gpu_next");
  must_ringcast(ringcast_gpu_begin(opened.reader, &frame, opened.gpu.stream, &take), "ringcast_gpu_begin");
  uint64_t wrong = 0;
  helper_tell(me, &wrong, sizeof wrong);
  pause();
}

/* One of two readers dies with a frame in its hands; the other goes on, by the pool. */
static void reader_dies(void) {
  struct job job = {.spin = shared_memory(PAGE)};
  int count = 4 + rounds(40);
  struct helper helpers[2] = {helper_start(read_all, &job), helper_start(read_and_hang, &job)};
  struct world world = open_writer(job.spin, 4 << 20, 0);
  introduce(&world, helpers, 2, count);
  for (int round = 0; round < 4; round++) {
    send_one(&world, 0);
    hear_all(helpers, 2);
  }
  uint64_t before = info_of(&world).pool_frames;
  helper_kill(&helpers[1]);
  for (int round = 4; round < count; round++) {
    struct ringcast_peer peer;
    while (ringcast_writer_check(world.ring, &peer) == 1) continue;
    send_one(&world, 0);
    hear_all(helpers, 1);
  }
  figure_integer("pool_frames_after_death", (int64_t)(info_of(&world).pool_frames - before));
  if (before > 0 && info_of(&world).pool_frames == before) failed("nothing goes by the pool any more");
  finish(&world, helpers, 1);
}

const struct probe_case ring_probes[] = {
    {"broadcast_behind_a_kernel_to_1", delayed_one, 90, false},
    {"broadcast_behind_a_kernel_to_3", delayed_three, 120, false},
    {"broadcast_in_a_row_to_1", in_a_row_one, 90, false},
    {"broadcast_in_a_row_to_3", in_a_row_three, 120, false},
    {"pool_behind_a_reader", reader_behind_a_kernel, 60, false},
    {"lent_memory", lent_memory, 90, false},
    {"writer_dies_while_a_stream_waits", writer_dies_alone, 60, false},
    {"writer_dies_and_leaves_a_child", writer_dies_with_a_child, 60, false},
    {"reader_dies_with_a_frame", reader_dies, 60, false},
    {NULL, NULL, 0, false}};
