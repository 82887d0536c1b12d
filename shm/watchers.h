/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many processes that are watched at once, by one descriptor that becomes readable when any of them ends: an epoll of
 * their pidfds. For those that have none (Linux before 5.3, a sandbox, no descriptor free) a timer in it makes it
 * readable every RC_SLICE_NS, so that whoever polls looks, by /proc. One thread at a time.
 */
#ifndef RC_SHM_WATCHERS_H
#define RC_SHM_WATCHERS_H

#include <stdbool.h>
#include <stdint.h>

struct rc_watchers;

/* Room for `count` of them. -ENOMEM, -EMFILE, -ENFILE. */
int rc_watchers_open(uint32_t count, struct rc_watchers **out);
void rc_watchers_close(struct rc_watchers *watchers); /* NULL is allowed; also in a forked child */

int rc_watchers_fd(const struct rc_watchers *watchers);

/* Watches a process at `index` from now on, in place of another. `tag`, not 0, is the caller's own. */
void rc_watchers_set(struct rc_watchers *watchers, uint32_t index, uint64_t tag, int32_t pid, uint64_t start_bits,
                     uint64_t mask);
void rc_watchers_clear(struct rc_watchers *watchers, uint32_t index);
uint64_t rc_watchers_tag(const struct rc_watchers *watchers, uint32_t index); /* 0: nobody is watched there */

/* Makes the descriptor readable until it is lowered again, for the caller's own reasons. */
void rc_watchers_raise(struct rc_watchers *watchers, bool raised);

/* Whether one has ended; the first of them. One system call as long as none has, if all have pidfds. */
bool rc_watchers_find_ended(struct rc_watchers *watchers, uint32_t *index);

#endif
