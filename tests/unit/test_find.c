/* SPDX-License-Identifier: Apache-2.0 */
/* Rings by name. */
#include <errno.h>

#include "ringcast/inspect.h"
#include "tests/support/liveness.h"

/* A name that no other test's ring has. */
static char name[RINGCAST_NAME_BYTES];

static ringcast_writer *named(const char *text) {
  return writer_of(.capacity = 4096, .readers = 1, .name = text);
}

static void set_up(void) {
  remember();
  snprintf(name, sizeof name, "test.find:%d", (int)getpid());
}

/* The number of rings with this name, and the first one. */
static int count_named(const char *wanted, struct ringcast_ring *first) {
  static struct ringcast_ring rings[4096];
  int found = 0;
  rings->size = sizeof *rings;
  int count = ringcast_rings(rings, 4096);
  ck_assert_int_ge(count, 0);
  for (int i = count - 1; i >= 0; i--) {
    if (i > 0) ck_assert_int_le(strcmp(rings[i - 1].name, rings[i].name), 0);
    if (strcmp(rings[i].name, wanted) != 0) continue;
    found++;
    *first = rings[i];
  }
  return found;
}

TEST(a_ring_is_found_by_its_name) {
  char handle[RINGCAST_HANDLE_BYTES];
  struct ringcast_ring ring;
  ck_assert_int_eq(ringcast_find(name, handle), -ENOENT);
  ck_says("ringcast list");
  SCOPED_WRITER writer = named(name);
  ck_assert_int_eq(ringcast_find(name, handle), 0);
  ck_assert_str_eq(handle, ringcast_writer_handle(writer));
  ck_assert_int_eq(count_named(name, &ring), 1);
  ck_assert_int_eq(ring.pid, getpid());
  ck_assert_str_eq(ring.handle, handle);
  ck_assert_str_eq(info_of(writer).name, name);
  SCOPED_READER reader = reader_at(handle, .leases = 1);
  struct ringcast_info info = {.size = sizeof info};
  ck_assert_int_eq(ringcast_reader_info(reader, &info), 0);
  ck_assert_str_eq(info.name, name);
}

TEST(a_closed_ring_is_not_found) {
  char handle[RINGCAST_HANDLE_BYTES];
  ringcast_writer_close(named(name));
  ck_assert_int_eq(ringcast_find(name, handle), -ENOENT);
}

TEST(a_pid_tells_rings_of_one_name_apart) {
  char handle[RINGCAST_HANDLE_BYTES], text[96];
  SCOPED_WRITER writer = named(name);
  struct gate made = gate_make();
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    named(name);
    gate_open(&made);
    for (;;) pause();
  }
  gate_wait(&made);
  gate_free(&made);
  ck_assert_int_eq(ringcast_find(name, handle), -ENOTUNIQ);
  snprintf(text, sizeof text, "%s@%d", name, (int)pid);
  ck_says(text);
  ck_assert_int_eq(ringcast_find(text, handle), 0);
  ck_assert_str_ne(handle, ringcast_writer_handle(writer));
  snprintf(text, sizeof text, "@%d", (int)pid);
  ck_assert_int_eq(ringcast_find(text, handle), 0);
  kill_child(pid);
  ck_assert_int_eq(ringcast_find(name, handle), 0);
  ck_assert_str_eq(handle, ringcast_writer_handle(writer));
}

/* The child of a fork has the descriptors, too; the ring is its parent's and ends with the
 * parent. */
TEST(a_forked_child_is_no_writer) {
  struct gate made = gate_make();
  int child[2];
  ck_assert_int_eq(pipe(child), 0);
  pid_t parent = fork();
  if (parent == 0) {
    named(name);
    pid_t pid = fork();
    if (pid == 0) {
      gate_open(&made);
      for (;;) pause();
    }
    _exit(write(child[1], &pid, sizeof pid) != sizeof pid);
  }
  pid_t pid;
  gate_wait(&made);
  child_must_succeed(parent);
  ck_assert_int_eq((int)read(child[0], &pid, sizeof pid), (int)sizeof pid);
  struct ringcast_ring ring;
  int count = count_named(name, &ring);
  ck_assert_int_eq(kill(pid, SIGKILL), 0);
  ck_assert_int_eq(count, 0);
  gate_free(&made);
  close(child[0]);
  close(child[1]);
}

