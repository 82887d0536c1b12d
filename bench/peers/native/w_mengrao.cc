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
  void (*write)(struct end *end, const void *data, size_t count);
  void (*write_ends)(struct end *end, uint64_t number);
  size_t (*read)(struct end *end, const void **data, size_t capacity);
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

  static void write(struct end *end, const void *data, size_t count) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    Queue &to = queue(end);
    for (size_t i = 0; i < count; i++, bytes += Bytes)
      to.write([bytes](Message<Bytes> &message) { std::memcpy(message.bytes, bytes, Bytes); });
  }

  static void write_ends(struct end *end, uint64_t number) {
    queue(end).write([number](Message<Bytes> &message) {
      std::memcpy(message.bytes, &number, sizeof number);
      std::memcpy(message.bytes + Bytes - sizeof number, &number, sizeof number);
    });
  }

  static size_t read(struct end *end, const void **data, size_t capacity) {
    auto &reader = *static_cast<typename Queue::Reader *>(end->state);
    const Message<Bytes> *message;
    size_t count = 0;
    while (!(message = reader.read())) peers_relax(end->oversubscribed);
    do data[count++] = message->bytes;
    while (count < capacity && (message = reader.read()));
    return count;
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
void write(struct end *end, const void *data, size_t) { sized(end).write(end, data, 1); }
void write_many(struct end *end, const void *data, size_t, size_t count) { sized(end).write(end, data, count); }
size_t read_many(struct end *end, const void **data, size_t capacity) { return sized(end).read(end, data, capacity); }
void write_ends(struct end *end, uint64_t number, size_t) { sized(end).write_ends(end, number); }
void close(struct end *end) { sized(end).close(end); }

const void *read(struct end *end, size_t *bytes) {
  const void *data;
  sized(end).read(end, &data, 1);
  *bytes = end->bytes;
  return data;
}

void version(char *text, size_t size) { std::strncpy(text, PEERS_SPMC_QUEUE_VERSION, size - 1); }

struct way_calls calls() {
  struct way_calls calls = {};
  calls.version = version;
  calls.prepare = prepare;
  calls.open = open;
  calls.write = write;
  calls.read = read;
  calls.write_many = write_many;
  calls.read_many = read_many;
  calls.write_ends = write_ends;
  calls.close = close;
  return calls;
}

} // namespace

extern "C" {
extern const struct way_calls mengrao_calls;
const struct way_calls mengrao_calls = calls();
}
