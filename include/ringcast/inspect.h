/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding rings by name, for tools and for processes that come late.
 *
 * A ring has the name that its writer gave in options.name; names need not be unique. Only rings of the same user, in
 * the same PID namespace, whose writers live and may be looked into (/proc) are found: the rings that the caller can
 * attach to. Any thread. Each call looks through /proc: about 10 us for each process of the machine.
 */
#ifndef RINGCAST_INSPECT_H
#define RINGCAST_INSPECT_H

#include "ringcast/ringcast.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One ring. Set `size` of the first element (ringcast.h, Sizes). */
struct ringcast_ring {
  uint32_t size;
  int32_t pid; /* of the writer */
  char name[RINGCAST_NAME_BYTES];
  char handle[RINGCAST_HANDLE_BYTES]; /* empty: the ring's writer uses an incompatible release of ringcast */
};

/* Fills up to `capacity` rings, sorted by name and then pid, and returns the number of rings found. -EINVAL, -ENOMEM,
 * -EMFILE, -EIO (no /proc). */
RINGCAST_API int ringcast_rings(struct ringcast_ring *rings, uint32_t capacity);

/* The handle of one ring. `ring` is a name, NAME@PID, @PID (the process has one ring) or a handle, which is copied.
 * -ENOENT: there is no such ring. -ENOTUNIQ: there are several; the error text lists some. -EINVAL: `ring` is none of
 * these. -EPROTO: the writer uses an incompatible release. Others as ringcast_rings. */
RINGCAST_API int ringcast_find(const char *ring, char handle[RINGCAST_HANDLE_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
