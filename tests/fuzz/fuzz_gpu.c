/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device tensors, on the tests' own driver, while a peer stores what it likes: in the device
 * segment, in where the ring says that it is, and in frames that are held. A writer and two readers
 * are in this process. Whatever is stored, every call returns, with a result that the header names;
 * no copy leaves the memory that it is for, which would break the driver's context; nothing stays
 * behind.
 *
 * A stream may wait as long as the writer lives for what the peer says is still to come. So the
 * guard ends a wait that takes too long, by values of `ready` that pass every comparison in turn.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "gpu/reader.h"
#include "gpu/writer.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fuzz/fuzz.h"

enum {
  READERS = 2,
  PLACES = 4,
  POOL_SLOTS = 4,
  MOST_HELD = 3,
  MOST_MAPS = 4,
  MOST_POOLS = 4,
  STREAMS = 3
};
enum { RING_BYTES = 64 << 10, OWN_BYTES = 64 << 10 };

struct held {
  struct ringcast_frame frame; /* data NULL: none */
  struct ringcast_gpu_take take;
  bool begun;
};

static struct world {
  rc_cu_context context;
  rc_cu_stream streams[STREAMS]; /* the writer's, and the readers' */
  rc_cu_ptr source, target;      /* OWN_BYTES each */
  ringcast_writer *writer, *other;
  ringcast_gpu_writer *gpu, *gpu_other;
  struct ringcast_gpu_extent memory; /* in the pool; generation 0: none */
  ringcast_device_ptr address;
  struct reader {
    ringcast_reader *ring;
    ringcast_gpu_reader *gpu;
    struct held held[MOST_HELD];
    ringcast_gpu_hold *maps[MOST_MAPS];
  } readers[READERS];
  bool harmed;
} world;

static const struct rc_cuda *cuda;
static struct rc_semaphore *turn; /* what the writer's stream is held up by */
static rc_cu_ptr turn_address;

/* ---- The guard ------------------------------------------------------------------------------- */

/* The device segments of this input, as the peer has them mapped. */
static struct {
  pthread_mutex_t mutex;
  struct rc_gpu_segment pools[MOST_POOLS];
  uint32_t count;
  _Atomic uint64_t steps; /* odd: one is being made */
} peer = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void end_all_waits(void) {
  const struct timespec looks = {
      .tv_nsec = 200 * 1000}; /* in which each stream of the fake looks at its word */
  pthread_mutex_lock(&peer.mutex);
  if (turn) rc_semaphore_store(turn, rc_load_relaxed(&turn->value) + 1);
  for (uint64_t quarter = 0; quarter < 4; quarter++) {
    for (uint32_t i = 0; i < peer.count * POOL_SLOTS; i++) {
      struct rc_gpu_segment *pool = &peer.pools[i / POOL_SLOTS];
      rc_store_release(&rc_gpu_control(pool)->dead, 1);
      rc_semaphore_store(rc_gpu_ready(pool, i % POOL_SLOTS), quarter << 62);
    }
    nanosleep(&looks, NULL);
  }
  pthread_mutex_unlock(&peer.mutex);
}

static void *guard(void *unused) {
  const struct timespec tick = {.tv_nsec = 20 * 1000 * 1000};
  for (uint64_t before = 0, now;; before = now) {
    nanosleep(&tick, NULL);
    now = rc_load_acquire(&peer.steps);
    if (now == before && now % 2 == 1) end_all_waits();
  }
  return unused;
}

static void map_pool(void) {
  if (!world.gpu || !world.gpu->exported) return;
  struct rc_gpu_segment *own = &world.gpu->exported->segment;
  struct rc_gpu_segment segment = *own;
  segment.memory.base =
      mmap(NULL, own->memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own->memory.fd, 0);
  require(segment.memory.base != MAP_FAILED && peer.count < MOST_POOLS);
  pthread_mutex_lock(&peer.mutex);
  peer.pools[peer.count++] = segment;
  pthread_mutex_unlock(&peer.mutex);
}

