/* SPDX-License-Identifier: Apache-2.0 */
/* From a frame to an object, for callers that receive, inspect or unpack. */
#ifndef RC_EXTENSION_DECODE_H
#define RC_EXTENSION_DECODE_H

#include "python/extension/codec/decoding.h"

struct rc_py_decode_options {
  const ringcast_reader *reader; /* checked before code runs; NULL: the frame can't change */
  /* NULL: tensors of a device arrive on the CPU, and no copy goes past the cache, as nobody says
   * which frames lie in spill memory. */
  struct rc_py_receiver *receiver;
  PyObject **classes;      /* classes received: the cache of classes.c */
  bool allow_pickle;       /* false: a frame with a pickle is refused */
  struct rc_py_hold *hold; /* of arrays that stay in the frame; NULL: arrays are copied */
  const struct rc_py_selection *selection; /* of a dict, only the selected entries; NULL: all */
  uint64_t *arrays;                        /* set to the bytes of the large arrays; may be NULL */
  bool is_last;        /* no further read of the frame's device tensors: RINGCAST_GPU_LAST */
  bool *device_failed; /* set to whether the device's part of the work raised; may be NULL */
};
/* The object in a frame of either kind; NULL: raised. `tag` is 0 for bytes. If `reader` is evicted
 * meanwhile, the frame may have been overwritten: nothing more is unpickled, and the caller drops
 * the object or the exception. */
PyObject *rc_py_decode(struct rc_py_state *state, const struct ringcast_frame *frame,
                       const struct rc_py_decode_options *options, uint32_t *tag);

#endif
