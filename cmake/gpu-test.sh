#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that only a real GPU can show, in one go: builds the library, its tools, tests/gpu_scenarios and the
# Python extension with what is there (a compiler, CMake, make or Ninja, Python; neither check nor liburing nor a
# package registry), runs them, each with a time limit, and leaves what they found in $OUT (default build/gpu/out) as
# text and JSON. docs/gpu.md says what to make of it. Exit status 0 only if nothing failed.
#
# The steps: recon (a minute: what the device says of itself, as a table), doctor, probes (probes.txt of
# tests/gpu_scenarios), scenarios (of its other files those that need no fake), kernel (examples/kernel.cu), perf,
# python; or those alone that are named as arguments. A call goes on where an earlier one stopped: of the same sources,
# what build/gpu/out has already does not run again. GPU_TEST_SECONDS: when all of it is over, at the latest.
# GPU_FAKE=1: on a machine without a GPU, with the tests' own driver, which shows that these lines run; but for kernel
# and python, as neither a kernel nor torch runs on that driver.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=build/gpu fake=${GPU_FAKE:-} failed=0 wanted=" $* "
kept=$PWD/build/gpu/out${fake:+-fake} # apart: what the fake has shown is never taken for a device's
out=${OUT:-$kept}
budget=${GPU_TEST_SECONDS:-3600} not_run=()
python=${PYTHON:-$(command -v build/venv/bin/python || command -v python3)}
mkdir -p "$out" "$kept"
out=$(cd "$out" && pwd)

# While no process has the device open, the driver gives it up, and the next process waits until it is set up again.
[ ! -c /dev/nvidia0 ] || exec 8</dev/nvidia0 || echo "can't hold the device open"
[ ! -c /dev/nvidiactl ] || exec 9</dev/nvidiactl || echo "can't hold the driver open"

# What was found with other sources does not count.
sources=$(find CMakeLists.txt cmake include ring shm channel gpu tools python examples tests/gpu tests/gpu_scenarios \
  tests/fake_cuda \
  -type f -regex '.*\.\([chS]\|cu\|py\|txt\|cmake\|sh\|map\)' -print0 | sort -z | xargs -0 cat |
  sha256sum | cut -c 1-16)
