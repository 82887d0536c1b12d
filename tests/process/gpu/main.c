/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   gpu_broadcast [--seed N] [--consumers N] [--messages N] ...: see the table below
 *
 * Expects the tests' own libcuda.so.1 (LD_LIBRARY_PATH). Its last line says how many messages were corrupt. Exit status
 * 1 if any was, or anything else was wrong, or nothing went on for --patience seconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/process/gpu/broadcast.h"

struct options options = {
    .seed = 1,
    .consumers = 2,
    .messages = 200,
    .pool = 4 << 20,
    .ring = 4 << 20,
    .slots = 32,
    .typical = 16 << 10,
    .delays = 1500,
    .slow = 1500,
    .views = 4,
    .releases = 10,
    .drops = 16,
    .huge = 0,
    .patience = 60,
};
struct board *board;
struct party *self;

static const struct {
  const char *name;
  uint64_t *value;
} known[] = {
    {"seed", &options.seed},
    {"consumers", &options.consumers},
    {"messages", &options.messages},
    {"guests", &options.guests}, /* consumers that come and go in the middle, ... */
    {"kills", &options.kills},   /* ... of whom so many die */
    {"pool", &options.pool},     /* bytes; 0: none */
    {"ring", &options.ring},
    {"slots", &options.slots},
    {"typical", &options.typical},       /* bytes of a tensor */
    {"generation", &options.generation}, /* that the pool's words begin with */
    {"delays", &options.delays},         /* us that a stream is held up, at most; 0: never, and no jitter either */
    {"slow", &options.slow},             /* us that a consumer sleeps now and then, at most */
    {"views", &options.views},           /* one tensor of so many is looked at where it lies */
    {"releases", &options.releases},     /* one frame of so many is given back unread */
    {"drops", &options.drops},           /* after one message of so many, a lease comes to nothing */
    {"huge", &options.huge},             /* one message of so many fills the pool, or is too large for it */
    {"unregistered", &options.unregistered},
    {"no-inline", &options.no_inline},
    {"flood", &options.flood},             /* the producer does not look whether the pool is getting full */
    {"expect-pool", &options.expect_pool}, /* percent of frames that must go by the pool, after the first that does */
    {"expect-full", &options.expect_full},
    {"patience", &options.patience},
};

static void read_options(int count, char **words) {
  for (int i = 1; i < count; i += 2) {
    uint64_t *value = NULL;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
      if (strncmp(words[i], "--", 2) == 0 && strcmp(words[i] + 2, known[k].name) == 0) value = known[k].value;
    char *end = NULL;
    if (value && i + 1 < count) *value = strtoull(words[i + 1], &end, 0);
    if (!end || *end != '\0' || end == words[i + 1]) {
      fprintf(stderr, "gpu_broadcast: what is '%s'? See %s\n", words[i], __FILE__);
      exit(2);
    }
  }
  if (1 + options.consumers + options.guests > MOST_PARTICIPANTS || options.consumers == 0 || options.messages == 0)
    exit(2);
}

void give_up(const char *format, ...) {
  char text[TEXT];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  memcpy(self->text, text, sizeof text);
  _exit(1);
}

void nap(uint64_t most_us) { nanosleep(&(struct timespec){.tv_nsec = (long)(most_us % 1000000 * 1000)}, NULL); }

void step(void) { atomic_fetch_add(&self->steps, 1); }

/* In addition to what the whole run is to do without. */
static void switch_off(const char *what) {
  const char *before = getenv("RINGCAST_DISABLE");
  char list[256];
  snprintf(list, sizeof list, "%s,%s", before ? before : "", what);
  setenv("RINGCAST_DISABLE", list, 1);
}

/* ---- The referee ------------------------------------------------------------------------------------------------ */

static void start(uint32_t index) {
  pid_t pid = fork();
  if (pid != 0) {
    board->participants[index].pid = pid;
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  self = &board->participants[index];
  if (index == PRODUCER) be_producer();
  be_consumer(index);
}

/* Whether it ended as it should. */
static bool is_fine(const struct party *party, int status) {
  bool fine = party->dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : false;
  return fine || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool bury(uint32_t participants) {
  int status;
  bool fine = true;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    for (uint32_t i = 0; i < participants; i++) {
      struct party *party = &board->participants[i];
      if (party->pid != pid) continue;
      party->pid = 0;
      atomic_store(&party->has_left, true);
      if (is_fine(party, status)) continue;
      fine = false;
      if (party->text[0] == '\0') snprintf(party->text, sizeof party->text, "ended with status 0x%x", (unsigned)status);
    }
  return fine;
}

static uint64_t sum_of_steps(uint32_t participants) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < participants; i++) sum += atomic_load(&board->participants[i].steps);
  return sum;
}

