// SPDX-License-Identifier: Apache-2.0
// Registers the cases, which are written in C, with Google Benchmark.
#include <benchmark/benchmark.h>

#include <sys/utsname.h>

#include <string>

#include "bench/micro/cases.h"
#include "ringcast/ringcast.h"
extern "C" {
#include "tools/cli.h"
}

static void run(benchmark::State &state, const bench_case *which) {
  void *context = which->setup(which);
  // Google Benchmark before 1.8 knows no skipped case.
  if (!context) return state.SkipWithError(("skipped: " + std::string(bench_reason())).c_str());
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(which->batch)))
    state.SetIterationTime(which->run(which, context, which->batch));
  double lost = which->teardown(context);
  if (lost > 0) state.counters["tap_lost_percent"] = 100 * lost;
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * which->bytes));
}

static void add_context() {
  utsname system;
  char cpu[256];
  ringcast_writer *writer;
  ringcast_info info{};
  info.size = sizeof info;
  benchmark::AddCustomContext("ringcast", ringcast_version());
  benchmark::AddCustomContext("cpu", cli_cpu_model(cpu, sizeof cpu));
  if (uname(&system) == 0) benchmark::AddCustomContext("kernel", system.release);
  if (ringcast_writer_create(&writer) != 0) return;
  if (ringcast_writer_info(writer, &info) == 0) {
    benchmark::AddCustomContext("default_memory", ringcast_memory_name(info.memory));
    benchmark::AddCustomContext("default_capacity", std::to_string(info.capacity));
  }
  ringcast_writer_close(writer);
}

static void add_all(const bench_case *cases, size_t count) {
  for (size_t i = 0; i < count; i++)
    benchmark::RegisterBenchmark(cases[i].name, run, &cases[i])->UseManualTime();
}

int main(int argc, char **argv) {
  bench_begin();
  add_context();
  add_all(bench_cases, bench_case_count);
  add_all(bench_frame_cases, bench_frame_case_count);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