static void unmap_pools(void) {
  pthread_mutex_lock(&peer.mutex);
  for (; peer.count > 0; peer.count--)
    munmap(peer.pools[peer.count - 1].memory.base, peer.pools[0].memory.bytes);
  pthread_mutex_unlock(&peer.mutex);
}

/* ---- Once ------------------------------------------------------------------------------------ */

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  pthread_t thread;
  (void)count, (void)arguments;
  /* So that the program is linked with it, and the library finds it loaded. */
  fake_cuda_live("streams");
  cuda = rc_cuda();
  require(cuda);
  require(pthread_create(&thread, NULL, guard, NULL) == 0);
  return 0;
}

/* ---- The writer ------------------------------------------------------------------------------ */

static struct ringcast_gpu_writer_options options_of(void) {
  return (struct ringcast_gpu_writer_options){.size = sizeof(struct ringcast_gpu_writer_options),
                                              .pool_bytes = RC_GPU_GRANULE,
                                              .slots = POOL_SLOTS};
}

static void open_pool(void) {
  struct ringcast_gpu_writer_options options = options_of();
  if (world.gpu || peer.count == MOST_POOLS) return;
  require(ringcast_gpu_writer_open(world.writer, &options, &world.gpu) == 0);
  map_pool();
}

static void close_pool(void) {
  if (world.memory.generation != 0) ringcast_gpu_drop(world.gpu, &world.memory);
  ringcast_gpu_writer_close(world.gpu);
  world.gpu = NULL;
  world.memory.generation = 0;
}

static ringcast_writer *make_ring(void) {
  ringcast_writer *made;
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = RING_BYTES,
                                            .readers = PLACES,
                                            .memory = RINGCAST_MEMORY_PAGES,
                                            .spill_bytes = RINGCAST_NO_SPILL};
  require(ringcast_writer_create_ex(&options, &made) == 0);
  return made;
}

/* Another ring of this process: to open and close its pool looks at what all others have left. */
static void use_other(void) {
  struct ringcast_gpu_writer_options options = options_of();
  if (!world.other) world.other = make_ring();
  if (world.gpu_other) {
    ringcast_gpu_writer_close(world.gpu_other);
    world.gpu_other = NULL;
  } else {
    require(ringcast_gpu_writer_open(world.other, &options, &world.gpu_other) == 0);
  }
}

static void send(struct input *input) {
  uint64_t how = take(input, 1);
  int64_t shapes[2][1] = {{(int64_t)(take(input, 1) << (how & 7))}, {(int64_t)take(input, 1)}};
  if (!world.gpu) return;
  struct ringcast_gpu_item items[2] = {{.key = "x", .key_bytes = 1, .on_device = 1},
                                       {.key = "y", .key_bytes = 1}};
  for (int i = 0; i < 2; i++) {
    const void *data = (const void *)(uintptr_t)(world.source + (rc_cu_ptr)(256 * i));
    items[i].tensor =
        (struct ringcast_tensor){.data = data, .dtype = {1, 8, 1}, .ndim = 1, .shape = shapes[i]};
  }
  items[1].on_device = 1;
  if (how & 16 && world.memory.generation != 0)
    items[0].tensor.data = (const void *)(uintptr_t)(world.address + (how >> 1 & 3));
  uint32_t flags = how & 32 ? RINGCAST_GPU_NO_INLINE : 0;
  if (world.harmed) fuzzed_frames++;
  allowed(ringcast_gpu_send(world.gpu, items, 1 + (how >> 3 & 1), 7, flags, world.streams[0], 0),
          -EAGAIN, -EMSGSIZE, -EINVAL, -EPIPE);
}