TEST(two_rings_of_one_process_are_told_apart_by_their_handles) {
  char handle[RINGCAST_HANDLE_BYTES], text[96];
  SCOPED_WRITER first = named(name);
  SCOPED_WRITER second = named(name);
  snprintf(text, sizeof text, "%s@%d", name, (int)getpid());
  ck_assert_int_eq(ringcast_find(text, handle), -ENOTUNIQ);
  ck_says(ringcast_writer_handle(first));
  ck_says(ringcast_writer_handle(second));
  ck_assert_int_eq(ringcast_find(ringcast_writer_handle(second), handle), 0);
  ck_assert_str_eq(handle, ringcast_writer_handle(second));
}

static const char *const no_names[] = {"",
                                       "with space",
                                       "a/b",
                                       "a@1",
                                       "tab\t",
                                       "\xc3\xa4",
                                       "012345678901234567890123456789012345678901234567"};

LOOP_TEST(names_that_will_not_do_are_refused, 0, sizeof no_names / sizeof *no_names) {
  struct ringcast_writer_options options = {.size = sizeof options, .name = no_names[_i]};
  ringcast_writer *writer;
  ck_assert_int_eq(ringcast_writer_create_ex(&options, &writer), -EINVAL);
  ck_says("can't be a ring's name");
}

static const char *const no_rings[] = {"",    "@",    "@x",   "a@",  "a@-1",
                                       "a@0", "a@ 1", "a@+1", "a b", "@4294967297"};

LOOP_TEST(texts_that_are_no_ring_are_refused, 0, sizeof no_rings / sizeof *no_rings) {
  char handle[RINGCAST_HANDLE_BYTES];
  ck_assert_int_eq(ringcast_find(no_rings[_i], handle), -EINVAL);
  ck_says("NAME@PID");
}

TEST(a_descriptor_that_is_duplicated_is_no_second_ring) {
  struct ringcast_ring ring;
  SCOPED_WRITER writer = named(name);
  int fd = dup(writer->segment.control.fd);
  int count = count_named(name, &ring);
  close(fd);
  ck_assert_int_eq(count, 1);
  ck_assert_str_eq(ring.handle, ringcast_writer_handle(writer));
}

TEST(another_process_can_write_any_name) {
  struct ringcast_ring ring;
  SCOPED_WRITER writer = named(name);
  struct rc_identity *id = &rc_segment_control(&writer->segment)->id;
  memset(id->name, 'x', sizeof id->name);
  ck_assert_int_ge(count_named("?", &ring), 1);
  strcpy(id->name, "\033[2J");
  ck_assert_int_ge(count_named("?", &ring), 1);
}

TEST(a_ring_of_another_release_is_shown_without_a_handle) {
  struct ringcast_ring ring;
  char handle[RINGCAST_HANDLE_BYTES], text[32];
  SCOPED_WRITER writer = named(name);
  rc_segment_control(&writer->segment)->id.layout++;
  ck_assert_int_ge(count_named("", &ring), 1);
  snprintf(text, sizeof text, "@%d", (int)getpid());
  ck_assert_int_eq(ringcast_find(text, handle), -EPROTO);
  ck_says("release");
}

TEST(fewer_places_than_rings_are_filled) {
  struct ringcast_ring rings[2] = {{.size = sizeof *rings}};
  SCOPED_WRITER first = named(name);
  SCOPED_WRITER second = named(name);
  ck_assert_int_ge(ringcast_rings(rings, 1), 2);
  ck_assert_int_eq(rings[1].pid, 0);
  ck_assert_int_ge(ringcast_rings(NULL, 0), 2);
  rings->size = 4;
  ck_assert_int_eq(ringcast_rings(rings, 2), -EINVAL);
}

#if !defined(__SANITIZE_ADDRESS__) /* whose shadow takes more addresses than there may be */
/* Takes all memory that this process may still have. */
static void find_without_memory(void *unused) {
  char handle[RINGCAST_HANDLE_BYTES];
  unsigned long pages;
  char text[64];
  (void)unused;
  child_must(rc_os.read_file("/proc/self/statm", text, sizeof text) > 0 &&
             sscanf(text, "%lu", &pages) == 1);
  rlim_t most = pages * (rlim_t)sysconf(_SC_PAGESIZE);
  child_must(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0);
  for (size_t bytes = 1 << 20; bytes >= 4096; bytes /= 2)
    for (void **taken; (taken = malloc(bytes)) != NULL;)
      *taken = taken; /* seen by the compiler as used */
  child_must(ringcast_find(name, handle) == -ENOMEM);
}

TEST(a_search_without_memory_finds_no_answer) {
  if (cannot_under("qemu", __func__, "qemu keeps no limit of the address space")) return;
  SCOPED_WRITER writer = named(name);
  child_must_succeed(start_child(find_without_memory, NULL));
}
#endif

RUN_TESTS("finding rings", set_up, nothing_is_left)
