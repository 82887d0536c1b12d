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
    if (spins) gpu_spin(world.gpu.stream, world.spin_address, BOUND_NS);
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
    if (round % 4 == 3) gpu_spin(world.gpu.stream, world.spin_address, (uint64_t)(round % 5) * 40000);
    send_one(&world);
  }
  figure_number("sent_us", (now_us() - begun) / (count - 3));
  for (int round = 3; round < count; round++) hear_all(helpers, readers);
  finish(&world, helpers, readers);
}
static void in_a_row_one(void) { in_a_row(1); }
static void in_a_row_three(void) { in_a_row(3); }

const struct probe_case broadcast_probes[] = {{"broadcast_behind_a_kernel_to_1", delayed_one, 90, false},
                                              {"broadcast_behind_a_kernel_to_3", delayed_three, 120, false},
                                              {"broadcast_on_the_null_stream", delayed_on_null_stream, 90, false},
                                              {"broadcast_in_a_row_to_1", in_a_row_one, 90, false},
                                              {"broadcast_in_a_row_to_3", in_a_row_three, 120, false},
                                              {NULL, NULL, 0, false}};
