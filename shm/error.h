/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence behind ringcast_last_error(). */
#ifndef RC_SHM_ERROR_H
#define RC_SHM_ERROR_H

/* Keeps the sentence for this thread and returns `code`, so a failure reads: return
 * rc_fail(-EINVAL, "..."). The arguments may include rc_error_text(). */
__attribute__((format(printf, 2, 3))) int rc_fail(int code, const char *format, ...);

/* As rc_fail, for a constant sentence: two stores, for hot paths. `sentence` must live for ever. */
int rc_fail_as(int code, const char *sentence);

const char *rc_error_text(void);

#endif
