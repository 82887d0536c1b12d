/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of verbs share. */
#ifndef RC_TESTS_GPU_WORLD_H
#define RC_TESTS_GPU_WORLD_H

#include "gpu/reader.h"
#include "gpu/writer.h"
#include "tests/gpu_scenarios/scenario.h"
#include "tests/support/fake_controls.h"

enum { SOURCE_BYTES = 1 << 20, ITEM_BYTES = 1024 /* between the tensors of one frame */, STREAMS = 8 };

extern const struct rc_cuda *cuda; /* NULL: not opened yet */
extern rc_cu_ptr source, target;   /* the source's byte i is (uint8_t)(7 * i) */
extern rc_cu_stream stream;        /* that the steps send and receive on */
extern struct draft {
  struct ringcast_gpu_extent lease;
  uint64_t offset;
  size_t bytes; /* of the frame */
  ringcast_device_ptr where;
} drafts[8];

#define driver(call) must((call) == RC_CU_SUCCESS)
void open_device(void);
rc_cu_stream stream_of(const char *name);
rc_cu_result set_capture(rc_cu_stream stream, bool on);
void close_words(void); /* probes.c */
/* The target's bytes from `offset` on, once the stream has come so far, are those of the source from `at` on. */
void target_holds(uint64_t at, uint64_t bytes, uint64_t offset);
struct ringcast_tensor bytes_at(rc_cu_ptr memory, int64_t *shape);
long do_send(struct words *words);
long do_recv(struct words *words);
void close_reader(void);
void close_writer(void);

static inline int letter(const char *name) {
  if (name[0] < 'a' || name[0] > 'h' || name[1] != '\0') wrong("'%s' is no letter", name);
  return name[0] - 'a';
}
#define DRAFT(word)  (&drafts[letter(words->at[word])])
#define NUMBER(word) number(words->at[word])

static inline bool has_word(const struct words *words, const char *word) {
  for (int i = 1; i < words->count; i++)
    if (strcmp(words->at[i], word) == 0) return true;
  return false;
}

/* What follows "NAME=" in one of the words, or NULL. */
static inline const char *option(const struct words *words, const char *name) {
  size_t length = strlen(name);
  for (int i = 1; i < words->count; i++)
    if (strncmp(words->at[i], name, length) == 0 && words->at[i][length] == '=') return words->at[i] + length + 1;
  return NULL;
}

static inline uint64_t number_of(const struct words *words, const char *name, uint64_t otherwise) {
  const char *text = option(words, name);
  return text ? number(text) : otherwise;
}

#endif
