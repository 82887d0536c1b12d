// SPDX-License-Identifier: Apache-2.0
// Registers the cases, which are written in C, with Google Benchmark.
//   --dry-run   one iteration of each, to show that the cases work
#include <benchmark/benchmark.h>

#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "bench/cases.h"
#include "ringcast/ringcast.h"

// Google Benchmark before 1.8 can only call it an error.
template <class State> auto skip(State &state, const char *why, int) -> decltype(state.SkipWithMessage(why)) {
  state.SkipWithMessage(why);
}
template <class State> void skip(State &state, const char *why, long) {
  state.SkipWithError(("skipped: " + std::string(why)).c_str());
}

static void run(benchmark::State &state, const bench_case *which, uint64_t batch) {
  void *context = which->setup(which);
  if (!context) {
    skip(state, bench_reason(), 0);
    std::fprintf(stderr, "SKIPPED bench %s: %s\n", which->name, bench_reason());
    return;
  }
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(batch)))
    state.SetIterationTime(which->run(context, batch));
  which->teardown(context);
  const char *key;
  double value;
  if (bench_figure(&key, &value)) state.counters[key] = value;
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
  if (which->bytes) state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * which->bytes));
}

static void add(const bench_case &which, bool dry) {
  // Timed as one: a clock read costs as much as a small frame. 16 MiB of them, so that the writer laps the ring.
  uint64_t batch = which.batch ? which.batch : std::clamp<uint64_t>((16 << 20) / (which.bytes + 1), 4, 1000);
  auto *registered = benchmark::RegisterBenchmark(which.name, run, &which, dry ? 1 : batch)->UseManualTime();
  registered->Unit(benchmark::kNanosecond);
  if (dry) registered->Iterations(1);
}

static void add_context() {
  utsname system;
  std::string release = uname(&system) == 0 ? system.release : "";
  benchmark::AddCustomContext("ringcast", ringcast_version());
  benchmark::AddCustomContext("cpu", bench_cpu());
  benchmark::AddCustomContext("cpus_online", std::to_string(std::thread::hardware_concurrency()));
  benchmark::AddCustomContext("system", system.sysname + (" " + release.substr(0, release.find('-'))));
  ringcast_writer *writer;
  ringcast_info info{};
  info.size = sizeof info;
  if (ringcast_writer_create(&writer) != 0) return;
  if (ringcast_writer_info(writer, &info) == 0) {
    benchmark::AddCustomContext("default_memory", ringcast_memory_name(info.memory));
    benchmark::AddCustomContext("default_capacity", std::to_string(info.capacity));
  }
  ringcast_writer_close(writer);
}

int main(int argc, char **argv) {
  char **end = std::remove_if(argv + 1, argv + argc, [](const char *word) { return !std::strcmp(word, "--dry-run"); });
  bool dry = end != argv + argc;
  argc = static_cast<int>(end - argv);
  bench_begin();
  add_context();
  for (size_t i = 0; i < bench_case_count; i++) add(bench_cases[i], dry);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