/* Memory in the pool, which may go while a frame refers to it. */
static void allocate(struct input *input) {
  uint64_t bytes = take(input, 1);
  if (!world.gpu || !world.gpu->exported) return;
  if (world.memory.generation != 0) {
    ringcast_gpu_drop(world.gpu, &world.memory);
    world.memory.generation = 0;
    return;
  }
  allowed(ringcast_gpu_allocate(world.gpu, bytes, world.streams[0], &world.address, &world.memory),
          -EAGAIN, -EPIPE);
}

static void try_lease(struct input *input) {
  uint64_t bytes[2] = {take(input, 2), take(input, 1)}, offsets[2];
  struct ringcast_gpu_extent lease;
  if (!world.gpu) return;
  int result = ringcast_gpu_lease(world.gpu, bytes, 2, offsets, &lease);
  allowed(result, -EAGAIN, -EPIPE);
  if (result != 0) return;
  require(lease.base + lease.bytes <= RC_GPU_GRANULE &&
          offsets[1] + bytes[1] <= lease.base + lease.bytes);
  int64_t shape[1] = {(int64_t)bytes[1]};
  struct ringcast_tensor tensor = {
      .data = (const void *)(uintptr_t)world.source, .dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
  const struct ringcast_gpu_put put = {.tensor = &tensor, .offset = offsets[1]};
  /* The copies are enqueued; then the ring refuses the frame, as nothing is reserved. */
  if (bytes[0] & 1)
    require(ringcast_gpu_commit(world.gpu, &lease, &put, 1, world.streams[0], 1) == -EINVAL);
  ringcast_gpu_drop(world.gpu, &lease);
}

/* ---- The readers ----------------------------------------------------------------------------- */

static void attach(struct reader *reader, uint64_t how) {
  struct ringcast_reader_options options = {.size = sizeof options, .leases = MOST_HELD};
  if (!reader->ring)
    allowed(
        ringcast_reader_attach_ex(ringcast_writer_handle(world.writer), &options, &reader->ring),
        -EUSERS);
  if (reader->ring && !reader->gpu)
    require(ringcast_gpu_reader_open(reader->ring, NULL, &reader->gpu) == 0);
  if (reader->gpu && how & 1) allowed(ringcast_gpu_reader_prepare(reader->gpu), -EAGAIN, -ENOTSUP);
}

static void unmap(struct reader *reader, uint64_t which) {
  ringcast_gpu_unmap(reader->maps[which % MOST_MAPS]);
  reader->maps[which % MOST_MAPS] = NULL;
}

static void detach(struct reader *reader, uint64_t how) {
  for (uint64_t i = 0; i < MOST_MAPS && how & 1; i++) unmap(reader, i);
  ringcast_gpu_reader_close(reader->gpu);
  ringcast_reader_close(reader->ring);
  for (uint64_t i = 0; i < MOST_MAPS; i++) unmap(reader, i);
  memset(reader, 0, sizeof *reader);
}

static void next(struct reader *reader, struct held *held) {
  if (!reader->gpu || held->frame.data) return;
  int result = ringcast_gpu_next(reader->gpu, 0, &held->frame);
  allowed(result, -EAGAIN, -EPIPE, -EBUSY);
  if (result != 0) held->frame.data = NULL;
  held->begun = false;
}

static void begin(struct reader *reader, struct held *held, uint64_t how) {
  if (!held->frame.data || held->begun) return;
  if (world.harmed) fuzzed_frames++;
  rc_cu_stream stream = world.streams[1 + (how & 1)];
  int result = ringcast_gpu_begin(reader->gpu, &held->frame, stream, &held->take);
  allowed(result, -ECONNABORTED, -EPIPE, -EPROTO, -EINVAL);
  held->begun = result == 0;
  held->take.timeout_ns = 0; /* a hostile word may hold its stream up for ever */
}

static void copy(struct reader *reader, struct held *held, struct input *input) {
  uint64_t how = take(input, 1), where = take(input, 1) % MOST_MAPS;
  static uint8_t host[OWN_BYTES];
  struct ringcast_frame_reader opened;
  struct ringcast_item item;
  ringcast_device_ptr mapped;
  if (!held->begun || ringcast_frame_open(&opened, held->frame.data, held->frame.bytes) != 0)
    return;
  if (ringcast_frame_item(&opened, how >> 3 & 1, &item) != 0 || item.kind != RINGCAST_ITEM_TENSOR)
    return;
  bool is_pool = item.placement == RINGCAST_PLACEMENT_POOL;
  int result = -EPROTO; /* as of what is not even tried */
  if (how & 16 && is_pool) item.device_offset = take(input, 8);
  if (how & 32 && is_pool) item.bytes = take(input, 8);
  const uint64_t most = RC_GPU_GRANULE;
  bool is_outside =
      is_pool && (item.device_offset > most || item.bytes > most - item.device_offset);
  struct ringcast_gpu_copy copy = {
      .offset = item.device_offset, .bytes = item.bytes, .to = world.target, .in_pool = 1};
  /* Else the memory of this caller is too small, whose fault that is. */
  bool fits = item.bytes <= OWN_BYTES;
  switch (how % 6) {
  case 0:
    if (!is_pool || reader->maps[where]) return;
    result = ringcast_gpu_map(reader->gpu, &held->take, &item, &mapped, &reader->maps[where]);
    break;
  case 1:
    if (fits || is_outside)
      result = ringcast_gpu_copy_to_host(reader->gpu, &held->take, &item, host);
    break;
  case 2:
    if (is_pool && (fits || is_outside))
      result = ringcast_gpu_copy_all(reader->gpu, &held->take, &copy, 1,
                                     how & 64 ? RINGCAST_GPU_LAST : 0);
    break;
  case 3:
    copy.offset = take(input, 2);
    copy.in_pool = 0;
    if (fits)
      result = ringcast_gpu_copy_all(reader->gpu, &held->take, &copy, 1,
                                     how & 64 ? RINGCAST_GPU_LAST : 0);
    require(result != 0 || copy.offset + item.bytes <= held->frame.bytes);
    break;
  default:
    if (fits || is_outside)
      result = ringcast_gpu_copy_out(reader->gpu, &held->take, &item, world.target);
    require(result != 0 || fits || how % 6 < 4 || is_pool);
    break;
  }
  allowed(result, -EPROTO, -EINVAL, -EPIPE, -ENOTSUP, -EAGAIN);
  require(result != 0 || !is_outside || item.bytes == 0);
}

static void end(struct reader *reader, struct held *held) {
  if (!held->frame.data) return;
  int result = held->begun ? ringcast_gpu_end(reader->gpu, &held->take)
                           : ringcast_gpu_release(reader->gpu, &held->frame);
  allowed(result, -ESTALE, -EPROTO);
  held->frame.data = NULL;
  held->begun = false;
}

static void look_around(struct reader *reader) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (world.gpu) require(ringcast_gpu_writer_info(world.gpu, &info) == 0);
  require(!world.gpu || info.slots_used <= POOL_SLOTS);
  if (!reader->gpu) return;
  require(ringcast_gpu_reader_info(reader->gpu, &info) == 0);
  allowed(ringcast_gpu_check(reader->gpu), -EPIPE);
}

