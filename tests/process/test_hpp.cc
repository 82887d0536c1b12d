/* SPDX-License-Identifier: Apache-2.0 */
/* ringcast.hpp, as C++17 and as C++20 (tests/CMakeLists.txt), and by other compilers too
 * (tests/lint/installed.sh). Plain checks: check's macros are C. The last cases have two
 * processes. */
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sched.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#if __cplusplus >= 202002L
#include <span>
#endif

#include "ringcast/ringcast.hpp"

using namespace std::chrono_literals;

#define WANT(condition)                                                            \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

/* The errno of the ringcast::error that `call` throws, or 0. */
template <class F> static int code_of(F call) {
  try {
    call();
  } catch (const ringcast::error &error) {
    WANT(*error.what() != 0);
    return error.code().value();
  }
  return 0;
}

/* A small ring and one reader. */
struct pair_of {
  ringcast::writer writer;
  ringcast::reader reader;
  explicit pair_of(std::uint32_t policy = RINGCAST_FAIL, std::uint32_t leases = 1)
      : writer(small(policy)), reader(writer.handle(), held(leases)) {}

  static ringcast_writer_options small(std::uint32_t policy) {
    auto options = ringcast::sized<ringcast_writer_options>();
    options.capacity = 1 << 16;
    options.spill_bytes = RINGCAST_NO_SPILL;
    options.on_slow = policy;
    options.slow_ns = policy == RINGCAST_EVICT;
    return options;
  }
  static ringcast_reader_options held(std::uint32_t leases) {
    auto options = ringcast::sized<ringcast_reader_options>();
    options.leases = leases;
    return options;
  }
};

template <class T>
constexpr bool moves_only =
    std::is_nothrow_move_constructible_v<T> &&std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T>;
static_assert(moves_only<ringcast::writer> && moves_only<ringcast::reader>);
static_assert(moves_only<ringcast::frame> && moves_only<ringcast::reservation>);
static_assert(noexcept(std::declval<ringcast::writer &>().try_send("", 0)));
static_assert(
    noexcept(std::declval<ringcast::reader &>().try_next(std::declval<ringcast::frame &>())));
static_assert(std::is_constructible_v<ringcast::items, ringcast::frame &>);
static_assert(!std::is_constructible_v<ringcast::items,
                                       ringcast::frame>); /* its pointers would lead nowhere */
static_assert(std::is_base_of_v<std::system_error, ringcast::error>);

static void an_error_has_the_errno_and_the_text_of_the_call() {
  try {
    ringcast::reader reader("no handle");
    WANT(false);
  } catch (const std::system_error &error) {
    WANT(error.code() == std::errc::invalid_argument);
    WANT(std::strstr(error.what(), ringcast_last_error()) != nullptr &&
         std::strlen(ringcast_last_error()) > 10);
  }
}

static void timeouts_are_durations() {
  pair_of ring;
  WANT(code_of([&] { ring.reader.next(0s); }) == EAGAIN);
  WANT(code_of([&] { ring.reader.next(2ms); }) == ETIMEDOUT);
  WANT(code_of([&] { ring.reader.next(-2ms); }) == EINVAL);
  WANT(code_of([&] { ring.writer.wait_readers(2, 1us); }) == ETIMEDOUT);
  WANT(ring.writer.wait_readers(1) == 1);
}

static void try_calls_return_what_c_returns() {
  pair_of ring;
  ringcast::frame frame;
  WANT(ring.reader.try_next(frame) == -EAGAIN && frame.try_release() == 0);
  WANT(ring.writer.try_send("abc", 3, 0s, 7) == 0 && ring.writer.try_send("de", 2) == 0);
  WANT(ring.reader.try_next(frame) == 0 && frame.text() == "abc" && frame.kind() == 7);
  WANT(ring.reader.try_next(frame) == 0 &&
       frame.text() == "de"); /* the earlier frame was released */
  ring.writer.close();
  WANT(ring.reader.try_next(frame) == -EPIPE);
}

