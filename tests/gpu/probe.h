/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes of a real GPU: what no fake can show. Each runs in a process of its own, with a time limit, and leaves one
 * line of JSON: {"probe", "result", "why", "figures"}. A probe that never returns, or dies, is a line as well.
 *
 * results: "ok"; "failed", "crashed", "timeout", which make the program fail, but of a probe that only measures; and
 * "skipped". That nothing goes by the pool is a failure, unless GPU_PROBE_INLINE has the reason, of doctor, why not.
 *
 * A process that has used CUDA can't be forked: a probe starts its helpers first.
 */
#ifndef TESTS_GPU_PROBE_H
#define TESTS_GPU_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/driver.h"
#include "gpu/words.h"
#include "tests/support/cuda_more.h"

struct probe_case {
  const char *name;
  void (*run)(void);
  unsigned limit_s;
  bool only_measures; /* any answer will do, a crash too */
};
extern const struct probe_case word_probes[], memory_probes[], ipc_probes[], copy_probes[], broadcast_probes[],
    death_probes[], capture_probes[], attribute_probes[], cost_probes[], fault_probes[]; /* to NULL */

/* ---- What a probe says ------------------------------------------------------------------------------------------ */

void figure_integer(const char *key, int64_t value);
void figure_number(const char *key, double value);
void figure_text(const char *key, const char *value);
void figure_result(const char *key, rc_cu_result result); /* by its name */
/* "<key>_p50" and "<key>_max"; sorts them. */
void figure_spread(const char *key, double *values, size_t count);

/* Each ends the probe; of a helper, the probe that has started it, which then says so. */
__attribute__((noreturn, format(printf, 1, 2))) void failed(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void skipped(const char *format, ...);
/* Nothing went by the pool, which is what the probe is about. */
__attribute__((noreturn)) void no_pool(const char *why);
void must(rc_cu_result result, const char *what);
void must_ringcast(int result, const char *what);

/* ---- Helpers: other processes ----------------------------------------------------------------------------------- */

struct helper {
  pid_t pid;
  int to, from; /* pipes */
  char *words;  /* what it ended with: 'f' or 's' for failed or skipped, and why */
};
/* `body` is called in the new process, with its own ends; it may return. */
struct helper helper_start(void (*body)(struct helper *me, void *context), void *context);
void helper_tell(struct helper *helper, const void *data, size_t bytes);
/* Waits for it. A helper that has failed, or ended, fails the probe. */
void helper_hear(struct helper *helper, void *data, size_t bytes);
void helper_kill(struct helper *helper);
void helper_end(struct helper *helper); /* waits until it has ended, well */

/* ---- The device ------------------------------------------------------------------------------------------------- */

struct gpu {
  const struct rc_cuda *cuda;
  rc_cu_device device;
  rc_cu_context context;
  rc_cu_stream stream; /* one that does not wait for the default one */
};
struct gpu gpu_open(void); /* device 0, its context current; without a GPU the probe is skipped */
/* A function that is in no table; NULL if it is not there. */
void *gpu_symbol(const char *symbol);

/* A kernel that runs until the word is not 0, or so many nanoseconds have gone. Where the driver can't translate it the
 * probe is skipped. */
void gpu_load_spin(void); /* now, and not with the first */
void gpu_spin(rc_cu_stream stream, rc_cu_ptr word, uint64_t bound_ns);
/* A kernel that stores to an address that is none: the context has failed then, for good. */
void gpu_fault(rc_cu_stream stream);

/* Memory that children share; registered is a thing of each process. */
void *shared_memory(size_t bytes);
rc_cu_ptr gpu_register(struct gpu *gpu, void *memory, size_t bytes);

/* Fills device memory with a pattern, and says how many bytes differ from it. Both wait. */
void gpu_fill(struct gpu *gpu, rc_cu_ptr memory, size_t bytes, unsigned seed);
size_t gpu_differing(struct gpu *gpu, rc_cu_ptr memory, size_t bytes, unsigned seed);
/* Whether it holds the pattern, as a figure: 0 or 1, or what the driver says to the copy. */
void figure_shows(const char *key, struct gpu *gpu, rc_cu_ptr memory, size_t bytes, unsigned seed);
size_t gpu_free_bytes(struct gpu *gpu);
rc_cu_ptr gpu_alloc(struct gpu *gpu, size_t bytes);

double now_us(void);
/* Calls `body` after so many milliseconds, in a thread: a bound for what may otherwise never end. */
struct later *later(unsigned ms, void (*body)(void *context), void *context);
bool later_cancel(struct later *later); /* whether it had been called by then */

#endif
