#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests, one step after the other, whatever fails; then a summary. Exit status 0 only if every step passed.
# Expects what `make deps build` makes. The logs are in build/test/.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/test
rm -f build/test/*.log build/test/*.result
summary=() steps=() failed=0
jobs=$(nproc)

# step NAME COMMAND...: runs it, and takes the closing line of ctest or pytest into the summary
step() {
  local name=$1 result=passed began=$SECONDS
  shift
  printf '\n==== %s\n' "$name"
  "$@" 2>&1 | tee "build/test/$name.log" || result=FAILED
  conclude "$name" "$result" $((SECONDS - began))
}

# beside NAME COMMAND...: starts it, and goes on. Its output is printed at the end, by await.
waiting=()
beside() {
  local name=$1
  shift
  (
    result=passed began=$SECONDS
    "$@" >"build/test/$name.log" 2>&1 || result=FAILED
    echo "$result $((SECONDS - began))" >"build/test/$name.result"
  ) &
  waiting+=("$name")
}

await() {
  local name result took
  wait
  for name in "${waiting[@]}"; do
    printf '\n==== %s\n' "$name"
    cat "build/test/$name.log"
    read -r result took <"build/test/$name.result" || result=FAILED took=0
    conclude "$name" "$result" "$took"
  done
  waiting=()
}

# conclude NAME RESULT SECONDS
conclude() {
  local name=$1 result=$2 took=$3 log=build/test/$1.log closing
  [ "$result" = passed ] || failed=1
  closing=$(grep -E '% tests passed|^=+ .* in [0-9.]+s.* =+$|^[0-9]+ (passed|failed).* in |^(Nothing failed|FAILED)\.' \
    "$log" | tail -n 1 | sed 's/^=* *//; s/ *=*$//')
  closing=${closing:-no closing line; see $log}
  summary+=("$(printf '%-25s %-7s %4d s  %s' "$name" "$result" "$took" "$closing")")
  steps+=("$name")
}

# check PRESET NAME OPTIONS...: ctest, whose own log holds what tests say that pass
under=()
check() {
  local preset=$1 name=$2 status=0
  shift 2
  ${under[@]+"${under[@]}"} ctest --preset "$preset" "$@" || status=$?
  cp "build/$preset/Testing/Temporary/LastTest.log" "build/test/$name.tests.log"
  return "$status"
}

dev() { cmake --preset dev && cmake --build --preset dev && check dev dev -j "$jobs"; }
asan() { cmake --preset asan && cmake --build --preset asan && check asan asan -j "$jobs"; }
# ThreadSanitizer of older compilers cannot work with all the randomness that a kernel may give to addresses.
tsan() {
  local under=()
  setarch -R true 2>/dev/null && under=(setarch -R)
  cmake --preset tsan && cmake --build --preset tsan && check tsan tsan
}

# python NAME OPTIONS...: pytest, as two steps side by side that take about as long: much of it is waiting. One has the
# tests of groups of ranks, the other all the rest.
ranks=(tests/python/test_{torch,vllm}_*.py tests/python/test_{machines,sglang,share_once,tp_workers}.py)
python() {
  local name=$1
  shift
  beside "$name-ranks" build/venv/bin/python -m pytest "${ranks[@]}" "$@"
  beside "$name" build/venv/bin/python -m pytest "${ranks[@]/#/--ignore=}" "$@"
  await
}
fuzz() { cmake --preset fuzz && cmake --build --preset fuzz && check fuzz fuzz -j "$jobs"; }
memcheck() {
  cmake --preset valgrind && cmake --build --preset valgrind && check valgrind valgrind -L memcheck -j "$jobs"
}
aarch64() { cmake --preset aarch64 && cmake --build --preset aarch64 && check aarch64 aarch64 -L arm -j "$jobs"; }
skip() { summary+=("$(printf '%-25s %-7s         %s' "$1" SKIPPED "$2")"); }

step dev dev
step asan asan
step tsan tsan
python python
# What only a real GPU can show, with the tests' own driver: that each line of it runs.
gpu_fake() { GPU_FAKE=1 cmake/gpu-test.sh; }
step gpu-fake gpu_fake
why=$(tests/fuzz/run.py --why-not)
if [ -z "$why" ]; then
  step fuzz fuzz
else
  skip fuzz "$why"
fi
if command -v valgrind >/dev/null; then
  step valgrind memcheck
else
  skip valgrind "no valgrind (Debian: valgrind)"
fi
if why=$(cmake/aarch64.sh); then
  step aarch64 aarch64
else
  skip aarch64 "${why:-cmake/aarch64.sh failed}"
fi

