/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching to what a hostile process offers as a ring. The files of a good ring are made in this
 * process, and the input says what is wrong with them: their sizes, seals and identity, the handle,
 * what stands in the control segment and in the data, and that a file changes its size while it is
 * looked at. Then it says what is done with whatever attaches, and what the writer stores
 * meanwhile. Nothing outside the ring is read, and nothing stays behind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ringcast/inspect.h"
#include "shm/os.h"
#include "tests/fuzz/fuzz_channel.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { SLOTS = 4, CAPACITY = 4096, SPILL = 2 << 20, MOST_HELD = 4 };

static struct rc_process self;
static int (*true_seals)(int fd);

static struct ring {
  struct rc_handle handle;
  int control_fd, data_fd, spill_fd;
  uint8_t *control, *data; /* as its writer has them; NULL: it has not */
  uint64_t control_bytes, data_bytes;
  uint32_t shrinks; /* at which look at a file's seals it loses its last page */
  ringcast_reader *reader;
  ringcast_tap *tap;
  uint32_t held;
  struct ringcast_frame frames[MOST_HELD];
} ring;

static void unmap_own(void) {
  if (ring.control) munmap(ring.control, ring.control_bytes);
  if (ring.data) munmap(ring.data, ring.data_bytes);
  ring.control = ring.data = NULL;
}

/* Until it is looked at, a file that is not sealed can be cut short; it is sealed then. */
static int seals_that_come_late(int fd) {
  if (ring.shrinks != 0 && --ring.shrinks == 0) {
    struct stat file, own;
    const int files[] = {ring.control_fd, ring.data_fd, ring.spill_fd};
    unmap_own();
    fstat(fd, &file);
    for (int i = 0; i < 3; i++)
      if (fstat(files[i], &own) == 0 && own.st_ino == file.st_ino &&
          ftruncate(files[i], file.st_size - 4096) == 0)
        fcntl(files[i], F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE);
  }
  return true_seals(fd);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  require(rc_process_self(&self) == 0);
  true_seals = rc_os.seals;
  rc_os.seals = seals_that_come_late;
  return 0;
}

/* ---- What is offered ------------------------------------------------------------------------- */

static uint64_t value_of(struct input *input, uint64_t before) {
  uint64_t how = take(input, 1);
  switch (how % 6) {
  case 0: return take(input, 8);
  case 1: return take(input, 1);
  case 2: return (uint64_t)1 << (how >> 3 & 31) << (how & 1 ? 32 : 0);
  case 3: return before + (uint64_t)(int8_t)take(input, 1) * 64;
  case 4: return -take(input, 1);
  default: return before ^ (uint64_t)1 << take(input, 1) % 64;
  }
}

