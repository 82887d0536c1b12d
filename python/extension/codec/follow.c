/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Following a frame while it is written.
 *
 * A large frame takes about as long to write as to read, so the reader does not wait for its end: it reads an entry as
 * soon as that is there, and copies its data behind the writer. Data stands in the order of the entries. Where the
 * decoder needs what is further on, all the copies that are listed by then are made first, as they come: to wait and to
 * copy afterwards would take as long as if nobody had followed.
 *
 * What is waited for is waited for without the GIL, which a writer in another thread may need to go on. If the frame
 * does not come to its end in time, whatever was made of it is dropped; the frame stays with its Reader.
 */
#include "python/extension/codec/follow.h"

#include "python/extension/codec/copy.h"
#include "python/extension/codec/decode.h"

/* As often a wait looks whether Ctrl-C was pressed. */
#define SLICE_NS INT64_C(50000000)
/* The frame is there as a whole, and ends before what was asked for. */
#define RC_SHORT (-ENODATA)

bool rc_py_follow_goes_on(int rc) {
  return rc == -EAGAIN || rc == -ETIMEDOUT || rc == -EINTR || rc == -ECANCELED || rc == -ENOBUFS || rc == -ECHILD ||
         rc == -EDEADLK || rc == RC_PY_RAISED;
}

/* SIZE_MAX for `upto`: all of it, however much that is. `until`: as long as it may take; 0: it must be there. */
static int await(struct rc_py_follow *follow, size_t upto, int64_t until) {
  if (upto <= follow->there || (upto == SIZE_MAX && follow->whole)) return 0;
  if (follow->whole) return RC_SHORT;
  int64_t left = until ? until - rc_py_now_ns() : 0;
  if (until && left <= 0) left = 1; /* a last look, for the sentence that says why */
  int rc = ringcast_reader_await(follow->reader, follow->frame, upto, left, &follow->there);
  if (rc < 0) return rc;
  /* It gives less than was asked for only of a frame that is whole. */
  follow->whole = upto == SIZE_MAX || follow->there < upto;
  return upto == SIZE_MAX || upto <= follow->there ? 0 : RC_SHORT;
}

/* Goes on with the copies, and then waits for `upto`. As await. */
static int copy_more(struct rc_py_decoding *decoding, size_t upto, int64_t until) {
  struct rc_py_follow *follow = decoding->follow;
  const uint8_t *base = follow->frame->data;
  for (; decoding->copied < decoding->copy_count; decoding->copied++, decoding->copied_bytes = 0) {
    const struct rc_py_copy *copy = &decoding->copies[decoding->copied];
    const uint8_t *from = copy->from;
    while (decoding->copied_bytes < copy->bytes) {
      size_t done = decoding->copied_bytes, at = (size_t)(from - base) + done, more = copy->bytes - done;
      if (follow->there <= at) {
        int rc = await(follow, at + 1, until);
        if (rc < 0) return rc;
      }
      if (more > follow->there - at) more = follow->there - at;
      rc_py_copy_piece((uint8_t *)copy->to + done, from + done, more, copy->bytes);
      decoding->copied_bytes += more;
    }
  }
  return await(follow, upto, until);
}

/* Until when one slice of a wait lasts. 0: it is to wait for nothing. */
static int64_t slice_end(struct rc_py_follow *follow) {
  if (follow->timeout_ns == 0) return 0;
  int64_t now = rc_py_now_ns(), end = now + SLICE_NS;
  if (follow->timeout_ns < 0) return end;
  if (follow->deadline == 0) follow->deadline = now + follow->timeout_ns;
  return follow->deadline < end ? follow->deadline : end;
}

static bool is_over(const struct rc_py_follow *follow) {
  return follow->timeout_ns == 0 || (follow->timeout_ns > 0 && follow->deadline <= rc_py_now_ns());
}

/* copy_more for as long as the call has time, with a look at signals now and then. */
static int go_on(struct rc_py_decoding *decoding, size_t upto) {
  struct rc_py_follow *follow = decoding->follow;
  if (decoding->copied == decoding->copy_count) { /* to hand the GIL over and back may take long */
    int rc = await(follow, upto, 0);
    if (rc != -EAGAIN) return rc;
  }
  for (;;) {
    int rc;
    int64_t until = slice_end(follow);
    Py_BEGIN_ALLOW_THREADS rc = copy_more(decoding, upto, until);
    Py_END_ALLOW_THREADS if (rc != -EAGAIN && rc != -ETIMEDOUT && rc != -EINTR) return rc;
    if (PyErr_CheckSignals() < 0) return RC_PY_RAISED;
    if (is_over(follow)) return rc == -EINTR ? -ETIMEDOUT : rc;
  }
}

int rc_py_follow_whole(struct rc_py_follow *follow) {
  struct rc_py_decoding nothing = {.follow = follow};
  return follow->rc = go_on(&nothing, SIZE_MAX);
}

static bool raise(struct rc_py_decoding *decoding, int rc) {
  if (rc == RC_SHORT) return rc_py_damaged(decoding, "it is shorter than it says");
  decoding->follow->rc = rc;
  rc_py_raise(decoding->state, rc);
  return false;
}

bool rc_py_follow_upto(struct rc_py_decoding *decoding, uint64_t upto) {
  if (upto <= decoding->follow->there) return true;
  int rc = go_on(decoding, upto);
  return rc == 0 || raise(decoding, rc);
}

bool rc_py_follow_copies(struct rc_py_decoding *decoding) {
  int rc = go_on(decoding, SIZE_MAX);
  return rc == 0 || raise(decoding, rc);
}
