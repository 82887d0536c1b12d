/* SPDX-License-Identifier: Apache-2.0 */
/* atomic_queue's AtomicQueue2 for one producer and one consumer, which are threads: elements of 16 and 64 bytes, by
 * push and pop, which wait and are faster than try_push and try_pop. */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include <atomic_queue/atomic_queue.h>

#include "way.h"

namespace {

// Of 1,024, 4,096 and 65,536 slots, in the order of memory (no MINIMIZE_CONTENTION) or spread, the fastest.
constexpr unsigned slots = 1 << 16;

template <size_t Bytes> struct Element { uint8_t bytes[Bytes]; };

template <size_t Bytes> struct Calls {
  using Queue = atomic_queue::AtomicQueue2<Element<Bytes>, slots, false, true, false, true>;

  static void prepare(struct end *end) { end->shared = new (peers_shared_memory(end, sizeof(Queue))) Queue; }
  static Queue &queue(struct end *end) { return *static_cast<Queue *>(end->shared); }
  static void open(struct end *end) {
    peers_touch(end->shared, sizeof(Queue));
    end->state = new Element<Bytes>;
  }

  static void close(struct end *end) { delete static_cast<Element<Bytes> *>(end->state); }

  static void write(struct end *end, const void *data) {
    Element<Bytes> element;
    std::memcpy(element.bytes, data, Bytes);
    queue(end).push(element);
  }

  static const void *read(struct end *end) {
    auto *element = static_cast<Element<Bytes> *>(end->state);
    *element = queue(end).pop();
    return element->bytes;
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

void write(struct end *end, const void *data, size_t) {
  end->bytes == 16 ? Calls<16>::write(end, data) : Calls<64>::write(end, data);
}

const void *read(struct end *end, size_t *bytes) {
  *bytes = end->bytes;
  return end->bytes == 16 ? Calls<16>::read(end) : Calls<64>::read(end);
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
  calls.close = close;
  return calls;
}

} // namespace

extern "C" {
extern const struct way_calls atomic_queue_calls;
const struct way_calls atomic_queue_calls = calls();
}
