/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3, whole in its header: nothing is linked. */
#ifndef TOOLS_RECORDING_HASH_H
#define TOOLS_RECORDING_HASH_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#endif
