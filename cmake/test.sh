#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests, whatever fails; then a summary. Exit status 0 only if every step passed. Expects what `make deps build`
# makes. The logs are in build/test/, and each is printed when its step ends. build/test/times.tsv has the seconds of
# each test.
#
# Two rows of steps side by side, as half of the tests wait for something most of the time. What makes rings as people
# do is in the first, one step after the other. The second, `aside`, makes do with what the first leaves of the CPUs: it
# builds for the first, and runs what no other test can see.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/test
rm -f build/test/*.{log,result,cpu,xml} build/test/ended build/test/built
failed=0
jobs=$(nproc)

# timed FILE COMMAND...: runs the command, and writes the CPU times of its processes into the file.
timed() (
  file=$1 status=0
  shift
  "$@" || status=$?
  times >"$file"
  exit "$status"
)
cpu_of() { # cpu_of FILE: the seconds in it
  awk '{ for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } }
    END { printf "%.1f\n", sum }' "$1"
}

# run NAME COMMAND...: a step. NAME.result has its result (passed or FAILED), and its wall and CPU seconds.
run() {
  local name=$1 result=passed began=$SECONDS
  shift
  timed "build/test/$name.cpu" "$@" >"build/test/$name.log" 2>&1 || result=FAILED
  echo "$result $((SECONDS - began)) $(cpu_of "build/test/$name.cpu")" >"build/test/$name.result"
  (
    flock 9
    printf '\n==== %s\n' "$name"
    cat "build/test/$name.log"
    echo "$name" >>build/test/ended
  ) 9>>build/test/ended
}

# skip NAME REASON: instead of the step
skip() {
  echo "SKIPPED $2" >"build/test/$1.result"
  echo "$1" >>build/test/ended
}

junit() { mktemp "$PWD/build/test/$1.XXXXXX.xml"; } # a new file for the times of a run of step $1
pytest() { # pytest STEP OPTIONS...
  local name=$1
  shift
  build/venv/bin/python -m pytest --junitxml="$(junit "$name")" "$@"
}

# check PRESET NAME OPTIONS...: ctest, whose own log holds what tests say that pass
under=()
check() {
  local preset=$1 name=$2 status=0
  shift 2
  ${under[@]+"${under[@]}"} ctest --preset "$preset" --output-junit "$(junit "$name")" "$@" || status=$?
  cat "build/$preset/Testing/Temporary/LastTest.log" >>"build/test/$name.tests.log"
  return "$status"
}

build() { cmake --preset "$1" && cmake --build --preset "$@"; } # build PRESET OPTIONS...

# ---- Aside: what is content with the CPU time that is left, and is seen by no other test -----------------------------

models() { python3 -B tests/model/run.py || [ $? = 77 ]; }
# What only a real GPU can show, with the tests' own driver: that each line of it runs.
gpu_fake() { GPU_FAKE=1 cmake/gpu-test.sh; }
memcheck() { build valgrind --target programs_memcheck && check valgrind valgrind -L memcheck -j "$jobs"; }
aarch64() { build aarch64 --target programs_arm && check aarch64 aarch64 -L arm -j "$jobs"; }

aside() {
  local why preset
  renice -n 5 -p "$BASHPID" >/dev/null 2>&1
  for preset in asan tsan ${fuzzes:+fuzz}; do
    run "build-$preset" build "$preset"
    echo "$preset" >&3
  done
  run model models
  run gpu-fake gpu_fake
  if command -v valgrind >/dev/null; then
    run valgrind memcheck
  else
    skip valgrind "no valgrind (Debian: valgrind)"
  fi
  if why=$(cmake/aarch64.sh); then
    run aarch64 aarch64
  else
    skip aarch64 "${why:-cmake/aarch64.sh failed}"
  fi
}

# until_built PRESET: by the row aside, which names each here
mkfifo build/test/built && exec 3<>build/test/built
built=
until_built() {
  local preset
  while [[ " $built " != *" $1 "* ]]; do
    if read -r -t 60 preset <&3; then built+=" $preset"; else kill -0 "$aside" 2>/dev/null || return; fi
  done
}

# ---- The first row ---------------------------------------------------------------------------------------------------

# A share of each long loop: `make soak` has all of it. What changes the machine's pool of huge pages comes last, when
# nothing else runs.
dev() { RINGCAST_TEST_SHARE=3 check dev dev -LE '^(pool|model)$' -j "$jobs"; }
asan() { RINGCAST_TEST_SHARE=6 check asan asan -LE '^pool$' -j "$jobs"; }
# ThreadSanitizer of older compilers cannot work with all the randomness that a kernel may give to addresses.
tsan() {
  local under=()
  setarch -R true 2>/dev/null && under=(setarch -R)
  RINGCAST_TEST_SHARE=3 check tsan tsan -j "$jobs"
}
fuzz() { check fuzz fuzz -j "$jobs"; }

# python NAME OPTIONS...: pytest, as two steps side by side that take about as long: much of it is waiting. One has the
# tests of groups of ranks, the other all the rest.
ranks=(tests/python/test_{torch,vllm}_*.py tests/python/test_{device_dropins,machines,sglang,share_once,tp_workers}.py)
python() {
  local name=$1 beside
  shift
  run "$name-ranks" pytest "$name-ranks" "${ranks[@]}" "$@" &
  beside=$!
  run "$name" pytest "$name" "${ranks[@]/#/--ignore=}" "$@"
  wait "$beside"
}

# Again, as on machines that have less, or more: what depends on the machine (neither "alike" nor "house" by label or
# marker). test_switches, in C and in Python, fails in each of these runs unless what is to be missing is not used.
again() { RINGCAST_TEST_SHARE=10 check dev "$1" -LE '^(alike|house|pool)$' -j "$jobs"; }

# The names that RINGCAST_DISABLE knows (docs/limits.md). Those that share a run have nothing to do with each other: of
# what memory is, how somebody waits, what is kept. Without membarrier or io_uring nobody parks, and without pidfds not
# everybody: none of them is with spin. Those of CUDA switch off nothing where there is no driver; the tests with one of
# their own switch them off themselves.
switches=(hugetlb,numa,spin shmem-huge,membarrier,dlpack_api io_uring,cow pidfd,cpu_wait)
everything=$(IFS=, && echo "${switches[*]}")

# What changes the machine's pool, in each of these ways.
pool() {
  local status=0 switch
  check asan pool -L '^pool$' || status=1
  for switch in "" "${switches[@]}" "$everything"; do
    RINGCAST_DISABLE=$switch check dev pool -L '^pool$' || status=1
  done
  return "$status"
}

run build-dev build dev
fuzzes=
why=$(tests/fuzz/run.py --why-not)
if [ -z "$why" ]; then fuzzes=yes; else skip fuzz "$why"; fi

# In a process group of its own, so that all of it can be ended.
set -m
aside </dev/null &
aside=$!
set +m
end_aside() { kill -- "-$aside" 2>/dev/null; }
trap end_aside EXIT
trap 'exit 130' INT TERM HUP

run dev dev
python python
until_built asan
run asan asan
until_built tsan
run tsan tsan
for switch in "${switches[@]}"; do
  RINGCAST_DISABLE=$switch run "no-${switch//,/-}" again "no-${switch//,/-}"
done
# Without all of them. Python does not see which one is missing: what memory a ring is made of does not reach it, nor
# how a CPU waits or whether it spins first; without io_uring, membarrier or pidfds it sleeps and is told as without all
# of them, and without cow it copies; dlpack_api is one of these.
RINGCAST_DISABLE=$everything run no-extras again no-extras
RINGCAST_DISABLE=$everything RINGCAST_TEST_EXAMPLES=30 python no-extras-python -m 'not alike'
if [ -n "$fuzzes" ]; then
  until_built fuzz
  run fuzz fuzz
fi
wait "$aside"

# ---- Alone: the pool of huge pages -----------------------------------------------------------------------------------

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

# ---- What came of it -------------------------------------------------------------------------------------------------

mapfile -t steps <build/test/ended

# The line of a step: its result, its seconds, and the closing line of ctest, pytest or another, or why it was skipped.
closing='% tests passed|^=+ .* in [0-9.]+s.* =+$|^[0-9]+ (passed|failed).* in |^(Nothing failed|FAILED)\.'
closing+='|^[0-9]+ models, |^\[[0-9]+/[0-9]+\] |^ninja: '
line_of() {
  local result took cpu said
  read -r result took cpu <"build/test/$1.result"
  if [ "$result" = SKIPPED ]; then
    printf '%-36s %-7s                    %s\n' "$1" "$result" "$took $cpu"
    return
  fi
  [ "$result" = passed ] || failed=1
  said=$(grep -E "$closing" "build/test/$1.log" | tail -n 1 | sed 's/^=* *//; s/ *=*$//')
  printf '%-36s %-7s %4d s %6.0f CPU s  %s\n' "$1" "$result" "$took" "$cpu" \
    "${said:-no closing line; see build/test/$1.log}"
}

# What each step had to leave out: "<step>", a tab, and the reason.
left_out() {
  local name
  for name in "${steps[@]}"; do
    sed -nE 's/^SKIPPED (\[[0-9]+\] )?([^:]*)_fn:/SKIPPED \2:/; s/^SKIPPED (\[[0-9]+\] )?//p' \
      "build/test/$name.log" "build/test/$name.tests.log" 2>/dev/null | sort -u | sed "s/^/$name\t/"
  done
}

python3 -B cmake/times.py build/test
printf '\n==== summary\n'
for name in "${steps[@]}"; do line_of "$name"; done
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
echo "Python is repeated with no-extras, and a little of it with-hugetlb: it does not see which one of the others is"
echo "missing. Under valgrind and for aarch64 only what has the labels memcheck and arm; of each long loop a share."
echo "make soak runs all of it."
if [ -e build/venv/.without-torch ]; then
  echo "Not tested: what needs torch ($(cat build/venv/.without-torch))."
fi
if [ "$failed" = 0 ]; then echo "All passed."; else echo "FAILED."; fi
exit "$failed"
