/* SPDX-License-Identifier: Apache-2.0 */
/* atomic_queue's AtomicQueue2 for one producer and one consumer, which are threads: elements of 16 and 64 bytes, by
 * push and pop, which wait and are faster than try_push and try_pop. A batch is as many elements one after the other,
 * in a loop that the compiler sees. */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include <atomic_queue/atomic_queue.h>

#include "way.h"

namespace {

// Of 1,024, 4,096 and 65,536 slots, in the order of memory (no MINIMIZE_CONTENTION) or spread, the fastest.
constexpr unsigned slots = 1 << 16;

constexpr size_t most = 256; // elements of a batch

template <size_t Bytes> struct Element { uint8_t bytes[Bytes]; };

template <size_t Bytes> struct Calls {
  using Queue = atomic_queue::AtomicQueue2<Element<Bytes>, slots, false, true, false, true>;

  static void prepare(struct end *end) { end->shared = new (peers_shared_memory(end, sizeof(Queue))) Queue; }
  static Queue &queue(struct end *end) { return *static_cast<Queue *>(end->shared); }
  static void open(struct end *end) {
    peers_touch(end->shared, sizeof(Queue));
    end->state = new Element<Bytes>[most];
  }

  static void close(struct end *end) { delete[] static_cast<Element<Bytes> *>(end->state); }

  static void write(struct end *end, const void *data, size_t count) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    Queue &to = queue(end);
    for (size_t i = 0; i < count; i++) {
      Element<Bytes> element;
      std::memcpy(element.bytes, bytes + i * Bytes, Bytes);
      to.push(element);
    }
  }

  static size_t read(struct end *end, const void **data, size_t count) {
    auto *elements = static_cast<Element<Bytes> *>(end->state);
    Queue &from = queue(end);
    for (size_t i = 0; i < count; i++) {
      elements[i] = from.pop();
      data[i] = elements[i].bytes;
    }
    return count;
  }
};

void choose(struct end *end) {
  if (end->bytes != 16 && end->bytes != 64) peers_die(end, "elements have 16 or 64 bytes, not %zu", end->bytes);
}

void prepare(struct end *end) {
  if (end->bytes == 16) Calls<16>::prepare(end);
  if (end->bytes == 64) Calls<64>::prepare(end);
}

void open(struct end *end) {
  choose(end);
  end->bytes == 16 ? Calls<16>::open(end) : Calls<64>::open(end);
}

void write_many(struct end *end, const void *data, size_t, size_t count) {
  end->bytes == 16 ? Calls<16>::write(end, data, count) : Calls<64>::write(end, data, count);
}

void write(struct end *end, const void *data, size_t bytes) { write_many(end, data, bytes, 1); }

// All batches have the same size: pop waits for a whole batch.
size_t read_many(struct end *end, const void **data, size_t capacity) {
  size_t count = capacity < most ? capacity : most;
  return end->bytes == 16 ? Calls<16>::read(end, data, count) : Calls<64>::read(end, data, count);
}

const void *read(struct end *end, size_t *bytes) {
  const void *data;
  read_many(end, &data, 1);
  *bytes = end->bytes;
  return data;
}

void close(struct end *end) { end->bytes == 16 ? Calls<16>::close(end) : Calls<64>::close(end); }

void version(char *text, size_t size) { std::strncpy(text, PEERS_ATOMIC_QUEUE_VERSION, size - 1); }

struct way_calls calls() {
  struct way_calls calls = {};
  calls.version = version;
  calls.prepare = prepare;
  calls.open = open;
  calls.write = write;
  calls.read = read;
  calls.write_many = write_many;
  calls.read_many = read_many;
  calls.close = close;
  return calls;
}

} // namespace

extern "C" {
extern const struct way_calls atomic_queue_calls;
const struct way_calls atomic_queue_calls = calls();
}
