/* SPDX-License-Identifier: Apache-2.0 */
/* What the Python extension, which has the library linked in, uses besides the API: not
 * exported. */
#ifndef RC_CHANNEL_READER_H
#define RC_CHANNEL_READER_H

#include "ringcast/ringcast.h"

/* `warm` is called in ringcast_reader_next by the calling thread, shortly before the next message
 * of a regular cadence is due, if the wait spins then and a quarter of its budget is enough for the
 * call. Between two messages the caches forget: `warm` runs, on other data, the code that the
 * message will need. It must not call functions of this reader. */
void rc_reader_warm_by(ringcast_reader *reader, void (*warm)(void *context), void *context);

#endif
