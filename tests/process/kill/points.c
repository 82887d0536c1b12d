/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <unistd.h>

#include "tests/process/kill/kill.h"

struct party *self;

/* Killed, it does not return; stopped, it does, some time later. The time is that just before. */
void strike_self(int signal) {
  uint64_t now = now_ns();
  bool writer = self == &board->participants[WRITER];
  if (signal == SIGKILL) atomic_store(writer ? &board->writer_struck : &board->reader_struck, now);
  atomic_store(&self->struck_ns, now);
  kill(getpid(), signal);
}

/* The library's code, compiled with RINGCAST_POINTS, calls this. Relaxed: counts, and an order that
 * may come late. */
void rc_test_point(unsigned point) {
  if (!self) return;
  atomic_fetch_add_explicit(&board->passed[point], 1, memory_order_relaxed);
  if (atomic_load_explicit(&self->armed, memory_order_relaxed) != (uint32_t)point + 1) return;
  if (atomic_load_explicit(&self->passes, memory_order_relaxed) > 0) {
    atomic_fetch_sub_explicit(&self->passes, 1, memory_order_relaxed);
    return;
  }
  atomic_store(&self->armed, 0);
  strike_self(atomic_load(&self->signal));
}
