/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer's public calls, and an honest reader's, while a peer that is attached stores what it
 * likes in the control segment. Whatever it stores, every call returns, with a result that the
 * header names; what is lent lies in the ring or in its spill memory; nothing stays behind.
 * fuzz_ring holds the algorithms below to more than that.
 */
#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

#include "shm/os.h"
#include "tests/fuzz/fuzz_channel.h"

enum { SLOTS = 4, READERS = 2 };

static struct rc_process self;

static struct channel {
  ringcast_writer *writer;
  struct ringcast_span span; /* the open reservation's */
  bool open;
  bool harmed;
  ringcast_reader *readers[READERS];
  struct ringcast_frame frames[READERS];
  bool holds[READERS];
} channel;

static int read_no_file(const char *path, char *text, size_t bytes) {
  (void)path, (void)text, (void)bytes;
  return -ENOENT;
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  require(rc_process_self(&self) == 0);
  rc_os.read_file = read_no_file; /* how much memory there is was most of the work */
  return 0;
}

static struct rc_control *control(void) { return rc_segment_control(&channel.writer->segment); }

/* ---- The writer ------------------------------------------------------------------------------ */

static void must_be_writable(const struct ringcast_span *span) {
  must_lie_within(&channel.writer->segment, span->data, span->bytes);
  if (span->bytes != 0) ((uint8_t *)span->data)[0] = ((uint8_t *)span->data)[span->bytes - 1] = 1;
}

static void reserve(struct input *input, bool grow) {
  size_t bytes = take(input, 2);
  int result = grow ? ringcast_writer_grow(channel.writer, bytes, 0, &channel.span)
                    : ringcast_writer_reserve(channel.writer, bytes, 0, &channel.span);
  allowed(result, -EAGAIN, -EBUSY, -EPROTO, -EOWNERDEAD, -ETIMEDOUT, -EMSGSIZE, -EINVAL, -ENOMEM);
  require(result != -EINVAL || grow);
  if (result != 0) return;
  channel.open = true;
  must_be_writable(&channel.span);
}

static void commit(struct input *input) {
  size_t bytes = take(input, 2);
  int result = ringcast_writer_commit(channel.writer, bytes, RINGCAST_KIND_BYTES);
  allowed(result, -EINVAL);
  if (result == 0) channel.open = false;
}

static void send(struct input *input) {
  static const uint8_t zeros[65536];
  size_t bytes = take(input, 2);
  if (channel.open) return;
  if (channel.harmed) fuzzed_frames++;
  allowed(ringcast_writer_send(channel.writer, zeros, bytes >> (bytes & 7), RINGCAST_KIND_BYTES, 0),
          -EAGAIN, -EPROTO, -EOWNERDEAD, -ETIMEDOUT, -EMSGSIZE, -ENOMEM);
}

static void look_around(uint64_t how) {
  struct ringcast_peer peers[SLOTS] = {{.size = sizeof *peers}};
  struct ringcast_stats stats = {.size = sizeof stats};
  struct ringcast_info info = {.size = sizeof info};
  int count;
  switch (how % 6) {
  case 0:
    count = ringcast_writer_peers(channel.writer, peers, SLOTS);
    require(count >= 0 && count <= SLOTS);
    for (int i = 0; i < count; i++)
      require(peers[i].slot < SLOTS && memchr(peers[i].name, 0, sizeof peers[i].name) &&
              peers[i].state <= RINGCAST_PEER_EVICTED);
    break;
  case 1:
    count = ringcast_writer_slowest(channel.writer, peers);
    require(count == 0 || count == 1);
    break;
  case 2:
    require(ringcast_writer_stats(channel.writer, &stats) == 0 &&
            ringcast_writer_info(channel.writer, &info) == 0);
    require(info.capacity == channel.writer->segment.capacity &&
            info.tail == channel.writer->ring.tail);
    break;
  case 3:
    count = ringcast_writer_wait_readers(channel.writer, how / 8 % (SLOTS + 1), 0);
    require(count >= 0 || count == -EAGAIN || count == -ETIMEDOUT);
    break;
  case 4: require(ringcast_writer_fd(channel.writer) >= 0); break;
  default:
    count = ringcast_writer_check(channel.writer, peers);
    require(count == 0 || count == 1);
    break;
  }
}

/* ---- The readers ----------------------------------------------------------------------------- */

