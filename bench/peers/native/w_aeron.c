/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Aeron IPC: an exclusive publication, and a subscription in each reader. The writer's process
 * starts a media driver, with one thread for all its work, as there are few CPUs. Messages of up to
 * an MTU are claimed and read in place, larger ones are offered in fragments and assembled. Terms
 * of 1 MiB or more, so that small messages stay in the cache. The writer yields while the
 * publication is back-pressured: the driver has to move the limit.
 */
#define _GNU_SOURCE
#include <aeron/aeronc.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "board.h"

enum {
  NAME = 128,
  STREAM = 1001,
  MTU = 65504,
  CLAIM = MTU - 32,
  MI = 1 << 20,
  LARGEST_TERM = 128 * MI
};

struct state {
  aeron_context_t *context;
  aeron_t *client;
  aeron_exclusive_publication_t *publication;
  aeron_subscription_t *subscription;
  aeron_fragment_assembler_t *assembler;
  aeron_buffer_claim_t claim;
  aeron_image_t *image;
  const uint8_t *data; /* of the latest message */
  size_t bytes;
  pid_t driver;
};

static void must(const struct end *end, int result, const char *what) {
  if (result < 0) peers_die(end, "%s: %s", what, aeron_errmsg());
}

/* One folder for both streams of a run. */
static const char *folder_of(const struct end *end, char *text) {
  struct end first = *end;
  char stream[NAME / 2];
  first.instance = 0;
  snprintf(text, NAME, "/dev/shm/%s-aeron", peers_stream_name(&first, stream, sizeof stream));
  return text;
}

/* A message is at most an eighth of a term. */
static const char *channel_of(const struct end *end, char *text) {
  size_t term = MI;
  while (term < 16 * end->bytes && term < LARGEST_TERM) term *= 2;
  snprintf(text, NAME, "aeron:ipc?term-length=%zu|mtu=%d", term, MTU);
  return text;
}

static pid_t start_driver(struct end *end) {
  char folder[NAME];
  folder_of(end, folder);
  pid_t pid = fork();
  if (pid < 0) peers_die(end, "can't start a process: %s", strerror(errno));
  if (pid > 0) return pid;
  cpu_set_t all; /* the writer is pinned, the driver need not be */
  if (sched_getaffinity(end->board->pid, sizeof all, &all) == 0)
    sched_setaffinity(0, sizeof all, &all);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setenv("AERON_DIR", folder, 1);
  setenv("AERON_DIR_DELETE_ON_START", "1", 1);
  setenv("AERON_DIR_DELETE_ON_SHUTDOWN", "1", 1);
  setenv("AERON_THREADING_MODE", "SHARED", 1);
  if (!getenv("PEERS_VERBOSE")) (void)!freopen("/dev/null", "w", stderr);
  (void)!freopen("/dev/null", "w", stdout);
  execl(PEERS_AERONMD, PEERS_AERONMD, (char *)NULL);
  _exit(1);
}

static void open_client(struct end *end) {
  struct state *state = end->state;
  char folder[NAME];
  must(end, aeron_context_init(&state->context), "can't make a context");
  must(end, aeron_context_set_dir(state->context, folder_of(end, folder)), "can't set the folder");
  must(end, aeron_context_set_pre_touch_mapped_memory(state->context, true),
       "can't ask for pages in place");
  must(end, aeron_init(&state->client, state->context), "can't find the media driver");
  must(end, aeron_start(state->client), "can't start the client");
}

static void open_publication(struct end *end) {
  struct state *state = end->state;
  aeron_async_add_exclusive_publication_t *adding;
  aeron_publication_constants_t facts;
  char channel[NAME];
  must(end,
       aeron_async_add_exclusive_publication(&adding, state->client, channel_of(end, channel),
                                             STREAM + (int)end->instance),
       "can't add a publication");
  while (!state->publication) {
    must(end, aeron_async_add_exclusive_publication_poll(&state->publication, adding),
         "can't add a publication");
    sched_yield();
  }
  must(end, aeron_exclusive_publication_constants(state->publication, &facts),
       "no facts of the publication");
  if (facts.max_message_length < end->bytes)
    peers_die(end, "the largest message has %zu bytes", facts.max_message_length);
}

static void on_message(void *context, const uint8_t *data, size_t bytes, aeron_header_t *header) {
  struct state *state = context;
  (void)header;
  state->data = data;
  state->bytes = bytes;
}

