/* SPDX-License-Identifier: Apache-2.0 */
/* Tap: a look at a ring from outside. */
#ifndef RC_EXTENSION_TAP_H
#define RC_EXTENSION_TAP_H

#include "python/extension/state.h"

extern PyType_Spec rc_py_tap_spec;

#endif
