/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of a thread's stack. */
#ifndef RC_EXTENSION_STACK_H
#define RC_EXTENSION_STACK_H

#include "python/extension/extension.h"

/* So deep a nested value is walked without a look at the stack. */
#define RC_PY_DEPTH_UNSEEN 64
/* Whether the thread's stack has room for one more level, and for `more` bytes. `floor`: a cache
 * for the walk, 0 at first. */
bool rc_py_stack_has_room(uintptr_t *floor, size_t more);

#endif
