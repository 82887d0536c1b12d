/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at rings from outside, for tools and for processes that come late: finding rings by
 * name, taps, and texts that other processes wrote.
 */
#ifndef RINGCAST_INSPECT_H
#define RINGCAST_INSPECT_H

#include "ringcast/ringcast.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Names ----------------------------------------------------------------------------------- */

/* A ring has the name that the writer gave in options.name; names need not be unique. The calls
 * find the rings that the caller can attach to: of the same user, in the same PID namespace, with a
 * living writer that /proc shows. Any thread. Each call looks through /proc: about 10 us for each
 * process of the machine. */

/* One ring. Set `size` of the first element (ringcast.h, Sizes). */
struct ringcast_ring {
  uint32_t size;
  int32_t pid; /* of the writer */
  char name[RINGCAST_NAME_BYTES];
  /* Empty: the ring's writer uses an incompatible release of ringcast. */
  char handle[RINGCAST_HANDLE_BYTES];
};

/* Fills up to `capacity` rings, sorted by name and then pid, and returns the number of rings found.
 * -EINVAL, -ENOMEM, -EMFILE, -EIO (no /proc). */
RINGCAST_API int ringcast_rings(struct ringcast_ring *rings, uint32_t capacity);

/* The handle of one ring. `ring` is a name, NAME@PID, @PID (the process has one ring) or a handle,
 * which is copied. -ENOENT: there is no such ring. -ENOTUNIQ: there are several; the error text
 * lists some. -EINVAL: `ring` is none of these. -EPROTO: the writer uses an incompatible release.
 * Others as ringcast_rings. */
RINGCAST_API int ringcast_find(const char *ring, char handle[RINGCAST_HANDLE_BYTES]);

/* ---- Tap ------------------------------------------------------------------------------------- */

/* A tap copies frames and takes no slot: the writer never waits for it, and never wakes it; a tap
 * that waits looks every 2 ms at the latest. A tap that is too slow loses frames and counts the
 * loss. It is never more than a ring behind, and loses nothing while less than half a ring behind;
 * except frames in spill memory, which may be lost once all readers have released them. A tap that
 * loses more than a fifth of what is sent rests after a loss, for a second at most: then there is
 * no frame for it. */
typedef struct ringcast_tap ringcast_tap;

/* Attaches a tap to the ring that `handle` names; the tap's first frame is the next frame to be
 * committed. Errors as ringcast_reader_attach, except -EUSERS and -ENODATA: a tap takes no slot.
 * Any thread. Blocks only in the kernel, to map the memory. */
RINGCAST_API int ringcast_tap_attach(const char *handle, ringcast_tap **out);
RINGCAST_API void ringcast_tap_close(ringcast_tap *tap);

/* Copies the next frame; the copy is valid until the next call on this tap. Blocks up to the
 * timeout if there is none. -EAGAIN, -ETIMEDOUT, -EINTR, -EPIPE, -EPROTO, -ENOMEM, -ECHILD. */
RINGCAST_API int ringcast_tap_next(ringcast_tap *tap, int64_t timeout_ns,
                                   struct ringcast_frame *out);

/* Bytes of the ring (headers and rounding included) that the writer overwrote before this tap could
 * copy them, and the number of gaps. -ECHILD. */
RINGCAST_API int ringcast_tap_lost(const ringcast_tap *tap, uint64_t *bytes, uint64_t *gaps);

/* As ringcast_writer_info, _stats and _peers show the ring to the writer itself. */
RINGCAST_API int ringcast_tap_info(const ringcast_tap *tap, struct ringcast_info *out);
RINGCAST_API int ringcast_tap_stats(const ringcast_tap *tap, struct ringcast_stats *out);
RINGCAST_API int ringcast_tap_peers(const ringcast_tap *tap, struct ringcast_peer *peers,
                                    uint32_t capacity);

/* ---- Foreign text ---------------------------------------------------------------------------- */

/* Copies `length` bytes of a text that another process wrote to `out`, fit for a terminal, a log or
 * an error. A byte that is no valid UTF-8 becomes \xNN. So does each byte of a character that is a
 * control (C0, DEL, C1), that changes the direction of writing, that ends a line, or that has no
 * width. The copy ends before the first character, or escape, for which `out` has no room: 4 *
 * length + 1 bytes are always enough. Returns the length of the copy, without the zero that ends
 * it; with 0 bytes nothing is written. The copy of a copy is the same. Any thread. Wait-free. */
RINGCAST_API size_t ringcast_printable(const char *text, size_t length, char *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