static void attach(int which, uint64_t how) {
  struct ringcast_reader_options options = {.size = sizeof options,
                                            .flags = how & 1 ? RINGCAST_READER_RETAIN : 0,
                                            .name = how & 2 ? "rank 3" : NULL};
  if (channel.readers[which]) return;
  int result = ringcast_reader_attach_ex(ringcast_writer_handle(channel.writer), &options,
                                         &channel.readers[which]);
  allowed(result, -EUSERS, -EPROTO, -ENOENT);
  channel.holds[which] = false;
}

static void detach(int which) {
  ringcast_reader_close(channel.readers[which]);
  channel.readers[which] = NULL;
}

static void next(int which) {
  ringcast_reader *reader = channel.readers[which];
  struct ringcast_frame *frame = &channel.frames[which];
  if (!reader || channel.holds[which]) return;
  if (channel.harmed) fuzzed_frames++;
  int result = ringcast_reader_next(reader, 0, frame);
  allowed(result, -EAGAIN, -EPIPE, -EPROTO, -ESTALE);
  if (result != 0) return;
  channel.holds[which] = true;
  must_lie_within(&reader->segment, frame->data, frame->bytes);
  if (frame->bytes != 0) touch_all((const uint8_t *)frame->data + frame->bytes - 1, 1);
}

static void release(int which) {
  ringcast_reader *reader = channel.readers[which];
  if (!reader || !channel.holds[which]) return;
  allowed(ringcast_reader_check(reader), -ESTALE);
  allowed(ringcast_reader_release(reader, &channel.frames[which]), -ESTALE);
  channel.holds[which] = false;
}

/* ---- The peer -------------------------------------------------------------------------------- */

static uint64_t value_of(struct input *input, uint64_t before) {
  uint64_t how = take(input, 1), pid = how & 8 ? (uint64_t)self.pid : take(input, 1);
  switch (how % 8) {
  case 0: return take(input, 8);
  case 1: return take(input, 1);
  case 2: return channel.writer->ring.tail + (uint64_t)(int8_t)take(input, 1) * RC_FRAME_ALIGN;
  case 3: return -take(input, 1);
  case 4:
  case 5:
    return rc_owner_make((uint32_t)pid, self.start, how >> 6, (enum rc_slot_state)(how >> 4 & 3));
  case 6: return channel.writer->ring.limit - channel.writer->segment.capacity * (how >> 4 & 3);
  default: return before ^ (uint64_t)1 << (take(input, 1) & 63);
  }
}

static void harm(struct input *input) {
  uint64_t where = take(input, 1);
  struct rc_slot *slot = &control()->slots[where / 4 % SLOTS];
  /* The identity stays as it is: fuzz_attach damages it. */
  size_t first = sizeof(struct rc_identity) / 8, words = rc_control_bytes(SLOTS) / 8 - first;
  _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)control() + first + where % words;
  if (where & 128) word = where & 1 ? &slot->owner : &slot->cursor;
  else if (where & 64)
    word = (_Atomic uint64_t *)(void *)control() + first + take(input, 1) % words;
  rc_store_relaxed(word, value_of(input, rc_load_relaxed(word)));
  channel.harmed = true;
}

static void step(struct input *input) {
  uint64_t what = take(input, 1);
  int which = (int)(what >> 7);
  switch (what % 16) {
  case 0:
  case 1: send(input); break;
  case 2: reserve(input, false); break;
  case 3: reserve(input, true); break;
  case 4:
  case 5: commit(input); break;
  case 6: channel.open = ringcast_writer_abort(channel.writer) != 0 && channel.open; break;
  case 7: look_around(what / 16); break;
  case 8: what & 64 ? detach(which) : attach(which, what / 16); break;
  case 9:
  case 10: next(which); break;
  case 11: release(which); break;
  default: harm(input); break;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct input input = {.at = data, .left = bytes};
  int before = lowest_descriptor();
  uint64_t how = take(&input, 1);
  memset(&channel, 0, sizeof channel);
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = 4096,
                                            .readers = SLOTS,
                                            .memory = RINGCAST_MEMORY_PAGES,
                                            .spill_bytes =
                                                how & 1 ? RC_HUGE_PAGE : RINGCAST_NO_SPILL,
                                            .on_death = how >> 1 & 1,
                                            .on_slow = how >> 2 & 1,
                                            .slow_ns = how & 8 || how & 4 ? 1 : 0};
  require(ringcast_writer_create_ex(&options, &channel.writer) == 0);
  attach(0, how >> 4);
  while (input.left > 0) step(&input);
  for (int i = 0; i < READERS; i++) detach(i);
  ringcast_writer_close(channel.writer);
  require(lowest_descriptor() == before);
  return 0;
}
