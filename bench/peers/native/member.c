/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "member.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "scenarios.h"
#include "tools/sum.h"

void member_fill(uint8_t *data, size_t bytes) {
  memset(data, 0, bytes < sizeof(uint64_t) ? bytes : sizeof(uint64_t));
  for (size_t i = sizeof(uint64_t); i < bytes; i++) data[i] = (uint8_t)(i * 131 + 7 + (i >> 12));
}

/* Member r runs on the CPU r % CPUs, of the CPUs allowed to the program. */
static void pin(const struct end *end) {
  cpu_set_t allowed, chosen;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) peers_die(end, "can't tell the CPUs: %s", strerror(errno));
  int wanted = (int)(end->rank % (uint32_t)CPU_COUNT(&allowed)), cpu = 0;
  while (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) cpu++;
  CPU_ZERO(&chosen);
  CPU_SET(cpu, &chosen);
  if (sched_setaffinity(0, sizeof chosen, &chosen) != 0)
    peers_die(end, "can't run on CPU %d: %s", cpu, strerror(errno));
}

/* Of the process, or of the thread if the members are threads; with the way's helper processes. */
static double cpu_seconds(const struct member *member) {
  const struct end *end = &member->there;
  struct rusage used;
  getrusage(end->way->flags & WAY_IN_PROCESS ? RUSAGE_THREAD : RUSAGE_SELF, &used);
  double helpers = end->way->calls->helpers_cpu_s ? end->way->calls->helpers_cpu_s(end) : 0;
  return helpers + (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

void member_start_measuring(struct member *member) {
  member->seat->begin = clock_ns();
  member->cpu_before = cpu_seconds(member);
}

static void stop_measuring(struct member *member) {
  member->seat->cpu_s = cpu_seconds(member) - member->cpu_before;
  member->seat->finish = clock_ns();
}

static double highest_rss_mb(void) {
  char line[128];
  long kib = 0;
  FILE *status = fopen("/proc/self/status", "re");
  while (status && fgets(line, sizeof line, status))
    if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
  if (status) fclose(status);
  return (double)kib / 1024;
}

/* A writing member has the contents in private memory; readers compare with the sum. */
static void make_source(struct member *member) {
  const struct end *end = &member->there;
  if (end->rank != end->writer && !member->board->both && !scenario_compares(&member->board->step)) return;
  member->source = peers_memory(end, end->bytes * scenario_batch(&member->board->step));
  for (size_t i = 0; i < scenario_batch(&member->board->step); i++)
    member_fill(member->source + i * end->bytes, end->bytes);
  if (end->rank == end->writer) member->board->sum = sum_bytes(member->source, end->bytes);
}

static void open_ends(struct member *member) {
  const struct way_calls *calls = member->there.way->calls;
  if (calls->open) calls->open(&member->there);
  if (calls->open && member->board->both) calls->open(&member->back);
  if (calls->version && member->there.rank == 0) calls->version(member->board->version, sizeof member->board->version);
}

static void close_ends(struct member *member) {
  const struct way_calls *calls = member->there.way->calls;
  if (calls->close && member->board->both) calls->close(&member->back);
  if (calls->close) calls->close(&member->there);
}

void member_ends(struct board *board, const struct way *way, struct end *there, struct end *back) {
  uint32_t processes = board->step.processes;
  *there = (struct end){.way = way, .board = board, .processes = processes, .bytes = board->step.bytes};
  there->oversubscribed = processes > board->cpus;
  *back = *there;
  back->writer = back->instance = 1;
  board->both = scenario_goes_back(&board->step) && processes == 2;
}

void member_run(struct board *board, const struct end *there, const struct end *back, uint32_t rank) {
  struct member member = {.board = board, .seat = &board->seats[rank], .there = *there, .back = *back};
  member.there.rank = member.back.rank = rank;
  atomic_store_explicit(&member.seat->pid, getpid(), memory_order_relaxed);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(&member.there);
  make_source(&member);
  open_ends(&member);
  board_barrier(board, true);
  member.sum = board->sum;
  if (!there->oversubscribed) board_measure_line(board, rank, 0);
  member_start_measuring(&member);
  scenario_run(&member);
  stop_measuring(&member);
  member.seat->rss_mb = highest_rss_mb();
  board_barrier(board, true);
  if (!there->oversubscribed) board_measure_line(board, rank, 1);
  close_ends(&member);
  free(member.source);
}
