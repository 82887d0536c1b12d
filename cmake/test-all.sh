#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests: those of cmake/test.sh first, unless they have passed with the very files that are here, and then what it
# leaves out. Runs all steps, whatever fails; then a summary. Exit status 0 only if every step passed.
#
# Two rows of steps side by side. The first makes rings, without what machines may lack, one step after the other. The
# second, `aside`, runs what needs the CPUs alone: models, other builds.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source cmake/test-steps.sh
hash=$(hash_of .)
if when=$(passed_before test "$hash"); then
  echo "make test: unchanged since it passed ($when)"
else
  cmake/test.sh || failed=1
fi
rm -f build/test/ended

models() { python3 -B tests/model/run.py; }
# gpu/driver.h against CUDA's own headers, which PyPI has.
cuda_headers() {
  local package folder header
  for package in nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-runtime==13.0.96; do
    folder=build/cuda-headers/$package
    if [ -z "$(find "$folder" -name cuda.h 2>/dev/null)" ]; then
      build/venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --target "$folder" "$package" ||
        { echo "SKIPPED pip can't install $package" && return 77; }
    fi
    header=$(find "$folder" -name cuda.h)
    ${CC:-cc} -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -I. -isystem "${header%/*}" tests/gpu/driver_check.c ||
      return
    echo "gpu/driver.h agrees with the cuda.h of $package"
  done
}
# What only a real GPU can show, with the tests' own driver: that each line of it runs.
gpu_fake() { rm -rf build/gpu/out-fake && GPU_FAKE=1 cmake/gpu-test.sh; }
fuzz() {
  local why
  why=$(tests/fuzz/run.py --why-not)
  [ -z "$why" ] || { echo "SKIPPED $why" && return 77; }
  build fuzz && check fuzz fuzz -j "$jobs"
}

aside() {
  run build-asan-rest build asan
  finished asan
  run model models
  run cuda-headers cuda_headers
  run gpu-fake gpu_fake
  run_if_changed analyze "CMakeLists.txt include ring shm channel gpu tools python examples cmake .clang-tidy" \
    cmake/analyze.sh
  run fuzz fuzz
  run valgrind memcheck
  run aarch64 aarch64
}

# The extension's own tests; the drop-ins call the same extension.
python_asan() { cmake/python-asan.sh --junitxml="$(junit python-asan)" "${ranks[@]/#/--ignore=}"; }
asan_rest() { RINGCAST_TEST_SHARE=6 check asan asan-rest -LE '^(sanitized|pool|lint)$' -j "$jobs"; }

begin_aside aside
for switch in "${switches[@]}"; do
  RINGCAST_DISABLE=$switch run "no-${switch//,/-}" again "no-${switch//,/-}"
done
# Without all of them. Python does not see which one is missing: what memory a ring is made of does not reach it, nor
# how a CPU waits or whether it spins first; without io_uring or pidfds it sleeps and is told as without all
# of them, and without retain it copies.
RINGCAST_DISABLE=$everything RINGCAST_TEST_EXAMPLES=30 python no-extras-python -m 'not alike'
run python-asan python_asan
run python-fuzz cmake/python-asan.sh --run tests/fuzz/mutate.py --rounds 100000
run python-dtypes cmake/python-asan.sh --run tests/fuzz/dtypes.py --rounds 100000
run pythons cmake/pythons.sh --codec --ends
until_finished asan
run asan-rest asan_rest
wait "$aside" || failed=1

# ---- Alone: the pool of huge pages -----------------------------------------------------------------------------------

# What changes the machine's pool, in each of these ways.
pool() {
  local status=0 switch
  check asan pool -L '^pool$' || status=1
  for switch in "${switches[@]}" "$everything"; do
    RINGCAST_DISABLE=$switch check dev pool -L '^pool$' || status=1
  done
  return "$status"
}
run pool pool

# With 2 MiB pages reserved, which are given back however this ends. Python is looked at where it makes rings.
hugetlb() {
  again with-hugetlb && check dev with-hugetlb -L '^pool$' &&
    pytest with-hugetlb -m 'not alike' tests/python/test_{switches,writer_reader,large,lifecycle}.py
}
nr_hugepages=/proc/sys/vm/nr_hugepages pages=128 before=0
before=$(cat "$nr_hugepages" 2>/dev/null) || before=0
give_back() { [ ! -w "$nr_hugepages" ] || echo "$before" 2>/dev/null >"$nr_hugepages"; }
trap 'end_aside; give_back' EXIT
if [ -w "$nr_hugepages" ] && echo $((before + pages)) 2>/dev/null >"$nr_hugepages" &&
  [ "$(cat "$nr_hugepages")" -ge $((before + pages)) ]; then
  RINGCAST_TEST_MEMORY=hugetlb run with-hugetlb hugetlb
else
  skip with-hugetlb "can't reserve $pages pages of 2 MiB here: not root, or no free memory"
fi
give_back

summarize
echo "Not repeated in each of the runs no-... and with-...: the rules of the repository, and what is labelled or marked"
echo "\"alike\": codec, ring algorithms, tests that make their own conditions, typing, pages."
echo "Python is repeated with no-extras, and a little of it with-hugetlb: it does not see which one of the others is"
echo "missing. Under valgrind and for aarch64 only what has the labels memcheck and arm; of each long loop a share."
echo "make soak runs these loops in full."
if [ "$failed" = 0 ]; then echo "All passed."; else echo "FAILED."; fi
exit "$failed"
