/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario expects: numbers, results, and conditions on what writer, reader and driver say
 * of themselves. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#include "ringcast/gpu.h"
#include "tests/gpu_scenarios/scenario.h"

static const struct {
  const char *name;
  long value;
} results[] = {{"POOL", RINGCAST_PLACEMENT_POOL},
               {"INLINE", RINGCAST_PLACEMENT_INLINE},
               {"EAGAIN", -EAGAIN},
               {"EBUSY", -EBUSY},
               {"ECHILD", -ECHILD},
               {"ECONNABORTED", -ECONNABORTED},
               {"EINTR", -EINTR},
               {"EINVAL", -EINVAL},
               {"EIO", -EIO},
               {"EMSGSIZE", -EMSGSIZE},
               {"ENODEV", -ENODEV},
               {"ENOENT", -ENOENT},
               {"ENOMEM", -ENOMEM},
               {"ENOTSUP", -ENOTSUP},
               {"EPIPE", -EPIPE},
               {"EPROTO", -EPROTO},
               {"ESTALE", -ESTALE},
               {"ETIMEDOUT", -ETIMEDOUT}},
  ways[] = {{"POOL", RINGCAST_GPU_WAY_POOL},           {"NO_POOL", RINGCAST_GPU_WAY_NO_POOL},
            {"NO_READER", RINGCAST_GPU_WAY_NO_READER}, {"WAITING", RINGCAST_GPU_WAY_WAITING},
            {"REFUSED", RINGCAST_GPU_WAY_REFUSED},     {"LOST", RINGCAST_GPU_WAY_LOST}};

/* A product of numbers, with K and M; `text` goes on behind it. */
static uint64_t product(const char **text) {
  uint64_t value = 1;
  do {
    char *end;
    *text += **text == '*';
    if (strncmp(*text, "max", 3) == 0) {
      value *= UINT64_MAX;
      *text += 3;
      continue;
    }
    uint64_t factor = strtoull(*text, &end, 0);
    if (end == *text) wrong("'%s' is no number", *text);
    value *= factor << (*end == 'K' ? 10 : *end == 'M' ? 20 : 0);
    *text = end + (*end == 'K' || *end == 'M');
  } while (**text == '*');
  return value;
}

uint64_t number(const char *text) {
  const char *rest = text;
  uint64_t sum = *rest == '-' ? 0 : product(&rest);
  while (*rest == '+' || *rest == '-') {
    bool is_less = *rest++ == '-';
    uint64_t next = product(&rest);
    sum = is_less ? sum - next : sum + next;
  }
  if (*rest != '\0') wrong("'%s' is no number", text);
  return sum;
}

bool is_result(long result, const char *text) {
  for (const char *at = text; *at;) {
    size_t length = strcspn(at, "|");
    char one[32];
    snprintf(one, sizeof one, "%.*s", (int)length, at);
    bool is_named = false;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
      if (strcmp(results[i].name, one) != 0) continue;
      is_named = true;
      if (results[i].value == result) return true;
    }
    if (!is_named && (long)number(one) == result) return true;
    at += length + (at[length] == '|');
  }
  return false;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static uint64_t way_or_number(const char *text) {
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    if (strcmp(ways[i].name, text) == 0) return (uint64_t)ways[i].value;
  if (strcmp(text, "me") == 0) return (uint64_t)getpid();
  return number(text);
}

#define FIELD(name)                                      \
  {                                                      \
#name, offsetof(struct ringcast_gpu_info, name),     \
        sizeof(((struct ringcast_gpu_info *)NULL)->name) \
  }
static const struct {
  const char *name;
  size_t at, bytes;
} fields[] = {FIELD(way),           FIELD(device),      FIELD(pool_bytes),
              FIELD(slots),         FIELD(epoch),       FIELD(reader),
              FIELD(reader_pid),    FIELD(pool_frames), FIELD(pool_bytes_sent),
              FIELD(inline_frames), FIELD(full),        FIELD(opens),
              FIELD(syncs),         FIELD(slots_used),  FIELD(bytes_used),
              FIELD(registered)};

static struct ringcast_gpu_device_info looked_at; /* by `look-up` */

static long do_look_up(void) {
  uint32_t size = (uint32_t)number_of("size", sizeof looked_at);
  looked_at = (struct ringcast_gpu_device_info){.size = size};
  int rc = ringcast_gpu_device((int32_t)number_of("device", 0), size ? &looked_at : NULL);
  if (rc == 0 && !is_real)
    must(looked_at.uuid[14] == looked_at.name[9]); /* "Fake GPU 1", "fake-cuda-gpu-1" */
  return rc;
}

static long do_called(void) { return strcmp(looked_at.name, words->at[1]); }