# ---- Again, as on machines that have less, or more -------------------------------------------------------------------
# test_switches, in C and in Python, fails in each of these runs unless what is to be missing is indeed not used.

# What memory a ring is made of does not reach Python: with-hugetlb, no-extras and the plain run differ in it enough.
# Nor does how a CPU waits, or whether it spins first; without io_uring, membarrier (io_uring is not used then) or
# pidfds Python sleeps and is told as without all of them, and without cow it copies; dlpack_api is one of these.
reaches_python() { [[ $1 == with-hugetlb ]]; }

# again NAME: what depends on the machine (neither "alike" nor "house" by label or marker), with a tenth of each loop
again() {
  export RINGCAST_TEST_SHARE=10 RINGCAST_TEST_EXAMPLES=15
  step "$1" check dev "$1" -LE '^(alike|house)$' -j "$jobs"
  if reaches_python "$1"; then python "$1-python" -m 'not alike'; fi
  unset RINGCAST_TEST_SHARE RINGCAST_TEST_EXAMPLES
}

# The names that RINGCAST_DISABLE knows (docs/limits.md). The two that share a run have nothing to do with each other.
# Those of CUDA switch off nothing where there is no driver; the tests with one of their own switch them off themselves.
switches=(hugetlb,numa shmem-huge membarrier,dlpack_api io_uring pidfd,cpu_wait spin,cow)
for switch in "${switches[@]}"; do
  RINGCAST_DISABLE=$switch again "no-${switch/,/-}"
done

# Without all of them, and each loop in full.
export RINGCAST_DISABLE
RINGCAST_DISABLE=$(IFS=, && echo "${switches[*]}")
step no-extras check dev no-extras -LE '^(alike|house)$' -j "$jobs"
python no-extras-python -m 'not alike'
unset RINGCAST_DISABLE

# With 2 MiB pages reserved, which are given back however this ends.
pool=/proc/sys/vm/nr_hugepages pages=128 before=0
before=$(cat "$pool" 2>/dev/null) || before=0
give_back() { [ ! -w "$pool" ] || echo "$before" 2>/dev/null >"$pool"; }
trap give_back EXIT
trap 'exit 130' INT TERM HUP
if [ -w "$pool" ] && echo $((before + pages)) 2>/dev/null >"$pool" && [ "$(cat "$pool")" -ge $((before + pages)) ]; then
  RINGCAST_TEST_MEMORY=hugetlb again with-hugetlb
else
  why="can't reserve $pages pages of 2 MiB here: not root, or no free memory"
  skip with-hugetlb "$why"
fi
give_back

# ---- What came of it -------------------------------------------------------------------------------------------------

# What each step had to leave out: "<step>", a tab, and the reason.
left_out() {
  local name
  for name in "${steps[@]}"; do
    sed -nE 's/^SKIPPED (\[[0-9]+\] )?([^:]*)_fn:/SKIPPED \2:/; s/^SKIPPED (\[[0-9]+\] )?//p' \
      "build/test/$name.log" "build/test/$name.tests.log" 2>/dev/null | sort -u | sed "s/^/$name\t/"
  done
}

printf '\n==== summary\n'
printf '%s\n' "${summary[@]}"
# One line for each reason: the steps, the tests or how many they are, the reason.
left_out | awk -F '\t' '
  !($2 in steps) { order[++count] = $2 }
  { steps[$2] = steps[$2] (steps[$2] == "" ? "" : ", ") $1 }
  END {
    for (i = 1; i <= count; i++) {
      text = order[i]
      colon = index(text, ": ")
      why = steps[text] "\t" substr(text, colon + 2)
      if (!(why in tests)) reasons[++different] = why
      tests[why] = tests[why] (tests[why] == "" ? "" : ", ") substr(text, 1, colon - 1)
      many[why]++
    }
    for (i = 1; i <= different; i++) {
      split(reasons[i], part, "\t")
      which = many[reasons[i]] > 3 ? many[reasons[i]] " tests" : tests[reasons[i]]
      print "Not tested (" part[1] "): " which ": " part[2]
    }
  }'
echo "Not repeated in each of the runs no-... and with-...: the rules of the repository, and what is labelled or marked"
echo "\"alike\": codec, ring algorithms, tests that make their own conditions, typing, pages."
echo "Python is repeated with no-extras and with-hugetlb: it does not see which one of the others is missing."
echo "Under valgrind and for aarch64 only what has the labels memcheck and arm; make soak runs the rest."
if [ -e build/venv/.without-torch ]; then
  echo "Not tested: what needs torch ($(cat build/venv/.without-torch))."
fi
if [ "$failed" = 0 ]; then echo "All passed."; else echo "FAILED."; fi
exit "$failed"
