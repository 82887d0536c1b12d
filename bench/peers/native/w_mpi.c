/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI_Bcast. Built once against each MPI, as a program that mpiexec starts: its argument is the
 * path of the board. MPI_Bcast waits by polling. With more processes than CPUs, MPI_Ibcast and
 * sched_yield take its place.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board.h"

struct state {
  MPI_Comm group; /* a stream of its own */
  void *memory;
};

static void open_end(struct end *end) {
  struct state *state = calloc(1, sizeof *state);
  if (!state || MPI_Comm_dup(MPI_COMM_WORLD, &state->group) != MPI_SUCCESS)
    peers_die(end, "can't make a group");
  if (end->rank != end->writer) state->memory = peers_memory(end, end->bytes);
  end->state = state;
}

static void version(char *text, size_t size) {
  char whole[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length;
  MPI_Get_library_version(whole, &length);
  snprintf(text, size, "%.*s", (int)strcspn(whole, ",\n"), whole);
}

static void broadcast(struct end *end, void *data, size_t bytes) {
  struct state *state = end->state;
  MPI_Request request;
  int done = 0, result;
  if (!end->oversubscribed) {
    result = MPI_Bcast(data, (int)bytes, MPI_BYTE, (int)end->writer, state->group);
  } else {
    result = MPI_Ibcast(data, (int)bytes, MPI_BYTE, (int)end->writer, state->group, &request);
    while (result == MPI_SUCCESS &&
           (result = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done)
      sched_yield();
  }
  if (result != MPI_SUCCESS) peers_die(end, "the broadcast failed with MPI's code %d", result);
}

/* MPI_Bcast does not change the root's memory. */
static void write_all(struct end *end, const void *data, size_t bytes) {
  broadcast(end, (void *)(uintptr_t)data, bytes);
}

static const void *read_all(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  *bytes = end->bytes;
  broadcast(end, state->memory, end->bytes);
  return state->memory;
}

static void close_end(struct end *end) {
  struct state *state = end->state;
  MPI_Comm_free(&state->group);
  free(state->memory);
  free(state);
}

extern const struct way_calls mpi_calls;
const struct way_calls mpi_calls = {
    .version = version, .open = open_end, .write = write_all, .read = read_all, .close = close_end};

int main(int count, char **arguments) {
  struct end there, back;
  int rank;
  if (count != 2) return fputs("peers_native starts this program\n", stderr), 2;
  if (MPI_Init(&count, &arguments) != MPI_SUCCESS) return 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  struct board *board = board_map(arguments[1]);
  member_ends(board, peers_find_way(board->step.way), &there, &back);
  member_run(board, &there, &back, (uint32_t)rank);
  MPI_Finalize();
  return 0;
}
