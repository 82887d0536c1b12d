// SPDX-License-Identifier: Apache-2.0
// Registers the cases, which are written in C, with Google Benchmark.
#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

#include "bench/harness.h"
#include "ringcast/ringcast.h"

static void run(benchmark::State &state, const bench_case *which) {
  void *context = which->setup(which);
  if (!context) {
    state.SkipWithError(bench_reason());
    return;
  }
  constexpr uint64_t batch = 1000;  // timed as one: a clock read costs as much as a frame
  while (state.KeepRunningBatch(batch)) state.SetIterationTime(which->run(context, batch));
  which->teardown(context);
  if (which->bytes) state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * which->bytes));
}

static std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

int main(int argc, char **argv) {
  benchmark::AddCustomContext("ringcast", ringcast_version());
  benchmark::AddCustomContext("cpu", cpu_model());
  for (size_t i = 0; i < bench_ring_case_count; i++) {
    const bench_case *which = &bench_ring_cases[i];
    benchmark::RegisterBenchmark(which->name, run, which)->UseManualTime()->Unit(benchmark::kNanosecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