static bool anybody_is_left(uint32_t participants) {
  for (uint32_t i = 0; i < participants; i++)
    if (board->participants[i].pid != 0) return true;
  return false;
}

static void kill_all(uint32_t participants) {
  for (uint32_t i = 0; i < participants; i++) {
    if (board->participants[i].pid == 0) continue;
    kill(board->participants[i].pid, SIGKILL);
    waitpid(board->participants[i].pid, NULL, 0);
  }
}

/* Guests come when a part of all was sent; those who have not are not waited for. */
static uint32_t invite(uint32_t guests) {
  uint64_t due = atomic_load(&board->sent) * (options.guests + 2) / options.messages;
  if (guests < options.guests && due > guests) start((uint32_t)options.consumers + 1 + guests++);
  return guests;
}

/* "": all went well. */
static const char *referee(void) {
  uint32_t participants = 1 + (uint32_t)(options.consumers + options.guests), guests = 0;
  uint64_t steps = 0, still = 0;
  for (uint32_t i = 0; i <= options.consumers; i++) start(i);
  const char *wrong = "";
  while (anybody_is_left(participants) && !*wrong) {
    nap(1000);
    guests = invite(guests);
    if (!bury(participants)) wrong = "a process failed";
    uint64_t now = sum_of_steps(participants);
    still = now == steps ? still + 1 : 0;
    steps = now;
    if (still > options.patience * 800) wrong = "it hangs";
  }
  kill_all(participants);
  return wrong;
}

static bool sum_up(const char *wrong) {
  uint64_t sums[8] = {0};
  uint32_t participants = 1 + (uint32_t)(options.consumers + options.guests);
  const struct party *producer = &board->participants[PRODUCER];
  for (uint32_t i = 0; i < participants; i++) {
    const struct party *party = &board->participants[i];
    if (party->text[0] != '\0') fprintf(stderr, "gpu_broadcast: party %u: %s\n", i, party->text);
    if (i == PRODUCER) continue;
    const uint64_t counts[] = {party->messages, party->checked, party->corrupt, party->released,
                               party->views,    party->by_pool, party->by_ring, party->passed};
    for (int k = 0; k < 8; k++) sums[k] += counts[k];
  }
  printf("gpu_broadcast: seed %" PRIu64 ": sent %" PRIu64 " (%" PRIu64 " by the pool, %" PRIu64
         " with device tensors by the ring, full %" PRIu64 ", dropped %" PRIu64 "); received %" PRIu64 " (%" PRIu64
         " by the pool, %" PRIu64 " by the ring, %" PRIu64 " unread, %" PRIu64 " passed over), views %" PRIu64
         ", tensors checked %" PRIu64 "\n",
         options.seed, producer->messages, producer->by_pool, producer->by_ring, producer->full, producer->drops,
         sums[0], sums[5], sums[6], sums[3], sums[7], sums[4], sums[1]);
  printf("gpu_broadcast: corrupt %" PRIu64 " of %" PRIu64 "%s%s\n", sums[2], sums[0], *wrong ? "; " : "", wrong);
  return sums[2] == 0 && !*wrong;
}

int main(int count, char **words) {
  char jitter[24];
  read_options(count, words);
  if (!fake_must_be_found("gpu_broadcast")) return 2;
  if (options.unregistered) switch_off("cuda_register");
  snprintf(jitter, sizeof jitter, "%u", (unsigned)(mix(options.seed) % 1000000 + 1));
  if (options.delays > 0) setenv("FAKE_CUDA_JITTER", jitter, 1);
  rc_semaphore_patience_ns = (int64_t)60 * 1000 * 1000 * 1000; /* a device that is only late is no broken one */
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) return 2;
  for (uint64_t i = 0; i < options.kills && i < options.guests; i++)
    board->participants[1 + options.consumers + i].dies = true;
  return sum_up(referee()) ? 0 : 1;
}