/* ---- The peer -------------------------------------------------------------------------------- */

static uint64_t value_of(struct input *input, uint64_t before) {
  uint64_t how = take(input, 1);
  switch (how % 6) {
  case 0: return take(input, 8);
  case 1: return take(input, 1);
  case 2: return before + (uint64_t)(int8_t)take(input, 1);
  case 3: return -take(input, 1);
  case 4:
    return world.readers[how >> 3 & 1].ring ? world.readers[how >> 3 & 1].ring->ring.owner : 0;
  default: return before ^ (uint64_t)1 << take(input, 1) % 64;
  }
}

static void store(void *base, uint64_t at, struct input *input) {
  _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)((uint8_t *)base + at / 8 * 8);
  rc_store_relaxed(word, value_of(input, rc_load_relaxed(word)));
  world.harmed = true;
}

/* But no `ack`: a peer that says that a reader has read what its stream still reads has the reader
 * close the pool too early, which gpu.h does not rule out. */
static void store_word(struct rc_gpu_control *control, uint64_t at, struct input *input) {
  bool is_ack =
      at < rc_gpu_try_at(POOL_SLOTS, PLACES, 0) &&
      (at - rc_gpu_semaphores_at(PLACES)) / sizeof(struct rc_semaphore) % (1 + PLACES) != 0;
  if (!is_ack) store(control, at, input);
}

