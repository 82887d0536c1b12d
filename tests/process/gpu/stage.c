/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/process/gpu/broadcast.h"

enum { WORDS = STREAMS + MARKS };

static struct rc_semaphore *word_of(struct stage *stage, uint32_t number) { return &stage->words[number]; }

static rc_cu_ptr address_of(const struct stage *stage, uint32_t number) {
  return stage->words_address + number * sizeof(struct rc_semaphore);
}

/* Streams that were told to wait go on after a while, whatever the others do meanwhile. */
static void *release(void *context) {
  struct stage *stage = context;
  struct dice dice = dice_of(5, (uint64_t)getpid());
  uint64_t released[STREAMS] = {0};
  while (!atomic_load(&stage->ends)) {
    for (uint32_t i = 0; i < STREAMS; i++) {
      uint64_t asked = atomic_load(&stage->asked[i]);
      if (asked == released[i] || one_of(&dice, 2)) continue;
      nap(throw(&dice, options.delays + 1));
      released[i] = asked;
      rc_semaphore_store(word_of(stage, i), asked);
    }
    nap(50);
  }
  return NULL;
}

void stage_open(struct stage *stage, uint64_t seed) {
  static uint8_t junk[JUNK_BYTES];
  *stage = (struct stage){.cuda = rc_cuda(), .dice = dice_of(3, seed)};
  const struct rc_cuda *cuda = stage->cuda;
  if (!cuda) give_up("there is no driver: %s", rc_cuda_status()->why);
  must(cuda->primary_retain(&stage->context, 0) == 0 && cuda->ctx_push(stage->context) == 0);
  for (int i = 0; i < STREAMS; i++)
    must(cuda->stream_create(&stage->streams[i], i == 0 ? 0 : RC_CU_STREAM_NON_BLOCKING) == 0);
  stage->words = stage_host(stage, WORDS * sizeof(struct rc_semaphore));
  must(cuda->host_get_device_pointer(&stage->words_address, stage->words, 0) == 0);
  must(cuda->mem_alloc(&stage->junk, JUNK_BYTES) == 0);
  memset(junk, 0xe7, sizeof junk);
  must(cuda->copy_htod(stage->junk, junk, JUNK_BYTES, stage->streams[0]) == 0);
  must(cuda->stream_synchronize(stage->streams[0]) == 0);
  if (options.delays > 0) must(pthread_create(&stage->releaser, NULL, release, stage) == 0);
}

void stage_close(struct stage *stage) {
  static const char *const kinds[] = {"allocations", "imports", "registered", "streams", "contexts", "queued", "lost"};
  const struct rc_cuda *cuda = stage->cuda;
  atomic_store(&stage->ends, true);
  if (options.delays > 0) pthread_join(stage->releaser, NULL);
  for (uint32_t i = 0; i < STREAMS; i++) rc_semaphore_store(word_of(stage, i), stage->asked[i]);
  for (int i = 0; i < STREAMS; i++) {
    must(cuda->stream_synchronize(stage->streams[i]) == 0);
    must(cuda->stream_destroy(stage->streams[i]) == 0);
  }
  must(cuda->mem_free(stage->junk) == 0);
  stage_host_free(stage, stage->words, WORDS * sizeof(struct rc_semaphore));
  must(cuda->ctx_pop(&stage->context) == 0 && cuda->primary_release(0) == 0);
  /* What is closed by a thread of the library's own is closed soon: else the referee calls it a hang. */
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    while (fake_cuda()->live(kinds[i]) != 0) {
      snprintf(self->text, sizeof self->text, "%ld left: %s", fake_cuda()->live(kinds[i]), kinds[i]);
      nap(500);
    }
  self->text[0] = '\0';
}

void stage_delay(struct stage *stage, int stream) {
  if (options.delays == 0 || !one_of(&stage->dice, 3)) return;
  uint64_t asked = atomic_load(&stage->asked[stream]) + 1;
  must(rc_semaphore_wait(stage->cuda, stage->streams[stream], address_of(stage, (uint32_t)stream), asked) == 0);
  atomic_store(&stage->asked[stream], asked);
}

void stage_spoil(struct stage *stage, rc_cu_ptr memory, uint64_t bytes, rc_cu_stream stream) {
  for (uint64_t at = 0; at < bytes && at < 4 * JUNK_BYTES; at += JUNK_BYTES)
    must(stage->cuda->copy_dtod(memory + at, stage->junk, bytes - at < JUNK_BYTES ? bytes - at : JUNK_BYTES, stream) ==
         0);
}

static uint64_t in_pages(uint64_t bytes) { return (bytes + 4095) & ~(uint64_t)4095; }

void *stage_host(struct stage *stage, uint64_t bytes) {
  void *memory = mmap(NULL, in_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED);
  must(stage->cuda->host_register(memory, in_pages(bytes),
                                  RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP) == 0);
  return memory;
}

void stage_host_free(struct stage *stage, void *memory, uint64_t bytes) {
  must(stage->cuda->host_unregister(memory) == 0);
  munmap(memory, in_pages(bytes));
}

void stage_mark(struct stage *stage, uint32_t mark, uint64_t value, rc_cu_stream stream) {
  must(rc_semaphore_write(stage->cuda, stream, address_of(stage, STREAMS + mark), value) == 0);
}

bool stage_is_marked(struct stage *stage, uint32_t mark, uint64_t value) {
  return rc_semaphore_has_reached(word_of(stage, STREAMS + mark), value);
}

void stage_await(struct stage *stage, uint32_t mark, uint64_t value) {
  while (!stage_is_marked(stage, mark, value)) nap(20);
}

long waits_so_far(void) { return fake_cuda()->calls("fake_own_waits"); }
