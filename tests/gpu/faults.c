/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that faults, in the writer and in a reader, and a process that exits while its stream waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/ends.h"
#include "tests/gpu/run.h"

enum { WARM_UP = 3 };

static rc_cu_result await_stream(const struct gpu *gpu) {
  rc_cu_result result;
  double begun = now_us();
  while ((result = gpu->cuda->stream_query(gpu->stream)) == RC_CU_NOT_READY && now_us() - begun < 20e6) sched_yield();
  return result;
}

/* Without work of its own on the stream, which may fail already. */
static int send_only(struct world *world) {
  static const int64_t shape[1] = {BYTES};
  const struct ringcast_gpu_item item = {.key = "x",
                                         .key_bytes = 1,
                                         .on_device = 1,
                                         .tensor = {.data = (const void *)(uintptr_t)world->patterns[0],
                                                    .dtype = {1, 8, 1},
                                                    .ndim = 1,
                                                    .shape = shape,
                                                    .flags = RINGCAST_ITEM_CUDA}};
  return ringcast_gpu_send(world->writer, &item, 1, 0, RINGCAST_GPU_NO_INLINE, world->gpu.stream, LIMIT_NS);
}

/* ---- In the writer ---------------------------------------------------------------------------------------------- */

struct fault {
  int send_at_once, send_later; /* before, and after, the driver has said that the context has failed */
  rc_cu_result stream;
  double close_ms;
};

static void write_and_fault(struct helper *me, void *spin) {
  struct world world = open_writer(spin, 16 << 20, 0);
  struct fault fault = {0};
  char byte = 1;
  tell_handle(&world, me);
  helper_hear(me, &byte, 1); /* attached */
  helper_tell(me, (int[]){0}, sizeof(int));
  for (int i = 0; i < WARM_UP; i++) {
    send_one(&world);
    helper_hear(me, &byte, 1);
  }
  gpu_fault(world.gpu.stream);
  fault.send_at_once = send_only(&world);
  helper_tell(me, &fault.send_at_once, sizeof fault.send_at_once);
  helper_hear(me, &byte, 1); /* the reader has enqueued what came */
  fault.stream = await_stream(&world.gpu);
  fault.send_later = send_only(&world);
  double begun = now_us();
  close_writer(&world);
  fault.close_ms = (now_us() - begun) / 1e3;
  helper_tell(me, &fault, sizeof fault);
}

static void writer_faults(void) {
  struct helper helper = helper_start(write_and_fault, shared_memory(PAGE));
  struct opened opened = open_reader(&helper);
  struct fault fault;
  int sent;
  char byte = 1;
  gpu_load_spin();
  say_attached(&helper);
  for (int i = 0; i < WARM_UP; i++) {
    read_one(&opened, 0);
    must(opened.gpu.cuda->stream_synchronize(opened.gpu.stream), "cuStreamSynchronize");
    helper_tell(&helper, &byte, 1);
  }
  struct ringcast_gpu_info info = {.size = sizeof info};
  must_ringcast(ringcast_gpu_reader_info(opened.reader, &info), "ringcast_gpu_reader_info");
  if (info.pool_frames == 0) no_pool(info.why);
  helper_hear(&helper, &sent, sizeof sent);
  if (sent == 0) read_one(&opened, 0); /* its bytes never come */
  helper_tell(&helper, &byte, 1);
  helper_hear(&helper, &fault, sizeof fault);
  figure_integer("send_at_once", fault.send_at_once);
  figure_result("writer_stream", fault.stream);
  figure_integer("send_later", fault.send_later);
  figure_number("close_ms", fault.close_ms);
  figure_result("reader_stream", await_stream(&opened.gpu));
  figure_integer("reader_check", ringcast_gpu_check(opened.reader));
  if (fault.stream == RC_CU_SUCCESS) failed("nothing was shown: the kernel did not fault");
  if (fault.send_later >= 0) failed("a send on a device that has failed gives %d", fault.send_later);
  if (sent == 0 && ringcast_gpu_check(opened.reader) != -EPIPE) failed("a frame that never came is not missing");
  gpu_fill(&opened.gpu, opened.mine, BYTES, 1); /* the reader's own context goes on */
  if (gpu_differing(&opened.gpu, opened.mine, BYTES, 1) != 0) failed("the reader's own memory is wrong after it");
  close_reader(&opened);
  helper_end(&helper);
}

/* ---- In a reader ------------------------------------------------------------------------------------------------ */