grep -qs "^sources $sources" "$kept/summary.txt" || rm -f "$kept"/*.txt "$kept"/*.json "$kept"/*.jsonl
[ "$out" = "$kept" ] || { rm -f "$out"/*.txt "$out"/*.json "$out"/*.jsonl; cp -p "$kept"/* "$out/" 2>/dev/null; }
earlier=$(cd "$out" && find . -name '*.json*' -printf '%f, ' | sed 's/, $//')
echo "sources $sources  $(date -u +%FT%TZ)  $*" >>"$out/summary.txt"

keep() { [ "$out" = "$kept" ] || cp -p "$out/$1" "$kept/"; }
say() { echo "$*" | tee -a "$out/summary.txt"; }

# Whether it is one of the steps of this call, and has not passed in an earlier one.
is_wanted() {
  [[ "$wanted" == "  " || "$wanted" == *" ${1%-*} "* ]] && ! grep -qE "^$1 +passed" "$out/summary.txt"
}

# step NAME SECONDS FILE COMMAND...: what the command prints is added to FILE
step() {
  local name=$1 limit=$2 file=$3 began=$SECONDS status=0
  shift 3
  is_wanted "$name" || return 0
  if [ "$((budget - SECONDS))" -lt 5 ]; then
    not_run+=("$name (no time was left)")
    return 0
  fi
  [ "$limit" -lt "$((budget - SECONDS))" ] || limit=$((budget - SECONDS))
  [ -z "$(tail -c 1 "$out/$file" 2>/dev/null)" ] || echo >>"$out/$file" # an earlier call was cut off in a line
  timeout --kill-after=10 "$limit" "$@" >>"$out/$file" 2>"$build/stderr" || status=$?
  case $status in
  0) say "$(printf '%-8s passed  %4d s  %s' "$name" $((SECONDS - began)) "$file")" ;;
  124 | 137) say "$(printf '%-8s TIMEOUT %4d s  %s' "$name" $((SECONDS - began)) "$file")" ;;
  *) say "$(printf '%-8s FAILED  %4d s  %s, status %d' "$name" $((SECONDS - began)) "$file" "$status")" ;;
  esac
  [ -s "$build/stderr" ] && sed "s/^/  $name: /" "$build/stderr" | tail -n 30 | tee -a "$out/summary.txt"
  [ "$status" = 0 ] || failed=1
  keep "$file"
  keep summary.txt
  return 0
}

# ---- What is here ----------------------------------------------------------------------------------------------------

facts() {
  uname -srm
  dmesg 2>/dev/null | head -n 1 # gVisor names itself
  cat /proc/driver/nvidia/version
  readlink /proc/self/ns/{ipc,net,pid}
  ls -l /dev/nvidia*
  gcc --version | head -n 1
  cmake --version | head -n 1
  "$python" --version
  nvcc --version 2>/dev/null | tail -n 2
  nvidia-smi 2>/dev/null
  nvidia-smi topo -m 2>/dev/null
  "$python" -c 'from importlib import metadata
for name in ("torch", "cupy-cuda13x", "cupy-cuda12x", "jax", "numpy", "nvidia-nccl-cu13", "nvidia-nccl-cu12"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass'
  grep -E '^(model name|Hugepagesize|HugePages_Free|MemAvailable)' /proc/cpuinfo /proc/meminfo | sort -u | head -n 8
  ulimit -a | grep -E 'locked|open files'
  df -h /dev/shm | tail -n 1
}

# ---- The build -------------------------------------------------------------------------------------------------------

# Without what can't be had there; the extension too, where Python's headers are.
configure() {
  local generator="Unix Makefiles"
  command -v make >/dev/null || generator=Ninja
  grep -qs "CMAKE_GENERATOR:INTERNAL=$generator" "$build/CMakeCache.txt" ||
    rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"
  local options=(-S . -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRINGCAST_TOOLS=ON
    -DRINGCAST_GPU_TESTS=ON -DRINGCAST_INSTALL=OFF)
  local executable
  executable=$("$python" -c 'import sys; print(sys.executable)')
  cmake "${options[@]}" -DRINGCAST_PYTHON=ON "-DPython_EXECUTABLE=$executable" ||
    cmake "${options[@]}" -DRINGCAST_PYTHON=OFF
}

make_all() { configure && cmake --build "$build" -j "$(nproc)" && cmake/site.sh "$build"; }

facts >"$out/machine.txt" 2>&1
keep machine.txt
if ! make_all >"$out/build.log" 2>&1; then
  tail -n 30 "$out/build.log"
  say "build    FAILED  see build.log"
  exit 1
fi
keep build.log
say "build    passed  build.log"
include=$(sed -n 's/^RINGCAST_CUDA_INCLUDE:PATH=//p' "$build/CMakeCache.txt")
case $include in
*-NOTFOUND) say "  build: no toolkit is here, so gpu/driver.h was not held against its cuda.h" ;;
*) say "  build: gpu/driver.h agrees with $include/cuda.h" ;;
esac
warned=$(grep -c 'warning:' "$out/build.log")
[ "$warned" = 0 ] || say "  build: $warned warnings"

# ---- The runs --------------------------------------------------------------------------------------------------------

scenarios=("$build/tests/gpu_scenarios/gpu_scenarios" --real)
tool=$build/bin/ringcast
perf=("$tool" perf gpu --format json)
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$PWD/$build/tests/fake_cuda/new${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  scenarios=("${scenarios[@]:0:1}" --json)
  # shellcheck disable=SC2054
  perf+=(--sizes 1K,16M --seconds 0.05)
fi
export PYTHONPATH=$PWD/$build/site PYTHONDONTWRITEBYTECODE=1

# What doctor says of the pool: nothing if a tensor went by it, else why not. Nor if doctor was not asked.
why_inline() {
  "$python" - "$out/doctor.json" <<'END'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = json.load(file)["lines"]
except (OSError, ValueError):
    lines = []
for line in lines:
    if line["name"] == "GPU tensors" and line["facts"]["pool_frames"] == 0:
        print(line["found"])
END
}

step recon 60 probes.jsonl "${scenarios[@]}" --after "$out/probes.jsonl" probes:what_the_device_says \
  probes:the_driver_and probes:streams_of_two_processes probes:all_that_the_library_does
"$python" tests/gpu/verdict.py --table "$out" | tee -a "$out/summary.txt"
is_wanted doctor && rm -f "$out/doctor.json"
step doctor 150 doctor.json "$tool" doctor --format json
why=$(why_inline)
if [ -n "$why" ]; then
  export GPU_PROBE_INLINE=$why # what is about the pool is skipped then, and fails without this
  say "  $why"
fi
step probes 600 probes.jsonl "${scenarios[@]}" --after "$out/probes.jsonl" probes
step scenarios 300 probes.jsonl "${scenarios[@]}" --after "$out/probes.jsonl" writer reader bounce ends
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)
if [ -n "$fake" ]; then
  : # has no kernels
elif [ -n "$nvcc" ]; then
  step kernel 90 kernel.txt bash -c '"$1" -I include -o "$2/kernel" examples/kernel.cu -L "$2" -lringcast \
    -Xlinker -rpath="$PWD/$2" && "$2/kernel"' kernel "$nvcc" "$build"
else
  ! is_wanted kernel || not_run+=("kernel (no nvcc)")
fi
step perf-1 120 perf.json "${perf[@]}"
step perf-3 120 perf.json "${perf[@]}" --readers 3
if [ -n "$fake" ]; then
  : # torch has no tensors there
elif [ -n "$(find "$build/site" -name '_ringcast*.so')" ]; then
  step python 600 python.jsonl "$python" tests/gpu/tensors.py --after "$out/python.jsonl"
else
  ! is_wanted python || not_run+=("python (no headers of Python, so no extension: see build.log)")
fi

# What did not go well, or not at all, in the words of the probes; then what a GPU must show.
told() { grep -hE "\"result\": \"($1)\"" "$out/probes.jsonl" "$out/python.jsonl" 2>/dev/null | cut -c 1-300; }
told 'failed|crashed|timeout|skipped' | tee -a "$out/summary.txt"
[ -z "$earlier" ] || say "  begun by an earlier call: $earlier"
strict=()
[ -z "$fake" ] || [ "$wanted" != "  " ] || strict=(--strict) # the fake can show all but speed and torch
"$python" tests/gpu/verdict.py "$out" "${strict[@]}" | tee -a "$out/summary.txt"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
if [ "$failed" = 0 ]; then said="Nothing failed"; else said="FAILED"; fi
skipped=$(told skipped | wc -l)
[ "$skipped" = 0 ] || said+="; $skipped probes were skipped"
[ ${#not_run[@]} = 0 ] || said+="; not run: $(printf '%s, ' "${not_run[@]}" | sed 's/, $//')"
say "$said. $(cd "$out" && echo *)"
keep summary.txt
exit "$failed"
