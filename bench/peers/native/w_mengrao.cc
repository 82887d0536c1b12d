/* SPDX-License-Identifier: Apache-2.0 */
/* MengRao's SPMC_Queue: a template of the message's type and the number of slots, so one instance for each size. */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include <SPMCQueue.h>
#include "way.h"

namespace {

constexpr size_t room = 8 << 20; // bytes of the queue, or two messages

template <size_t Bytes> struct alignas(8) Message { uint8_t bytes[Bytes]; };

constexpr uint32_t slots_of(size_t bytes) {
  uint32_t slots = 2;
  while (2 * size_t{slots} * (bytes + 64) <= room) slots *= 2;
  return slots;
}

struct Sized { // the calls for one size
  void (*prepare)(struct end *end);
  void (*open)(struct end *end);
  void (*write)(struct end *end, const void *data);
  void (*write_ends)(struct end *end, uint64_t number);
  const void *(*read)(struct end *end);
  void (*close)(struct end *end);
};

template <size_t Bytes> struct Calls {
  using Queue = SPMCQueue<Message<Bytes>, slots_of(Bytes)>;

  static void prepare(struct end *end) { end->shared = new (peers_shared_memory(end, sizeof(Queue))) Queue; }
  static Queue &queue(struct end *end) { return *static_cast<Queue *>(end->shared); }
  static void open(struct end *end) {
    peers_touch(end->shared, sizeof(Queue));
    end->state = new typename Queue::Reader(queue(end).getReader());
  }

  static void close(struct end *end) { delete static_cast<typename Queue::Reader *>(end->state); }

  static void write(struct end *end, const void *data) {
    queue(end).write([data](Message<Bytes> &message) { std::memcpy(message.bytes, data, Bytes); });
  }

  static void write_ends(struct end *end, uint64_t number) {
    queue(end).write([number](Message<Bytes> &message) {
      std::memcpy(message.bytes, &number, sizeof number);
      std::memcpy(message.bytes + Bytes - sizeof number, &number, sizeof number);
    });
  }

  static const void *read(struct end *end) {
    auto &reader = *static_cast<typename Queue::Reader *>(end->state);
    const Message<Bytes> *message;
    while (!(message = reader.read())) peers_relax(end->oversubscribed);
    return message->bytes;
  }

  static constexpr Sized sized = {prepare, open, write, write_ends, read, close};
};

const Sized &sized(struct end *end) {
  switch (end->bytes) {
  case 16: return Calls<16>::sized;
  case 64: return Calls<64>::sized;
  case 1 << 10: return Calls<1 << 10>::sized;
  case 4 << 10: return Calls<4 << 10>::sized;
  case 64 << 10: return Calls<64 << 10>::sized;
  case 1 << 20: return Calls<1 << 20>::sized;
  case 4 << 20: return Calls<4 << 20>::sized;
  case 64 << 20: return Calls<64 << 20>::sized;
  default: peers_die(end, "no instance of the template for %zu bytes", end->bytes);
  }
}

void prepare(struct end *end) { sized(end).prepare(end); }
void open(struct end *end) { sized(end).open(end); }
void write(struct end *end, const void *data, size_t) { sized(end).write(end, data); }
void write_ends(struct end *end, uint64_t number, size_t) { sized(end).write_ends(end, number); }
void close(struct end *end) { sized(end).close(end); }

const void *read(struct end *end, size_t *bytes) {
  *bytes = end->bytes;
  return sized(end).read(end);
}

struct way_calls calls() {
  struct way_calls calls = {};
  calls.prepare = prepare;
  calls.open = open;
  calls.write = write;
  calls.read = read;
  calls.write_ends = write_ends;
  calls.close = close;
  return calls;
}

} // namespace

extern "C" {
extern const struct way_calls mengrao_calls;
const struct way_calls mengrao_calls = calls();
}
