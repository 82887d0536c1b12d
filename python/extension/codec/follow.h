/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a frame that its writer may still be writing (cut-through): nothing of it is read before it is there. */
#ifndef RC_EXTENSION_FOLLOW_H
#define RC_EXTENSION_FOLLOW_H

#include "python/extension/extension.h"

/* A frame that is held, and for how long a call waits for the rest of it. */
struct rc_py_follow {
  ringcast_reader *reader;
  struct ringcast_frame *frame; /* `bytes`: what was reserved, and what was committed once all is there */
  size_t there;                 /* bytes of it */
  bool whole;                   /* nothing is waited for any more */
  int64_t timeout_ns, deadline; /* deadline 0: the wait has not begun */
  int rc;                       /* why the reading was given up, as ringcast_reader_await says, or RC_PY_RAISED; 0 */
};

/* Whether such a failure leaves the frame to be read by a later call. */
bool rc_py_follow_goes_on(int rc);
/* Waits until all of the frame is there. 0, what ringcast_reader_await gave, or RC_PY_RAISED; in `rc`, too. */
int rc_py_follow_whole(struct rc_py_follow *follow);

struct rc_py_decoding;
/* Waits until the first `upto` bytes are there. False: raised. */
bool rc_py_follow_upto(struct rc_py_decoding *decoding, uint64_t upto);
/* Makes all the copies that are listed, each as far as it is there, and waits until the frame is whole. False: raised.
 */
bool rc_py_follow_copies(struct rc_py_decoding *decoding);

#endif
