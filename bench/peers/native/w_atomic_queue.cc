/* SPDX-License-Identifier: Apache-2.0 */
/* atomic_queue's AtomicQueue2 for one producer and one consumer, which are threads: elements of 64
 * bytes, by push and pop, which wait and are faster than try_push and try_pop. */
#include <cstdint>
#include <cstring>
#include <new>

#include <atomic_queue/atomic_queue.h>

#include "way.h"

namespace {

struct Element {
  uint8_t bytes[64];
};

// Of 1,024, 4,096 and 65,536 slots, in the order of memory or spread, the fastest.
using Queue = atomic_queue::AtomicQueue2<Element, 1 << 16, false, true, false, true>;

Queue &queue(struct end *end) { return *static_cast<Queue *>(end->shared); }

void prepare(struct end *end) { end->shared = new (peers_shared_memory(end, sizeof(Queue))) Queue; }

void open(struct end *end) {
  if (end->bytes != sizeof(Element)) peers_die(end, "elements have 64 bytes, not %zu", end->bytes);
  peers_touch(end->shared, sizeof(Queue));
  end->state = new Element;
}

void close(struct end *end) { delete static_cast<Element *>(end->state); }

void write(struct end *end, const void *data, size_t) {
  Element element;
  std::memcpy(element.bytes, data, sizeof element);
  queue(end).push(element);
}

const void *read(struct end *end, size_t *bytes) {
  auto *element = static_cast<Element *>(end->state);
  *element = queue(end).pop();
  *bytes = sizeof *element;
  return element;
}

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