struct ringcast_gpu_info info_of(bool is_writer) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  int rc = is_writer ? ringcast_gpu_writer_info(side.gpu_writer, &info)
                     : ringcast_gpu_reader_info(side.gpu_reader, &info);
  must(rc == 0);
  return info;
}

static long do_info(void) {
  struct ringcast_gpu_info info = {.size = (uint32_t)number_of("size", sizeof info)};
  return strcmp(words->at[1], "writer") == 0 ? ringcast_gpu_writer_info(side.gpu_writer, &info)
                                             : ringcast_gpu_reader_info(side.gpu_reader, &info);
}

static long do_says(void) {
  if (!strstr(ringcast_last_error(), words->at[1])) wrong("it says: %s", ringcast_last_error());
  return 0;
}

static uint64_t field_of(const struct ringcast_gpu_info *info, const char *name) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (strcmp(fields[i].name, name) == 0) {
      memcpy(&value, (const char *)info + fields[i].at, fields[i].bytes);
      return value;
    }
  wrong("there is no '%s'", name);
}

/* Calls of a function, or what there is now ("contexts_made"). */
static uint64_t count_of(const char *name) {
  char live[32];
  snprintf(live, sizeof live, "%s", name);
  for (char *at = live; *at; at++)
    if (*at == '_') *at = ' ';
  long count = fake_cuda()->live(live);
  if (count < 0) count = fake_cuda()->calls(name);
  if (count < 0) wrong("there is no '%s'", name);
  return (uint64_t)count;
}

/* What a count, or an epoch, was at `mark`: that is what a value that begins with + is added to. */
static struct marked {
  char name[32];
  uint64_t value;
} marks[16];

static uint64_t value_of(const char *of, const char *name) {
  if (strcmp(of, "driver") == 0) return count_of(name);
  struct ringcast_gpu_info info = info_of(strcmp(of, "writer") == 0);
  return field_of(&info, name);
}

static long do_mark(void) {
  for (int i = 2; i < words->count; i++) {
    struct marked *mark = marks;
    while (*mark->name && strcmp(mark->name, words->at[i]) != 0) must(++mark < marks + 16);
    snprintf(mark->name, sizeof mark->name, "%s", words->at[i]);
    mark->value = value_of(words->at[1], words->at[i]);
  }
  return 0;
}

static uint64_t marked(const char *name) {
  for (struct marked *mark = marks; mark < marks + 16; mark++)
    if (strcmp(mark->name, name) == 0) return mark->value;
  wrong("'%s' was not marked", name);
}

/* NAME=VALUE, !=, <=, >=, or ~TEXT of `why`. `out`: what it is instead. */
static bool holds(const char *of, const char *condition, char out[320]) {
  size_t length = strcspn(condition, "=<>!~");
  char name[32];
  const char *sign = condition + length, *value = sign + 1 + (sign[0] != '=' && sign[1] == '=');
  snprintf(name, sizeof name, "%.*s", (int)length, condition);
  if (*sign == '~') {
    struct ringcast_gpu_info info = info_of(strcmp(of, "writer") == 0);
    snprintf(out, 320, "%s", info.why);
    return *value ? strstr(info.why, value) != NULL : *info.why == '\0';
  }
  int64_t found = (int64_t)value_of(of, name);
  int64_t wanted =
      (int64_t)(*value == '+' ? marked(name) + number(value + 1) : way_or_number(value));
  snprintf(out, 320, "%lld", (long long)found);
  switch (*sign) {
  case '=': return found == wanted;
  case '!': return found != wanted;
  case '<': return found <= wanted;
  case '>': return found >= wanted;
  default: wrong("'%s' is no condition", condition);
  }
}

static long do_expect(void) {
  char found[320];
  for (int i = 2; i < words->count; i++)
    if (!holds(words->at[1], words->at[i], found)) wrong("not %s: %s", words->at[i], found);
  return 0;
}

static long do_comes(void) {
  char found[320];
  for (int i = 2; i < words->count; i++) {
    while (!holds(words->at[1], words->at[i], found)) {
      usleep(200);
      tidy();
    }
  }
  return 0;
}

const struct verb expect_verbs[] = {
    {"look-up", do_look_up}, /* [device=N] [size=N; 0: no struct]: the device */
    {"called", do_called},   /* NAME: the device */
    {"info", do_info},       /* writer|reader [size=N] */
    {"says", do_says},       /* TEXT in the last error */
    {"mark", do_mark},       /* driver|writer|reader NAME ... */
    {"expect", do_expect},   /* driver|writer|reader CONDITION ... */
    {"comes", do_comes},     /* the same, soon */
    {NULL, NULL},
};
