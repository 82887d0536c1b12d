/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors from process to process by the library itself. That no call waits for the device is shown, not timed: the
 * writer's stream stands behind a kernel that spins until the CPU says so, which it does only once the writer's call
 * has returned and every reader has enqueued all that it does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>

#include "tests/gpu/ends.h"
#include "tests/gpu/run.h"

/* ---- Broadcasts ------------------------------------------------------------------------------------------------- */

static void must_be_pending(struct world *world, const char *when) {
  if (world->gpu.cuda->stream_query(world->gpu.stream) != RC_CU_NOT_READY)
    failed("the writer's stream has gone on %s", when);
}

static void delayed_by_a_kernel(int readers, bool on_null_stream) {
  struct job job = {.spin = shared_memory(PAGE), .says_enqueued = true, .on_null_stream = on_null_stream};
  struct helper helpers[MOST_READERS];
  int count = 3 + rounds(50);
  char byte;
  for (int i = 0; i < readers; i++) helpers[i] = helper_start(read_all, &job);
  struct world world = open_writer(job.spin, 16 << 20, 0);
  if (on_null_stream) world.gpu.stream = NULL;
  introduce(&world, helpers, readers, count);
  for (int round = 0; round < count; round++) {
    bool spins = info_of(&world).way == RINGCAST_GPU_WAY_POOL;
    if (spins) gpu_spin(&world.gpu, world.gpu.stream, world.spin_address, BOUND_NS);
    if (!spins && round > 2) no_pool(info_of(&world).why);
    send_one(&world);
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
static void delayed_one(void) { delayed_by_a_kernel(1, false); }
static void delayed_three(void) { delayed_by_a_kernel(3, false); }
static void delayed_on_null_stream(void) { delayed_by_a_kernel(1, true); } /* torch's default */

/* As fast as it goes: the pool holds only a few, so it wraps, is full, and frames go INLINE in between. */
static void in_a_row(int readers) {
  struct job job = {.spin = shared_memory(PAGE)};
  struct helper helpers[MOST_READERS];
  int count = is_little() ? 40 : 400;
  for (int i = 0; i < readers; i++) helpers[i] = helper_start(read_all, &job);
  struct world world = open_writer(job.spin, 4 << 20, 0);
  introduce(&world, helpers, readers, count);
  for (int round = 0; round < 3; round++) { /* the readers open the pool by the first */
    send_one(&world);
    hear_all(helpers, readers);
  }
  double begun = now_us();
  for (int round = 3; round < count; round++) {
    if (round % 4 == 3) gpu_spin(&world.gpu, world.gpu.stream, world.spin_address, (uint64_t)(round % 5) * 40000);
    send_one(&world);
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
  int came = 0;
  char byte = 1;
  spin = gpu_register(&opened.gpu, job->spin, PAGE);
  say_attached(me);
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
    if ((result = try_to_send(&world, sent < WARM_UP ? 0 : RINGCAST_GPU_NO_INLINE)) != 0) break;
    if (sent > 0) helper_tell(&helper, &byte, 1);                                      /* read one more */
    helper_hear(&helper, &byte, 1);                                                    /* it is enqueued */
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

const struct probe_case broadcast_probes[] = {{"broadcast_behind_a_kernel_to_1", delayed_one, 90, false},
                                              {"broadcast_behind_a_kernel_to_3", delayed_three, 120, false},
                                              {"broadcast_on_the_null_stream", delayed_on_null_stream, 90, false},
                                              {"broadcast_in_a_row_to_1", in_a_row_one, 90, false},
                                              {"broadcast_in_a_row_to_3", in_a_row_three, 120, false},
                                              {"pool_behind_a_reader", reader_behind_a_kernel, 60, false},
                                              {NULL, NULL, 0, false}};
