/* SPDX-License-Identifier: Apache-2.0 */
/* For the preset coverage, which puts this file before each source: tells counted.c how gcov's
 * counts are written. */
extern void rc_counted_add(void (*dump)(void), void (*reset)(void)) __attribute__((weak));
extern void __gcov_dump(void), __gcov_reset(void);

__attribute__((constructor)) static void rc_counted_begin(void) {
  if (rc_counted_add) rc_counted_add(__gcov_dump, __gcov_reset);
}
