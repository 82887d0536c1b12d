/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of spill memory that are read while the writer still writes them. */
#include <errno.h>

#include "channel/channel.h"
#include "shm/error.h"

struct follow_wait {
  ringcast_reader *reader;
  uint64_t position, upto;
  struct rc_ring_frame found;
};

static int poll_progress(void *context) {
  struct follow_wait *wait = context;
  struct rc_ring_reader *ring = &wait->reader->ring;
  /* First: all that came, came before the store in close, with which this pairs. */
  bool closed = rc_load_acquire(&ring->ring.control->closed) != 0; /* C1 <- C0 */
  int result = rc_ring_look(ring, wait->position, &wait->found);
  RC_POINT(P2_DONE);
  if (result != 0) return result;
  if (wait->found.whole || wait->found.there >= wait->upto) return 0;
  return closed ? -EPIPE : -EAGAIN;
}

static int check_followed_writer(void *context) {
  struct follow_wait *wait = context;
  if (rc_watch_is_alive(&wait->reader->writer)) return -EAGAIN;
  rc_store_release(&wait->reader->ring.ring.control->closed, 1); /* as in check_writer */
  return poll_progress(wait);
}

static struct rc_watch *watch_followed_writer(void *context) {
  return &((struct follow_wait *)context)->reader->writer;
}

static int fail_to_follow(const ringcast_reader *reader, const struct follow_wait *wait, int code) {
  unsigned long long position = wait->position, there = wait->found.there;
  int writer = reader->segment.writer.pid;
  switch (code) {
  case -EDEADLK: return rc_fail_shared();
  case -EAGAIN: return rc_fail_as(code, "so much of the frame is not there yet");
  case -ENOBUFS: return code; /* of arm, with its text */
  case -EINTR: return rc_fail_as(code, "a signal arrived while waiting for more of a frame");
  case -ECANCELED: return rc_fail_as(code, "the wait for more of a frame was cancelled");
  case -EINVAL: return rc_fail_not_held(wait->position);
  case -EPIPE:
    return rc_fail(code, "the writer (pid %d) is gone, %llu bytes into the frame: release it", writer, there);
  case -ECONNABORTED: return rc_fail(code, "the writer (pid %d) has taken the frame back: release it", writer);
  case -EPROTO:
    return rc_fail(code, "the frame at position %llu is damaged: the writer (pid %d) has written what it must not",
                   position, writer);
  case -ESTALE: return rc_fail_evicted();
  default:
    return rc_fail(code, "only %llu bytes of the frame are there; the writer (pid %d) is %s", there, writer,
                   rc_process_in_words(&reader->segment.writer));
  }
}

int ringcast_reader_await(ringcast_reader *reader, struct ringcast_frame *frame, size_t upto, int64_t timeout_ns,
                          size_t *there) {
  int result = rc_check_wait(reader->forks, timeout_ns);
  if (result != 0) return result;
  struct follow_wait wait = {.reader = reader, .position = frame->position, .upto = upto};
  result = poll_progress(&wait);
  if (result == -EAGAIN) {
    const struct rc_wait how = {.poll = poll_progress,
                                .check = check_followed_writer,
                                .whom = watch_followed_writer,
                                .context = &wait,
                                .sole = true};
    struct rc_slot *slot = &reader->ring.ring.control->slots[reader->ring.slot];
    result = rc_wait_counted(&reader->waiter, &how, timeout_ns, &slot->counts, &slot->waits);
    if (result == -EAGAIN && reader->notifier) result = rc_reader_arm(reader, poll_progress, &wait);
  }
  /* It was lent with its largest length: a longer one, or one elsewhere, was not made sure of. */
  if (result == 0 && (wait.found.data != frame->data || wait.found.bytes > frame->bytes)) result = -EPROTO;
  if (result != 0) return fail_to_follow(reader, &wait, result);
  frame->bytes = wait.found.bytes;
  *there = wait.found.there;
  return 0;
}

int ringcast_reader_set_cut_through(ringcast_reader *reader, int on) {
  int result = rc_check_fork(reader->forks);
  if (result != 0 || reader->ring.follows == (on != 0)) return result;
  reader->ring.follows = on != 0;
  rc_store_relaxed(&reader->ring.own->follows, on != 0); /* relaxed: the count's fences order it */
  rc_ring_count_followers(&reader->ring.ring);
  return 0;
}