static void harm(struct input *input) {
  uint64_t where = take(input, 2);
  if (peer.count == 0) return;
  const struct rc_gpu_segment *segment = &peer.pools[where % 8 == 0 ? 0 : peer.count - 1];
  struct rc_gpu_control *control = rc_gpu_control(segment);
  uint64_t rest = where >> 6, at = rc_gpu_semaphores_at(PLACES);
  switch (where >> 3 & 7) {
  case 0: store(control, rest * 8 % sizeof(struct rc_gpu_identity), input); break;
  case 1:
    store(&world.writer->ring.view.control->device, rest * 8 % sizeof(struct rc_device_place),
          input);
    break;
  case 2: store(&control->dead, rest * 8 % RC_LINE, input); break;
  case 3:
  case 4:
    store(control->importers, rest * 8 % (READERS * sizeof *control->importers), input);
    break;
  case 5: store(control, rc_gpu_ready_at(PLACES, (uint32_t)rest % POOL_SLOTS), input); break;
  case 6:
  default:
    store_word(control, at + rest * RC_LINE % (rc_gpu_segment_bytes(POOL_SLOTS, PLACES) - at),
               input);
    break;
  }
}

/* In the writer's own mapping: the readers' is read-only. */
static void damage(struct reader *reader, struct held *held, struct input *input) {
  uint64_t where = take(input, 1);
  if (!held->frame.data) return;
  uint8_t *frame = world.writer->ring.view.data +
                   ((const uint8_t *)held->frame.data - reader->ring->ring.view.data);
  static const uint16_t header[] = {32, 40, 32, 40}, entry[] = {24, 32, 40, 48, 56, 8, 16, 24};
  uint64_t at = where % 64 * 8;
  if (where & 64) at = sizeof(struct ringcast_frame_header) + entry[where % 8];
  if (where & 128) at = header[where % 4];
  if (at + 8 <= held->frame.bytes) store(frame, at, input);
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void step(struct input *input) {
  uint64_t what = take(input, 1);
  struct reader *reader = &world.readers[what >> 7];
  struct held *held = &reader->held[(what >> 5 & 3) % MOST_HELD];
  switch (what % 18) {
  case 0:
  case 1: send(input); break;
  case 2: allocate(input); break;
  case 3: try_lease(input); break;
  case 4: attach(reader, what >> 5); break;
  case 5: detach(reader, what >> 5); break;
  case 6: next(reader, held); break;
  case 7: begin(reader, held, what >> 4); break;
  case 8:
  case 9: copy(reader, held, input); break;
  case 10: end(reader, held); break;
  case 11: unmap(reader, what >> 5); break;
  case 12: look_around(reader); break;
  case 13: damage(reader, held, input); break;
  case 14:
  case 15: harm(input); break;
  case 16:
    if (what & 128) use_other();
    else if (what & 64 && world.gpu) close_pool();
    else open_pool();
    break;
  default:
    if (what & 64) rc_semaphore_store(turn, rc_load_relaxed(&turn->value) + 1);
    else rc_semaphore_wait(cuda, world.streams[0], turn_address, rc_load_relaxed(&turn->value) + 1);
    break;
  }
}

static void open_world(void) {
  memset(&world, 0, sizeof world);
  require(cuda->primary_retain(&world.context, 0) == 0 && cuda->ctx_push(world.context) == 0);
  for (int i = 0; i < STREAMS; i++)
    require(cuda->stream_create(&world.streams[i], RC_CU_STREAM_NON_BLOCKING) == 0);
  require(cuda->mem_alloc(&world.source, OWN_BYTES) == 0 &&
          cuda->mem_alloc(&world.target, OWN_BYTES) == 0);
  turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(turn != MAP_FAILED &&
          cuda->host_register(turn, 4096, RC_CU_MEMHOSTREGISTER_DEVICEMAP) == 0);
  require(cuda->host_get_device_pointer(&turn_address, turn, 0) == 0);
  world.writer = make_ring();
}

static bool context_is_well(void) {
  size_t unused[2];
  return cuda->mem_get_info(&unused[0], &unused[1]) == RC_CU_SUCCESS;
}

/* The peer leaves, with what it has made of places; then all that was left is given back. */
static void await_what_is_left(void) {
  const struct timespec pause = {.tv_nsec = 50000};
  while (fake_cuda_live("registered") > 1 || fake_cuda_live("imports") > 0 ||
         fake_cuda_live("allocations") > 2) {
    for (uint32_t pool = 0; pool < peer.count && fake_cuda_live("imports") == 0; pool++)
      for (uint32_t i = 0; i < PLACES; i++)
        rc_store_release(&rc_gpu_control(&peer.pools[pool])->importers[i].owner, 0);
    rc_exported_tidy(rc_gpu_close_ns);
    nanosleep(&pause, NULL);
  }
}

static void close_world(uint64_t how) {
  rc_semaphore_store(turn, rc_load_relaxed(&turn->value) + 1);
  if (world.harmed) end_all_waits();
  if (how & 1) close_pool();
  for (int i = 0; i < READERS; i++) detach(&world.readers[i], how >> 1);
  close_pool();
  ringcast_gpu_writer_close(world.gpu_other);
  ringcast_writer_close(world.other);
  ringcast_writer_close(world.writer);
  for (int i = 0; i < STREAMS; i++)
    require(cuda->stream_synchronize(world.streams[i]) == RC_CU_SUCCESS);
  await_what_is_left();
  require(context_is_well());
  for (int i = 0; i < STREAMS; i++) require(cuda->stream_destroy(world.streams[i]) == 0);
  require(cuda->mem_free(world.source) == 0 && cuda->mem_free(world.target) == 0);
  require(cuda->host_unregister(turn) == 0);
  pthread_mutex_lock(&peer.mutex);
  munmap(turn, 4096);
  turn = NULL;
  pthread_mutex_unlock(&peer.mutex);
  unmap_pools();
  require(cuda->ctx_pop(&world.context) == 0 && cuda->primary_release(0) == 0);
  while (fake_cuda_live("contexts") > 0)
    sched_yield(); /* a watcher gives its hold on it back last of all */
  require(fake_cuda_live("lost") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct input input = {.at = data, .left = bytes};
  int before = lowest_descriptor();
  uint64_t how = take(&input, 1);
  open_world();
  if (how & 1) open_pool();
  if (how & 4) attach(&world.readers[0], how >> 3);
  while (input.left > 0) {
    rc_store_release(&peer.steps, rc_load_relaxed(&peer.steps) + 1);
    step(&input);
    rc_store_release(&peer.steps, rc_load_relaxed(&peer.steps) + 1);
    require(context_is_well());
  }
  rc_store_release(&peer.steps, rc_load_relaxed(&peer.steps) + 1);
  close_world(how >> 6);
  rc_store_release(&peer.steps, rc_load_relaxed(&peer.steps) + 1);
  require(lowest_descriptor() == before);
  return 0;
}
