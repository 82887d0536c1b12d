/* SPDX-License-Identifier: Apache-2.0 */
/* The death of a writer of device tensors, while a reader's stream waits for what will never come. That of a reader is
 * a scenario: tests/gpu_scenarios. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/ends.h"
#include "tests/gpu/run.h"

/* ---- The writer ------------------------------------------------------------------------------------------------- */

struct doomed {
  uint32_t *spin;
  bool forks, has_much;
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
  char byte = 1;
  if (doomed->has_much) gpu_alloc(&world.gpu, is_little() ? 64 << 20 : gpu_free_bytes(&world.gpu) / 3);
  tell_handle(&world, me);
  helper_hear(me, &byte, 1); /* attached */
  for (int i = 0; i < 4; i++) {
    if (i == 3 && info_of(&world).way == RINGCAST_GPU_WAY_POOL)
      gpu_spin(world.gpu.stream, world.spin_address, BOUND_NS);
    send_one(&world);
    if (i < 3) helper_hear(me, &byte, 1);
  }
  pid_t child = doomed->forks ? have_child(doomed) : 0;
  helper_tell(me, &child, sizeof child);
  pause();
}

/* The reader's stream waits for what will never come, also while a child has all that was the writer's. */
static void writer_dies(bool forks, bool has_much) {
  struct doomed doomed = {.spin = shared_memory(PAGE), .forks = forks, .has_much = has_much};
  pid_t child;
  if (pipe(doomed.until) != 0) failed("no pipe: %s", strerror(errno));
  struct helper helper = helper_start(write_and_hang, &doomed);
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* the child becomes this process's own */
  struct opened opened = open_reader(&helper);
  struct ringcast_gpu_info info = {.size = sizeof info};
  char byte = 1;
  gpu_load_spin(); /* if it can't be, then neither by the writer, which would end */
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
static void writer_dies_alone(void) { writer_dies(false, false); }
static void writer_dies_with_a_child(void) { writer_dies(true, false); }
static void writer_dies_with_much(void) { writer_dies(false, true); } /* its death is seen when that is given back */

const struct probe_case death_probes[] = {{"writer_dies_while_a_stream_waits", writer_dies_alone, 60, false},
                                          {"writer_dies_with_much_memory", writer_dies_with_much, 90, false},
                                          {"writer_dies_and_leaves_a_child", writer_dies_with_a_child, 60, false},
                                          {NULL, NULL, 0, false}};