static void open_subscription(struct end *end) {
  struct state *state = end->state;
  aeron_async_add_subscription_t *adding;
  char channel[NAME];
  must(end,
       aeron_async_add_subscription(&adding, state->client, channel_of(end, channel),
                                    STREAM + (int)end->instance, NULL, NULL, NULL, NULL),
       "can't add a subscription");
  while (!state->subscription) {
    must(end, aeron_async_add_subscription_poll(&state->subscription, adding),
         "can't add a subscription");
    sched_yield();
  }
  must(end, aeron_fragment_assembler_create(&state->assembler, on_message, state),
       "can't make an assembler");
  while (aeron_subscription_image_count(state->subscription) < 1) usleep(100);
  state->image = aeron_subscription_image_at_index(state->subscription, 0);
  if (!state->image) peers_die(end, "the publication has gone");
  peers_publish(end, "", 0);
}

static void open_end(struct end *end) {
  struct state *state = end->state = calloc(1, sizeof *state);
  char nothing[1];
  if (!state) peers_die(end, "no memory");
  if (end->rank == 0 && end->instance == 0) state->driver = start_driver(end);
  open_client(end);
  if (end->rank != end->writer) {
    open_subscription(end);
    return;
  }
  open_publication(end);
  for (uint32_t rank = 0; rank < end->processes; rank++)
    if (rank != end->writer) peers_await(end, rank, nothing, sizeof nothing);
}

static void version(char *text, size_t size) { snprintf(text, size, "%s", aeron_version_text()); }

static void relax_of(struct end *end, int64_t result) {
  if (result == AERON_PUBLICATION_CLOSED || result == AERON_PUBLICATION_ERROR ||
      result == AERON_PUBLICATION_MAX_POSITION_EXCEEDED)
    peers_die(end, "can't send: %s", aeron_errmsg());
  sched_yield();
}

static void *reserve(struct end *end, size_t bytes) {
  struct state *state = end->state;
  int64_t result;
  while ((result =
              aeron_exclusive_publication_try_claim(state->publication, bytes, &state->claim)) < 0)
    relax_of(end, result);
  return state->claim.data;
}

static void commit(struct end *end, size_t bytes) {
  struct state *state = end->state;
  (void)bytes;
  must(end, aeron_buffer_claim_commit(&state->claim), "can't commit");
}

static void send(struct end *end, const void *data, size_t bytes) {
  struct state *state = end->state;
  int64_t result;
  if (bytes <= CLAIM) {
    memcpy(reserve(end, bytes), data, bytes);
    commit(end, bytes);
    return;
  }
  while ((result = aeron_exclusive_publication_offer(state->publication, data, bytes, NULL, NULL)) <
         0)
    relax_of(end, result);
}

/* Finds the message and leaves the position where it is: the driver clears what lies behind the
 * position. */
static aeron_controlled_fragment_handler_action_t keep(void *context, const uint8_t *data,
                                                       size_t bytes, aeron_header_t *header) {
  on_message(context, data, bytes, header);
  return AERON_ACTION_ABORT;
}

static aeron_controlled_fragment_handler_action_t pass(void *context, const uint8_t *data,
                                                       size_t bytes, aeron_header_t *header) {
  (void)context, (void)data, (void)bytes, (void)header;
  return AERON_ACTION_CONTINUE;
}

static const void *receive(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  for (state->data = NULL;;) {
    if (end->bytes <= CLAIM)
      must(end, aeron_image_controlled_poll(state->image, keep, state, 1), "can't receive");
    else
      must(end,
           aeron_image_poll(state->image, aeron_fragment_assembler_handler, state->assembler, 1),
           "can't receive");
    if (state->data) break;
    peers_relax(end->oversubscribed);
  }
  *bytes = state->bytes;
  return state->data;
}

static void release(struct end *end) {
  struct state *state = end->state;
  if (end->bytes <= CLAIM)
    must(end, aeron_image_controlled_poll(state->image, pass, state, 1), "can't release");
}

static double driver_cpu_s(const struct end *end) {
  const struct state *state = end->state;
  struct timespec used;
  clockid_t clock;
  if (!state->driver || clock_getcpuclockid(state->driver, &clock) != 0 ||
      clock_gettime(clock, &used) != 0)
    return 0;
  return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

static void close_end(struct end *end) {
  struct state *state = end->state;
  aeron_close(state->client);
  aeron_context_close(state->context);
  if (state->assembler) aeron_fragment_assembler_delete(state->assembler);
  if (state->driver) {
    kill(state->driver, SIGTERM);
    waitpid(state->driver, NULL, 0);
  }
  free(state);
}

extern const struct way_calls aeron_calls;
const struct way_calls aeron_calls = {.version = version,
                                      .open = open_end,
                                      .write = send,
                                      .read = receive,
                                      .release = release,
                                      .reserve = reserve,
                                      .commit = commit,
                                      .helpers_cpu_s = driver_cpu_s,
                                      .close = close_end};
