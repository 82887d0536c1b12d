/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence behind ringcast_last_error(). */
#ifndef RC_SHM_ERROR_H
#define RC_SHM_ERROR_H

/* Keeps the sentence for this thread and returns `code`, so that a failure reads: return rc_fail(-EINVAL, "..."). The
 * arguments may include rc_error_text() itself. */
__attribute__((format(printf, 2, 3))) int rc_fail(int code, const char *format, ...);

/* The same for a sentence that needs no filling in, and for paths that must not cost more than a store. `sentence` must
 * last. */
int rc_fail_as(int code, const char *sentence);

const char *rc_error_text(void);

#endif