static int make_file(uint64_t bytes, uint8_t **mapped) {
  int fd = memfd_create("ringcast.fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  require(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  *mapped = NULL;
  if (bytes != 0) *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  require(*mapped != MAP_FAILED);
  return fd;
}

/* All seals, or without some. */
static void seal_file(int fd, uint64_t without) {
  static const int seals[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_FUTURE_WRITE};
  int all = 0;
  for (int i = 0; i < 4; i++)
    if (!(without >> i & 1)) all |= seals[i];
  fcntl(fd, F_ADD_SEALS, all);
}

static uint64_t inode_of(int fd) {
  struct stat file;
  require(fstat(fd, &file) == 0);
  return file.st_ino;
}

/* A good ring, whose files are of these sizes. */
static void make_ring(uint64_t control_bytes, uint64_t data_bytes, bool spill) {
  uint8_t *unused = NULL;
  ring.control_bytes = control_bytes;
  ring.data_bytes = data_bytes;
  ring.control_fd = make_file(control_bytes, &ring.control);
  ring.data_fd = make_file(data_bytes, &ring.data);
  ring.spill_fd = spill ? make_file(SPILL, &unused) : -1;
  if (unused) munmap(unused, SPILL);
  ring.handle = (struct rc_handle){.writer = self,
                                   .control_fd = ring.control_fd,
                                   .data_fd = ring.data_fd,
                                   .token = {0x1234, 0x5678}};
  if (!ring.control) return;
  struct rc_identity *id = &((struct rc_control *)ring.control)->id;
  *id = (struct rc_identity){.magic = RC_MAGIC,
                             .layout = RC_LAYOUT,
                             .ready = RC_READY,
                             .token = {0x1234, 0x5678},
                             .capacity = CAPACITY,
                             .page_size = 4096,
                             .slots = SLOTS,
                             .memory = RINGCAST_MEMORY_PAGES,
                             .spill_fd = ring.spill_fd,
                             .data_inode = inode_of(ring.data_fd),
                             .spill_bytes = spill ? SPILL : 0,
                             .spill_inode = spill ? inode_of(ring.spill_fd) : 0};
}

static void store(uint8_t *base, size_t offset, struct input *input) {
  _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(base + offset);
  rc_store_relaxed(word, value_of(input, rc_load_relaxed(word)));
}

/* A frame that may be one, at the start of the data or after the last one; a note of one. */
static void forge(struct input *input) {
  if (!ring.data || !ring.control) return;
  uint64_t position = take(input, 1) % (CAPACITY / RC_FRAME_ALIGN) * RC_FRAME_ALIGN,
           how = take(input, 1);
  uint64_t bytes = how & 1 ? sizeof(struct rc_spilled) : take(input, 2) % CAPACITY;
  struct rc_frame_header *frame = (struct rc_frame_header *)(void *)(ring.data + position);
  struct rc_spilled *note = (struct rc_spilled *)(frame + 1);
  fuzzed_frames++;
  rc_store_relaxed(&frame->meta, rc_meta_make((uint32_t)bytes, RINGCAST_KIND_TENSORS, how & 1));
  if (how & 1) {
    rc_store_relaxed(&note->offset, take(input, 3) << 4);
    rc_store_relaxed(&note->bytes, how & 2 ? value_of(input, SPILL) : take(input, 3));
  }
  rc_store_release(&frame->commit, position + rc_frame_footprint(bytes));
  if (how & 16)
    rc_store_relaxed(&((struct rc_control *)ring.control)->tail,
                     position + rc_frame_footprint(bytes));
}

static void harm(struct input *input) {
  uint64_t where = take(input, 1);
  size_t control_words = rc_control_bytes(SLOTS) / 8;
  if (where < 128 && ring.control)
    store(ring.control, (128 / 8 + where) % control_words * 8, input);
  else if (where < 192 && ring.data)
    store(ring.data, where % 64 / 5 * RC_FRAME_ALIGN + where % 5 * 8, input);
  else if (ring.control) store(ring.control, take(input, 1) % control_words * 8, input);
}

/* Wrong in one way or another, or in none. */
static void offer(struct input *input) {
  uint64_t how = take(input, 1), sizes = take(input, 1), seals = take(input, 2);
  uint64_t control_bytes = sizes & 1 ? 8192 : sizes & 2 ? 0 : 4096;
  uint64_t data_bytes = sizes & 4 ? 8192 : sizes & 8 ? 0 : CAPACITY;
  if (!(how & 1)) control_bytes = data_bytes = CAPACITY;
  make_ring(control_bytes, data_bytes, how & 2);
  if (how & 32) ring.shrinks = 1 + (sizes >> 6);
  if (ring.shrinks == 0 || ring.shrinks > 1) seal_file(ring.control_fd, how & 4 ? seals : 0);
  if (ring.shrinks == 0 || ring.shrinks != 2) seal_file(ring.data_fd, how & 4 ? seals >> 4 : 0);
  if (how & 2 && (ring.shrinks == 0 || ring.shrinks != 3))
    seal_file(ring.spill_fd, how & 4 ? seals >> 8 : 8);
  for (uint64_t n = how & 8 ? take(input, 1) % 4 : 0; n > 0 && ring.control; n--)
    store(ring.control, take(input, 1) % 16 * 8, input);
  if (how & 16) {
    uint64_t field = take(input, 1);
    if (field % 4 == 0) ring.handle.control_fd = (int32_t)(field / 4);
    if (field % 4 == 1) ring.handle.data_fd = (int32_t)(field / 4);
    if (field % 4 == 2) ring.handle.token[field >> 2 & 1] ^= 1;
    if (field % 4 == 3) ring.handle.writer.start -= field >> 2 & 1;
  }
}

/* What was believed of it has to hold of what was mapped. */
static void must_be_mapped(const struct rc_segment *segment) {
  require(segment->slots >= 1 && rc_control_bytes(segment->slots) <= segment->control.bytes);
  require(segment->capacity >= RC_MIN_BYTES && segment->capacity == segment->data.bytes &&
          segment->data.mappings == 2);
}

/* ---- What is done with it -------------------------------------------------------------------- */

static void attach(struct input *input) {
  uint64_t how = take(input, 1);
  char text[RC_HANDLE_MAX];
  rc_handle_format(&ring.handle, text);
  struct ringcast_reader_options options = {.size = sizeof options,
                                            .flags = how & 1 ? RINGCAST_READER_RETAIN : 0,
                                            .leases = (uint32_t)(how >> 1 & 3) + 1,
                                            .name = how & 8 ? "rank 3" : NULL};
  if (!ring.reader && ringcast_reader_attach_ex(text, &options, &ring.reader) != 0)
    require(ringcast_last_error()[0] != '\0');
  if (how & 16 && !ring.tap && ringcast_tap_attach(text, &ring.tap) != 0)
    require(ringcast_last_error()[0] != '\0');
  if (ring.reader) must_be_mapped(&ring.reader->segment);
}

static void next(void) {
  struct ringcast_frame *frame = &ring.frames[ring.held];
  if (!ring.reader || ring.held == MOST_HELD || ringcast_reader_next(ring.reader, 0, frame) != 0)
    return;
  fuzzed_frames++;
  ring.held++;
  const uint8_t *from = frame->data;
  bool whole = must_lie_within(&ring.reader->segment, from, frame->bytes) || frame->bytes < 65536;
  if (frame->bytes != 0)
    touch_all(from, whole ? frame->bytes : 1), touch_all(from + frame->bytes - 1, 1);
}

static void read_on(uint64_t how) {
  struct ringcast_info info = {.size = sizeof info};
  struct ringcast_stats stats = {.size = sizeof stats};
  uint64_t lag, which = ring.held != 0 ? how / 8 % ring.held : 0;
  if (!ring.reader) return;
  switch (how % 8) {
  case 0:
  case 1: next(); break;
  case 2:
  case 3:
    if (ring.held == 0) break;
    ringcast_reader_release(ring.reader, &ring.frames[which]);
    memmove(&ring.frames[which], &ring.frames[which + 1],
            (--ring.held - which) * sizeof *ring.frames);
    break;
  case 4:
  case 5:
    require(ringcast_reader_lag(ring.reader, &lag) == 0 && lag <= ring.reader->segment.capacity);
    break;
  case 6: require(ringcast_reader_stats(ring.reader, &stats) == 0); break;
  default:
    require(ringcast_reader_info(ring.reader, &info) == 0 &&
            info.capacity == ring.reader->segment.capacity);
    break;
  }
}

static void tap_on(uint64_t how) {
  struct ringcast_frame frame;
  struct ringcast_info info = {.size = sizeof info};
  struct ringcast_stats stats = {.size = sizeof stats};
  struct ringcast_peer peers[SLOTS] = {{.size = sizeof *peers}};
  uint64_t bytes, gaps;
  if (!ring.tap) return;
  int count = 0;
  switch (how % 4) {
  case 0:
    fuzzed_frames++;
    if (ringcast_tap_next(ring.tap, 0, &frame) == 0) touch_all(frame.data, frame.bytes);
    break;
  case 1:
    require(ringcast_tap_info(ring.tap, &info) == 0 && ringcast_tap_stats(ring.tap, &stats) == 0);
    break;
  case 2:
    count = ringcast_tap_peers(ring.tap, peers, SLOTS);
    for (int i = 0; i < count && i < SLOTS; i++)
      require(peers[i].slot < info.readers + RC_MAX_SLOTS &&
              memchr(peers[i].name, 0, sizeof peers[i].name));
    break;
  default: require(ringcast_tap_lost(ring.tap, &bytes, &gaps) == 0); break;
  }
}

static void close_reader(void) {
  ringcast_reader_close(ring.reader);
  ring.reader = NULL;
  ring.held = 0;
}

static void step(struct input *input) {
  uint64_t what = take(input, 1);
  switch (what % 8) {
  case 0:
  case 1: read_on(what / 8); break;
  case 2: tap_on(what / 8); break;
  case 3:
  case 4: harm(input); break;
  case 5: forge(input); break;
  case 6: attach(input); break;
  default:
    if (what & 128) close_reader();
    else next();
    break;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct input input = {.at = data, .left = bytes};
  int before = lowest_descriptor();
  memset(&ring, 0, sizeof ring);
  offer(&input);
  attach(&input);
  while (input.left > 0) step(&input);
  close_reader();
  ringcast_tap_close(ring.tap);
  unmap_own();
  close(ring.control_fd);
  close(ring.data_fd);
  if (ring.spill_fd >= 0) close(ring.spill_fd);
  require(lowest_descriptor() == before);
  return 0;
}
