/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of token streams. */
#include "python/extension/codec/token_write.h"

bool rc_py_stream_grow(struct rc_py_encoding *encoding, size_t bytes) {
  size_t room = encoding->stream_room * 2;
  if (room < encoding->stream_bytes + bytes) room = encoding->stream_bytes + bytes;
  if (room < 4096) room = 4096;
  uint8_t *stream = PyMem_Realloc(encoding->stream, room);
  if (!stream) {
    PyErr_NoMemory();
    return false;
  }
  encoding->stream = stream;
  encoding->stream_room = room;
  return true;
}
