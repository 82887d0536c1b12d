/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing a large frame piece by piece while it is written, so that the readers copy behind the writer. */
#ifndef RC_EXTENSION_PIECES_H
#define RC_EXTENSION_PIECES_H

#include "python/extension/extension.h"

struct rc_py_pieces {
  ringcast_writer *writer; /* NULL: the frame is published as a whole, by its commit */
  const uint8_t *base;
  size_t piece, published;
  uint16_t kind;
};

/* A frame in memory of `writer` (NULL: in memory of one's own). What comes in the ring needs no pieces. */
void rc_py_pieces_begin(struct rc_py_pieces *pieces, const struct rc_py_writer *writer,
                        const struct ringcast_span *span, uint16_t kind);
/* All before `end`, which lies in the frame, is written. */
void rc_py_pieces_tell(struct rc_py_pieces *pieces, const void *end);
/* The same, to be told if it is worth it. */
void rc_py_pieces_reach(struct rc_py_pieces *pieces, const void *end);
/* Copies to the frame, where all before `to` is written, and tells as it goes. Needs no GIL. */
void rc_py_pieces_copy(struct rc_py_pieces *pieces, void *to, const void *from, size_t bytes);

#endif
