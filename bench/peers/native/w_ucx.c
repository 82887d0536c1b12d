/* SPDX-License-Identifier: Apache-2.0 */
/* UCX: a tagged send to each reader, over its transports of shared memory; waits by
 * ucp_worker_progress, as UCX's examples do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "way.h"

enum { ADDRESS = 4096, TAG = 1 };

struct state {
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h readers[64];
  uint32_t count;
  void *memory; /* of a reader */
};

static void must(const struct end *end, ucs_status_t status, const char *what) {
  if (status != UCS_OK) peers_die(end, "%s: %s", what, ucs_status_string(status));
}

static void make_worker(struct end *end, struct state *state) {
  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
  ucp_worker_params_t how = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                             .thread_mode = UCS_THREAD_MODE_SINGLE};
  ucp_config_t *config;
  must(end, ucp_config_read(NULL, NULL, &config), "can't read the configuration");
  must(end, ucp_config_modify(config, "TLS", "sm,self"), "no transport of shared memory");
  must(end, ucp_init(&params, config, &state->context), "can't make a context");
  ucp_config_release(config);
  must(end, ucp_worker_create(state->context, &how, &state->worker), "can't make a worker");
}

static void publish_address(struct end *end, struct state *state) {
  ucp_address_t *address;
  size_t bytes;
  must(end, ucp_worker_get_address(state->worker, &address, &bytes), "no address");
  peers_publish(end, address, bytes);
  ucp_worker_release_address(state->worker, address);
}

static void connect_reader(struct end *end, struct state *state, uint32_t rank) {
  _Alignas(16) char address[ADDRESS];
  peers_await(end, rank, address, sizeof address);
  ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                            .address = (ucp_address_t *)address};
  must(end, ucp_ep_create(state->worker, &params, &state->readers[state->count++]),
       "can't connect");
}

static void open_end(struct end *end) {
  struct state *state = end->state = calloc(1, sizeof *state);
  if (!state) peers_die(end, "no memory");
  make_worker(end, state);
  if (end->rank != end->writer) {
    state->memory = peers_memory(end, end->bytes);
    publish_address(end, state);
    return;
  }
  for (uint32_t rank = 0; rank < end->processes; rank++)
    if (rank != end->writer) connect_reader(end, state, rank);
}

static void version(char *text, size_t size) {
  unsigned major, minor, patch;
  ucp_get_version(&major, &minor, &patch);
  snprintf(text, size, "%u.%u.%u", major, minor, patch);
}

static void finish(struct end *end, ucs_status_ptr_t request, const char *what) {
  struct state *state = end->state;
  ucs_status_t status;
  if (!UCS_PTR_IS_PTR(request)) {
    must(end, UCS_PTR_STATUS(request), what);
    return;
  }
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
    if (ucp_worker_progress(state->worker) == 0) peers_relax(end->oversubscribed);
  ucp_request_free(request);
  must(end, status, what);
}

/* All sends start before the first is awaited. */
static void write_all(struct end *end, const void *data, size_t bytes) {
  struct state *state = end->state;
  const ucp_request_param_t plain = {0};
  ucs_status_ptr_t requests[64];
  for (uint32_t i = 0; i < state->count; i++)
    requests[i] = ucp_tag_send_nbx(state->readers[i], data, bytes, TAG, &plain);
  for (uint32_t i = 0; i < state->count; i++) finish(end, requests[i], "can't send");
}

static const void *read_all(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  const ucp_request_param_t plain = {0};
  finish(end, ucp_tag_recv_nbx(state->worker, state->memory, end->bytes, TAG, UINT64_MAX, &plain),
         "can't receive");
  *bytes = end->bytes;
  return state->memory;
}

/* The endpoints go with the worker. */
static void close_end(struct end *end) {
  struct state *state = end->state;
  ucp_worker_destroy(state->worker);
  ucp_cleanup(state->context);
  free(state->memory);
  free(state);
}

extern const struct way_calls ucx_calls;
const struct way_calls ucx_calls = {
    .version = version, .open = open_end, .write = write_all, .read = read_all, .close = close_end};