static void a_reservation_without_a_commit_is_aborted() {
  pair_of ring;
  {
    auto lost = ring.writer.reserve(100);
    WANT(lost.size() == 100 && code_of([&] { ring.writer.reserve(1); }) == EBUSY);
  }
  auto first = ring.writer.reserve(8);
  auto kept = std::move(first);
  kept.grow(200);
  WANT(kept.size() == 200 && code_of([&] { kept.commit(201); }) == EINVAL);
  std::memset(kept.bytes().data(), 'x', kept.bytes().size());
  kept.commit(3, 9);
  WANT(code_of([&] { kept.commit(3); }) == EINVAL);
  ringcast::reservation again;
  WANT(ring.writer.try_reserve(5, again) == 0 && ring.writer.try_reserve(6, again) == 0 &&
       again.size() == 6);
  again.abort();
  auto later = ring.writer.reserve(1);
  kept.abort(); /* was committed, and leaves the later one alone */
  later.commit(0);
  WANT(ring.reader.next().text() == "xxx");
  WANT(ring.reader.next().size() == 0);
  WANT(code_of([&] { ring.reader.next(0s); }) == EAGAIN);
}

static void a_frame_is_released_once_by_its_scope() {
  pair_of ring;
  for (const char *text : {"one", "two", "three"}) ring.writer.send(text);
  {
    auto first = ring.reader.next();
    WANT(code_of([&] { ring.reader.next(); }) == EBUSY);
    ringcast::frame moved = std::move(first);
    WANT(moved.text() == "one" && first.try_release() == 0);
    WANT(code_of([&] { ring.reader.next(); }) == EBUSY);
  }
  auto frame = ring.reader.next();
  WANT(frame.text() == "two");
  frame.release();
  frame.release(); /* nothing is held any more */
  frame = ring.reader.next();
  WANT(frame.size() == 5 && frame.bytes()[4] == std::byte{'e'});
  WANT(reinterpret_cast<std::uintptr_t>(frame.data()) % 64 == 16);
}

static void a_frame_is_released_by_an_exception() {
  pair_of ring;
  for (const char *text : {"one", "two"}) ring.writer.send(text);
  try {
    for (auto &frame : ring.reader) throw std::runtime_error(std::string(frame.text()));
  } catch (const std::runtime_error &error) { WANT(std::strcmp(error.what(), "one") == 0); }
  WANT(ring.reader.next(0s).text() == "two");
}

static void several_frames_can_be_held() {
  pair_of ring(RINGCAST_FAIL, 2);
  ring.writer.send("one");
  ring.writer.send("two");
  auto first = ring.reader.next(), second = ring.reader.next();
  std::swap(first, second);
  WANT(first.text() == "two" && second.text() == "one");
  first = std::move(second); /* releases the second frame */
  ring.writer.send("three");
  WANT(ring.reader.next(0s).text() == "three" && first.text() == "one");
}

/* Sends until the writer has evicted the reader. */
static void evict(pair_of &ring) {
  char block[1000] = {0};
  while (ringcast_reader_check(ring.reader.get()) == 0) ring.writer.send(block, sizeof block);
}

static void release_reports_an_eviction_and_the_scope_is_silent() {
  pair_of ring(RINGCAST_EVICT);
  ring.writer.send("one");
  {
    auto frame = ring.reader.next();
    evict(ring);
    WANT(code_of([&] { frame.release(); }) == ESTALE);
  }
  pair_of other(RINGCAST_EVICT);
  other.writer.send("one");
  auto frame = other.reader.next();
  evict(other);
}

static void a_loop_over_a_reader_throws_when_the_frame_was_lost() {
  pair_of ring(RINGCAST_EVICT);
  ring.writer.send("one");
  int frames = 0;
  WANT(code_of([&] {
         for (auto &frame : ring.reader) {
           frames += frame.size() == 3;
           evict(ring);
         }
       }) == ESTALE);
  WANT(frames == 1);
}

static void the_rest_of_the_api_takes_the_handles() {
  auto options = ringcast::sized<ringcast_writer_options>();
  std::string name = "hpp." + std::to_string(getpid());
  options.name = name.c_str();
  options.capacity = 1 << 16;
  ringcast::writer writer(options);
  auto info = ringcast::sized<ringcast_info>();
  ringcast::check(ringcast_writer_info(writer.get(), &info));
  WANT(info.capacity == 1 << 16 && ringcast::find(name) == writer.handle());
  WANT(code_of([] { ringcast::find("no ring has this name"); }) != 0);
  ringcast_tap *made;
  ringcast::check(ringcast_tap_attach(writer.handle(), &made));
  std::unique_ptr<ringcast_tap, ringcast::closer<ringcast_tap_close>> tap(made);
  ringcast_frame frame;
  WANT(ringcast_tap_next(tap.get(), 0, &frame) == -EAGAIN);
}

