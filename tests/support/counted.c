/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcov writes its counts when a process ends by exit(). This library, loaded first by LD_PRELOAD,
 * has a process that ends by _exit() write them too: a forked reader of the tests in C, a child of
 * Python's multiprocessing. Each program and each shared library has counts of its own, and names
 * the functions that write them (counted.h). A process that a signal kills loses its counts.
 */
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void function(void);
void rc_counted_add(function *dump, function *reset);

static struct counts { function *dump, *reset; } all[16];

void rc_counted_add(function *dump, function *reset) {
  size_t i = 0;
  while (i < sizeof all / sizeof *all && all[i].dump && all[i].dump != dump) i++;
  if (i < sizeof all / sizeof *all) all[i] = (struct counts){dump, reset};
}

/* The reset: a child of vfork() that ends here shares its memory with its parent, which goes on
 * counting. */
void _exit(int status) {
  for (size_t i = 0; i < sizeof all / sizeof *all && all[i].dump; i++) {
    all[i].dump();
    all[i].reset();
  }
  for (;;) syscall(SYS_exit_group, status);
}