static void read_and_fault(struct helper *me, void *context) {
  struct opened opened = open_reader(me);
  struct ringcast_frame frame;
  struct ringcast_gpu_take take;
  (void)context;
  say_attached(me);
  for (int i = 0; i < WARM_UP; i++) tell_wrong(me, &opened, read_one(&opened, 0));
  must_ringcast(ringcast_gpu_next(opened.reader, LIMIT_NS, &frame), "ringcast_gpu_next");
  must_ringcast(ringcast_gpu_begin(opened.reader, &frame, opened.gpu.stream, &take), "ringcast_gpu_begin");
  gpu_fault(opened.gpu.stream);
  rc_cu_result stream = await_stream(&opened.gpu);
  int ended = ringcast_gpu_end(opened.reader, &take);
  double begun = now_us();
  close_reader(&opened);
  double took = now_us() - begun;
  helper_tell(me, &stream, sizeof stream);
  helper_tell(me, &ended, sizeof ended);
  helper_tell(me, &took, sizeof took);
}

/* The other reader goes on, by the pool. */
static void reader_faults(void) {
  struct job job = {.spin = shared_memory(PAGE)};
  int count = WARM_UP + 1 + rounds(40), ended;
  struct helper helpers[2] = {helper_start(read_all, &job), helper_start(read_and_fault, NULL)};
  struct world world = open_writer(job.spin, 4 << 20, 0);
  rc_cu_result stream;
  double took;
  introduce(&world, helpers, 2, count);
  for (int round = 0; round < WARM_UP; round++) {
    send_one(&world);
    hear_all(helpers, 2);
  }
  if (info_of(&world).pool_frames == 0) no_pool(info_of(&world).why);
  send_one(&world);
  hear_all(helpers, 1);
  helper_hear(&helpers[1], &stream, sizeof stream);
  helper_hear(&helpers[1], &ended, sizeof ended);
  helper_hear(&helpers[1], &took, sizeof took);
  figure_result("reader_stream", stream);
  figure_integer("end", ended);
  figure_number("close_ms", took / 1e3);
  if (stream == RC_CU_SUCCESS) failed("nothing was shown: the kernel did not fault");
  helper_end(&helpers[1]);
  uint64_t before = info_of(&world).pool_frames;
  for (int round = WARM_UP + 1; round < count; round++) {
    send_one(&world);
    hear_all(helpers, 1);
  }
  figure_integer("pool_frames_after_it", (int64_t)(info_of(&world).pool_frames - before));
  if (info_of(&world).pool_frames == before) failed("nothing goes by the pool any more");
  finish(&world, helpers, 1);
}

/* ---- Exit ------------------------------------------------------------------------------------------------------- */

static void read_and_exit(struct helper *me, void *at_once) {
  struct opened opened = open_reader(me);
  char byte = 1;
  say_attached(me);
  for (int i = 0; i < WARM_UP; i++) tell_wrong(me, &opened, read_one(&opened, 0));
  read_one(&opened, 0);
  if (opened.gpu.cuda->stream_query(opened.gpu.stream) != RC_CU_NOT_READY) failed("the stream does not wait");
  helper_tell(me, &byte, 1);
  if (at_once) _exit(0);
  exit(0);
}

static double await_exit(const struct helper *helper, double most_us) {
  double begun = now_us();
  int status;
  while (waitpid(helper->pid, &status, WNOHANG) == 0)
    if (now_us() - begun > most_us) return -1;
    else usleep(1000);
  return (now_us() - begun) / 1e3;
}

/* Whether a process can end while its stream waits for the writer, which is alive. */
static void exit_by(const char *name, bool at_once) {
  char key[64];
  struct helper helper = helper_start(read_and_exit, at_once ? &helper : NULL);
  uint32_t *spin = shared_memory(PAGE);
  struct world world = open_writer(spin, 16 << 20, 0);
  char byte;
  introduce(&world, &helper, 1, 0);
  for (int i = 0; i < WARM_UP; i++) {
    send_one(&world);
    hear_all(&helper, 1);
  }
  if (info_of(&world).pool_frames == 0) no_pool(info_of(&world).why);
  gpu_spin(world.gpu.stream, world.spin_address, BOUND_NS);
  send_one(&world);
  helper_hear(&helper, &byte, 1);
  double took = await_exit(&helper, 5e6);
  __atomic_store_n(spin, 1, __ATOMIC_RELEASE);
  if (took < 0 && await_exit(&helper, 20e6) < 0) failed("%s: the process does not end", name);
  snprintf(key, sizeof key, "%s_ms", name);
  figure_number(key, took);
  snprintf(key, sizeof key, "%s_waited_for_the_writer", name);
  figure_integer(key, took < 0);
  must(world.gpu.cuda->stream_synchronize(world.gpu.stream), "cuStreamSynchronize");
  close_writer(&world);
}
static void exits(void) { exit_by("exit", false); }
static void exits_at_once(void) { exit_by("_exit", true); }

const struct probe_case fault_probes[] = {{"writer_faults", writer_faults, 60, false},
                                          {"reader_faults", reader_faults, 60, false},
                                          {"exit_while_a_stream_waits", exits, 60, false},
                                          {"exit_at_once_while_a_stream_waits", exits_at_once, 60, false},
                                          {NULL, NULL, 0, false}};
