/* SPDX-License-Identifier: Apache-2.0 */
#include "python/extension/codec/pieces.h"

#include "python/extension/codec/copy.h"

/* A piece is how far readers stay behind, and each costs a wake-up where they sleep: as many as PIECES, unless these
 * were smaller than LEAST or larger than MOST; and no more than MOST_PIECES. */
enum { PIECE_LEAST = 256 << 10, PIECE_MOST = 2 << 20, PIECES = 8, MOST_PIECES = 64, LINE = 64 };

static size_t piece_of(size_t bytes) {
  size_t piece = bytes / PIECES;
  if (piece < PIECE_LEAST) piece = PIECE_LEAST;
  if (piece > PIECE_MOST) piece = PIECE_MOST;
  if (piece < bytes / MOST_PIECES) piece = bytes / MOST_PIECES;
  return piece & ~(size_t)(LINE - 1);
}

void rc_py_pieces_begin(struct rc_py_pieces *pieces, const struct rc_py_writer *writer,
                        const struct ringcast_span *span, uint16_t kind) {
  *pieces = (struct rc_py_pieces){.base = span->data, .kind = kind};
  if (!writer || span->bytes <= writer->info.ring_frame) return;
  pieces->writer = writer->writer;
  pieces->piece = piece_of(span->bytes);
}

void rc_py_pieces_tell(struct rc_py_pieces *pieces, const void *end) {
  if (!pieces->writer) return;
  size_t upto = (size_t)((const uint8_t *)end - pieces->base);
  /* It fails of what the commit fails of, too. */
  ringcast_writer_publish(pieces->writer, upto, pieces->kind);
  pieces->published = upto;
}

void rc_py_pieces_reach(struct rc_py_pieces *pieces, const void *end) {
  size_t upto = (size_t)((const uint8_t *)end - pieces->base);
  if (pieces->writer && upto - pieces->published >= pieces->piece) rc_py_pieces_tell(pieces, end);
}

void rc_py_pieces_copy(struct rc_py_pieces *pieces, void *to, const void *from, size_t bytes) {
  const size_t whole = bytes;
  uint8_t *at = to;
  const uint8_t *source = from;
  while (bytes > 0) {
    size_t more = bytes;
    if (pieces->writer) {
      rc_py_pieces_reach(pieces, at);
      size_t left = pieces->piece - ((size_t)(at - pieces->base) - pieces->published);
      if (left < more) more = left;
    }
    if (pieces->writer) rc_py_copy_piece(at, source, more, whole);
    else memcpy(at, source, more);
    at += more;
    source += more;
    bytes -= more;
  }
  rc_py_pieces_reach(pieces, at);
}
