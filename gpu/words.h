/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that host and device share: 64 bits of host memory, registered with the driver, on a line of their own. A
 * stream waits until a word reaches a generation, or writes a generation behind all of the stream's earlier work; the
 * host loads and stores words too. Generations only grow.
 *
 * Orders. A device's write of a word comes after all earlier writes of its stream, for the whole system (the default
 * flag of cuStreamWriteValue); its wait comes before all that its stream does next. A host that loads a word (acquire)
 * therefore sees what came before, and what it stores (release) is seen by a stream that waits for it.
 */
#ifndef RC_GPU_WORDS_H
#define RC_GPU_WORDS_H

#include "gpu/driver.h"
#include "ring/atomics.h"
#include "ring/layout.h"

struct rc_word {
  _Alignas(RC_LINE) _Atomic uint64_t whole;
};
_Static_assert(sizeof(struct rc_word) == RC_LINE, "a word has its line to itself");

static inline bool rc_word_has_reached(struct rc_word *word, uint64_t generation) {
  return (int64_t)(rc_load_acquire(&word->whole) - generation) >= 0;
}

/* By the host, in place of a device that will not do it. */
static inline void rc_word_store(struct rc_word *word, uint64_t generation) {
  rc_store_release(&word->whole, generation);
}

/* By the host, for who waits for a generation that will never come: the word has reached it, and tells all who look
 * that it was not the device that said so. */
static inline uint64_t rc_word_released(uint64_t generation) {
  return generation + ((uint64_t)1 << 62); /* no device gets that far, and it counts as later */
}
static inline bool rc_word_was_released(struct rc_word *word, uint64_t generation) {
  return rc_load_acquire(&word->whole) == rc_word_released(generation);
}

/* By a stream; `address` is the word's on the device. */
static inline rc_cu_result rc_word_write(const struct rc_cuda *cuda, rc_cu_stream stream, rc_cu_ptr address,
                                         uint64_t generation) {
  return cuda->write_value64(stream, address, generation, RC_CU_STREAM_WRITE_VALUE_DEFAULT);
}

static inline rc_cu_result rc_word_wait(const struct rc_cuda *cuda, rc_cu_stream stream, rc_cu_ptr address,
                                        uint64_t generation) {
  return cuda->wait_value64(stream, address, generation, RC_CU_STREAM_WAIT_VALUE_GEQ);
}

/* How long a stream or a word is waited for that a driver needs some microseconds for: two seconds, but in tests. */
extern int64_t rc_words_patience_ns;

/* Waits until the stream has nothing left to do, or never will, as the result says; NOT_READY: that time was not
 * enough. */
rc_cu_result rc_stream_await(const struct rc_cuda *cuda, rc_cu_stream stream, int64_t patience_ns);

/* A stream of our own, which waits for no other, once the device has come to it. Streams share queues of the device
 * (CUDA_DEVICE_MAX_CONNECTIONS): what holds up another one, a long kernel, or a wait for a word, may hold up this one,
 * which says nothing of what is to be tried on it; and a copy to memory that is not registered would wait for that,
 * however long it takes. -EAGAIN: not within that time, and nothing is left; -EIO, -ENOMEM: sets the error text. */
int rc_stream_make(const struct rc_cuda *cuda, int64_t patience_ns, rc_cu_stream *out);

/* Whether streams and the host can wait for each other by words, in the context that is current: a stream of its own
 * waits for `words[0]`, which the host then stores, and writes `words[1]`. `address` is where a device has them. 0;
 * -ENOTSUP, -EIO, -ENOMEM, and -EAGAIN as above: sets the error text. -ETIMEDOUT: two seconds were not enough; the
 * device may wait for the words still, so they must stay, registered, and the context too. Both words are nobody
 * else's, and 0 at first. */
int rc_words_try(const struct rc_cuda *cuda, struct rc_word words[2], rc_cu_ptr address, int64_t patience_ns);

#endif