/* A dict of a 2 x 3 tensor, the same transposed in memory, and a number. */
static void send_tensors(ringcast::writer &writer, const float (&values)[6]) {
  const std::int64_t shape[] = {2, 3};
  ringcast_tensor plain{values, ringcast::dtype_of<float>(), 2, shape, nullptr, 0};
  const std::int64_t strides[] = {1, 2};
  ringcast_tensor turned{values,  ringcast::dtype_of<float>(), 2, shape,
                         strides, RINGCAST_TENSOR_DENSE};
  ringcast_frame_plan plan{};
  ringcast_plan_tensor(&plan, 1, 2, sizeof values);
  ringcast_plan_tensor(&plan, 1, 2, sizeof values);
  ringcast_plan_item(&plan, 1, 0);
  auto span = writer.reserve(ringcast_plan_bytes(&plan));
  ringcast_frame_builder builder;
  std::size_t bytes = 0;
  WANT(ringcast_build_begin(&builder, span.data(), span.size(), &plan, RINGCAST_ROOT_DICT, 0) == 0);
  WANT(ringcast_build_tensor(&builder, "x", 1, &plain) == 0 &&
       ringcast_build_tensor(&builder, "t", 1, &turned) == 0);
  WANT(ringcast_build_scalar(&builder, RINGCAST_ITEM_INT, "n", 1, 42) == 0);
  WANT(ringcast_build_end(&builder, &bytes) == 0);
  span.commit(bytes, RINGCAST_KIND_TENSORS);
}

static void tensors_are_read_in_place() {
  pair_of ring;
  const float sent[] = {1, 2, 3, 4, 5, 6};
  send_tensors(ring.writer, sent);
  auto frame = ring.reader.next();
  ringcast::items items(frame);
  auto x = items.at("x");
  auto values = x.values<float>();
  WANT(items.size() == 3 && std::equal(values.begin(), values.end(), sent, sent + 6));
  const char *data = reinterpret_cast<const char *>(values.data()), *start = frame.text().data();
  WANT(data > start && data + sizeof sent <= start + frame.size());
  WANT(x.dims().size() == 2 && x.dims()[0] == 2 && x.dims()[1] == 3);
  WANT(items.at("n").scalar.i == 42 && items[2].kind == RINGCAST_ITEM_INT);
  WANT(!x.is<double>() && !x.is<std::int32_t>() &&
       code_of([&] { x.values<std::uint32_t>(); }) == EINVAL);
  WANT(code_of([&] { items.at("t").values<float>(); }) == EINVAL &&
       items.at("t").bytes == sizeof sent);
  WANT(code_of([&] { items.at("n").values<std::int64_t>(); }) == EINVAL);
  WANT(code_of([&] { items.at("y"); }) == ENOENT && code_of([&] { items[3]; }) == ENOENT);
#if __cplusplus >= 202002L
  std::span<const float> standard = x.values<float>();
  WANT(standard.size() == 6 && standard[5] == 6);
#endif
}

static void tensors_without_elements_are_in_order() {
  pair_of ring;
  const std::int64_t shapes[][4] = {{2, 0}, {0, 3}, {3, 2, 0, 5}};
  const int ndims[] = {2, 2, 4};
  for (int i = 0; i < 3; i++) {
    ringcast_tensor tensor{nullptr, ringcast::dtype_of<float>(), ndims[i], shapes[i], nullptr, 0};
    ringcast_frame_plan plan{};
    ringcast_plan_tensor(&plan, 1, ndims[i], 0);
    auto span = ring.writer.reserve(ringcast_plan_bytes(&plan));
    ringcast_frame_builder builder;
    std::size_t bytes = 0;
    WANT(ringcast_build_begin(&builder, span.data(), span.size(), &plan, RINGCAST_ROOT_DICT, 0) ==
         0);
    WANT(ringcast_build_tensor(&builder, "x", 1, &tensor) == 0 &&
         ringcast_build_end(&builder, &bytes) == 0);
    span.commit(bytes, RINGCAST_KIND_TENSORS);
    auto frame = ring.reader.next();
    ringcast::items items(frame);
    WANT(items.at("x").values<float>().size() == 0);
  }
}

static void a_frame_of_bytes_holds_no_tensors() {
  pair_of ring;
  ring.writer.send("0123456789");
  auto frame = ring.reader.next();
  WANT(code_of([&] { ringcast::items items(frame); }) == EPROTO);
  frame.release();
  ring.writer.send("0123456789", 10, 0s, RINGCAST_KIND_TENSORS);
  frame = ring.reader.next();
  WANT(code_of([&] { ringcast::items items(frame); }) == EPROTO);
}

static void another_process_reads_all_until_the_writer_is_gone() {
  ringcast::writer writer;
  pid_t child = fork();
  WANT(child >= 0);
  if (child == 0) {
    ringcast::reader reader(writer.handle());
    int count = 0;
    for (auto &frame : reader) WANT(frame.text() == "step " + std::to_string(count++));
    std::_Exit(count == 1000 ? 0 : 1);
  }
  writer.wait_readers(1, 60s);
  for (int step = 0; step < 1000; step++) writer.send("step " + std::to_string(step), 60s);
  writer.close();
  int status = 1;
  WANT(waitpid(child, &status, 0) == child && status == 0);
}

/* What two processes know of each other while one of them is interrupted once a millisecond. */
struct board {
  volatile int stage, ticks;
  char handle[RINGCAST_HANDLE_BYTES];
};
static board *shared;

static void tick(int) { shared->ticks = shared->ticks + 1; }

/* Returns when the other process has been interrupted some times in this stage. */
static void await_ticks(int stage) {
  while (shared->stage < stage) sched_yield();
  for (int seen = shared->ticks; shared->ticks < seen + 20;) sched_yield();
}

static void answer_slowly(const char *handle) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ringcast::writer writer;
  std::strcpy(shared->handle, writer.handle());
  shared->stage = 1;
  await_ticks(2);
  ringcast::reader reader(handle);
  for (int stage = 3; stage <= 5; stage++) {
    await_ticks(stage);
    writer.send("text");
  }
  await_ticks(5);
  writer.close();
  await_ticks(6);
  int count = 0;
  for (auto &frame : reader) count += frame.size() == 1000;
  std::_Exit(count == 200 ? 0 : 1);
}

static void waits_go_on_after_a_signal() {
  pair_of ring;
  shared = static_cast<board *>(
      mmap(nullptr, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  WANT(shared != MAP_FAILED);
  pid_t child = fork();
  WANT(child >= 0);
  if (child == 0) answer_slowly(ring.writer.handle());
  while (shared->stage < 1) sched_yield();
  struct sigaction action = {};
  action.sa_handler = tick;
  action.sa_flags = SA_RESTART;
  const itimerval often = {{0, 1000}, {0, 1000}}, never = {};
  WANT(sigaction(SIGALRM, &action, nullptr) == 0);
  ringcast::reader reader(shared->handle);
  WANT(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  shared->stage = 2;
  WANT(ring.writer.wait_readers(2) == 2);
  shared->stage = 3;
  WANT(reader.next(60s).text() == "text");
  WANT(code_of([&] { reader.next(20ms); }) == ETIMEDOUT);
  shared->stage = 4;
  WANT(reader.next().text() == "text");
  shared->stage = 5;
  int count = 0;
  for (auto &frame : reader) count += frame.text() == "text";
  WANT(count == 1);
  { auto last = std::move(ring.reader); } /* only the other process holds the writer back */
  shared->stage = 6;
  const char block[1000] = {0};
  for (int i = 0; i < 200; i++)
    ring.writer.send(block, sizeof block, i % 2 ? 60s : ringcast::forever);
  ring.writer.close();
  int status = 1, result = -1;
  while (result < 0) result = waitpid(child, &status, 0);
  WANT(setitimer(ITIMER_REAL, &never, nullptr) == 0 && status == 0);
}

int main() {
  an_error_has_the_errno_and_the_text_of_the_call();
  timeouts_are_durations();
  try_calls_return_what_c_returns();
  a_reservation_without_a_commit_is_aborted();
  a_frame_is_released_once_by_its_scope();
  a_frame_is_released_by_an_exception();
  several_frames_can_be_held();
  release_reports_an_eviction_and_the_scope_is_silent();
  a_loop_over_a_reader_throws_when_the_frame_was_lost();
  the_rest_of_the_api_takes_the_handles();
  tensors_are_read_in_place();
  tensors_without_elements_are_in_order();
  a_frame_of_bytes_holds_no_tensors();
  another_process_reads_all_until_the_writer_is_gone();
  waits_go_on_after_a_signal();
  std::printf("test_hpp: 15 cases, C++ %ld\n", static_cast<long>(__cplusplus));
  return 0;
}
