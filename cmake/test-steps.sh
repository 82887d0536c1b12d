# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What cmake/test.sh and cmake/test-all.sh share: steps, their results and their summary; cmake/soak.sh takes some of
# what steps run. Sourced, in the root of the sources. build/test/ gets of each step NAME the log NAME.log, which is
# printed when the step ends, the result NAME.result and the tests' results NAME.*.xml; the summary comes from them.
# shellcheck disable=SC2034 # what those who source this read
jobs=$(nproc) failed=0
mkdir -p build/test/stamps

# ---- One step --------------------------------------------------------------------------------------------------------

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

# ended NAME: prints the log of a step that has ended, and notes the step for the summary.
ended() {
  (
    flock 9
    printf '\n==== %s\n' "$1"
    cat "build/test/$1.log" 2>/dev/null
    echo "$1" >>build/test/ended
  ) 9>>build/test/ended
}

# run NAME COMMAND...: a step. NAME.result has its result (passed or FAILED), and its wall and CPU seconds. A command
# that ends with status 77 cannot run here: the line SKIPPED of its log says why.
run() {
  local name=$1 result=passed began=$SECONDS status=0
  shift
  timed "build/test/$name.cpu" "$@" >"build/test/$name.log" 2>&1 || status=$?
  case $status in
  0) ;;
  77) skip "$name" "$(sed -n 's/^SKIPPED //p' "build/test/$name.log" | tail -n 1)" && return ;;
  *) result=FAILED ;;
  esac
  echo "$result $((SECONDS - began)) $(cpu_of "build/test/$name.cpu")" >"build/test/$name.result"
  ended "$name"
}

# skip NAME REASON: instead of the step
skip() {
  echo "SKIPPED $2" >"build/test/$1.result"
  ended "$1"
}

# ---- Steps whose inputs have not changed -----------------------------------------------------------------------------

# hash_of PATH...: of the files below these paths that git tracks or would track, and of the compilers and the Python
# environment. Fails without git: then nothing counts as unchanged.
hash_of() {
  local files
  files=$(git ls-files -z --cached --others --exclude-standard -- "$@" 2>/dev/null | sort -zu |
    xargs -0 sha256sum 2>/dev/null)
  [ -n "$files" ] || return
  { echo "$files" && { cc --version; clang --version; cat build/venv/.requirements; } 2>/dev/null; } |
    sha256sum | cut -d ' ' -f 1
}

# passed_before NAME HASH: prints when the step passed with inputs of this hash, or fails
passed_before() {
  local hash when
  read -r hash when 2>/dev/null <"build/test/stamps/$1" && [ -n "$2" ] && [ "$hash" = "$2" ] && echo "$when"
}
stamp() { [ -z "$2" ] || echo "$2 $(date -u '+%F %R UTC')" >"build/test/stamps/$1"; } # stamp NAME HASH

# run_if_changed NAME "PATH..." COMMAND...: the step, unless it has passed with the same files
run_if_changed() {
  local name=$1 hash when
  # shellcheck disable=SC2086
  hash=$(hash_of $2)
  shift 2
  if when=$(passed_before "$name" "$hash"); then
    echo "unchanged since it passed ($when)" >"build/test/$name.result"
    ended "$name"
    return
  fi
  run "$name" "$@"
  [[ $(cat "build/test/$name.result") != passed* ]] || stamp "$name" "$hash"
}

# ---- What steps run --------------------------------------------------------------------------------------------------

build() { cmake --preset "$1" && cmake --build --preset "$@"; } # build PRESET OPTIONS...
junit() { mktemp "$PWD/build/test/$1.XXXXXX.xml"; } # a new file for the times of a run of step $1

# check PRESET NAME OPTIONS...: ctest, whose own log has what tests print that pass
under=()
check() {
  local preset=$1 name=$2 status=0
  shift 2
  ${under[@]+"${under[@]}"} ctest --preset "$preset" --output-junit "$(junit "$name")" "$@" || status=$?
  cat "build/$preset/Testing/Temporary/LastTest.log" >>"build/test/$name.tests.log"
  return "$status"
}

memcheck() {
  command -v valgrind >/dev/null || { echo "SKIPPED no valgrind (Debian: valgrind)" && return 77; }
  build valgrind --target programs_memcheck && check valgrind valgrind -L memcheck -j "$jobs"
}
aarch64() {
  cmake/aarch64.sh && build aarch64 --target programs_arm && check aarch64 aarch64 -L arm -j "$jobs"
}

pytest() { # pytest STEP OPTIONS...
  local name=$1
  shift
  build/venv/bin/python -m pytest --junitxml="$(junit "$name")" "$@"
}

# python NAME OPTIONS...: pytest, as two steps side by side that take about as long, since much of it is waiting. One
# has the tests of groups of ranks, the other all the rest.
ranks=(tests/python/test_{torch,vllm}_*.py tests/python/test_*_dropins.py
  tests/python/test_{machines,sglang,share_once,tp_workers}.py)
python() {
  local name=$1 beside
  shift
  run "$name-ranks" pytest "$name-ranks" "${ranks[@]}" "$@" &
  beside=$!
  run "$name" pytest "$name" "${ranks[@]/#/--ignore=}" "$@"
  wait "$beside" || failed=1
}

# The names that RINGCAST_DISABLE knows (docs/limits.md). Those that share a run have nothing to do with each other: of
# what memory is, how a party waits, what is kept. Those of CUDA switch off nothing where there is no driver; the tests
# with one of their own switch them off themselves.
switches=("hugetlb,numa,spin" "shmem-huge" "io_uring,retain" "pidfd,cpu_wait")
# shellcheck disable=SC2034
everything=$(IFS=, && echo "${switches[*]}")

# Again, as on machines that have less, or more: what depends on the machine (neither "alike" nor "lint" by label or
# marker). test_switches, in C and in Python, fails in each of these runs unless what is to be missing is not used.
again() { RINGCAST_TEST_SHARE=10 check dev "$1" -LE '^(alike|lint|pool)$' -j "$jobs"; }

# ---- A row of steps beside the first ---------------------------------------------------------------------------------

# begin_aside COMMAND...: in a process group of its own, so that all of it can be ended. `finished WORD` there lets
# `until_finished WORD` in the first row go on.
begin_aside() {
  rm -f build/test/finished
  mkfifo build/test/finished && exec 3<>build/test/finished
  set -m
  { renice -n 5 -p "$BASHPID" >/dev/null 2>&1; "$@"; } </dev/null &
  aside=$!
  set +m
  trap end_aside EXIT
  trap 'exit 130' INT TERM HUP
}
end_aside() { kill -- "-$aside" 2>/dev/null; }
finished() { echo "$1" >&3; }
heard=
until_finished() {
  local word
  while [[ " $heard " != *" $1 "* ]]; do
    if read -r -t 60 word <&3; then heard+=" $word"; else kill -0 "$aside" 2>/dev/null || return; fi
  done
}

# ---- The summary -----------------------------------------------------------------------------------------------------

# The line of a step: its result, its seconds, and the closing line of ctest, pytest or another, or why it did not run.
closing='% tests passed|^=+ .* in [0-9.]+s.* =+$|^[0-9]+ (passed|failed).* in |^(Nothing failed|FAILED)\.'
closing+='|^mutated frames: |^hostile dtypes: |^[0-9]+ models, |^gpu/driver.h agrees |^(lint|analyze): |^\[[0-9]+/[0-9]+\] |^ninja: '
line_of() {
  local result took cpu said
  read -r result took cpu <"build/test/$1.result"
  case $result in
  SKIPPED | unchanged) printf '%-36s %-9s %21s %s\n' "$1" "$result" "" "$took $cpu" && return ;;
  passed) ;;
  *) failed=1 ;;
  esac
  said=$(grep -E "$closing" "build/test/$1.log" | tail -n 1 | sed 's/^=* *//; s/ *=*$//')
  printf '%-36s %-9s %4d s %8.0f CPU s  %s\n' "$1" "$result" "$took" "$cpu" \
    "${said:-no closing line; see build/test/$1.log}"
}

# left_out NAME...: what these steps had to leave out: "<step>", a tab, and the reason.
left_out() {
  local name
  for name; do
    ! grep -q '^SKIPPED' "build/test/$name.result" || continue # its own line says why
    sed -nE 's/^SKIPPED (\[[0-9]+\] )?([^:]*)_fn:/SKIPPED \2:/; s/^SKIPPED (\[[0-9]+\] )?//p' \
      "build/test/$name.log" "build/test/$name.tests.log" 2>/dev/null | sort -u | sed "s/^/$name\t/"
  done
}

# A line for each reason in what left_out printed: the steps, the tests or their number, and the reason.
by_reason() {
  awk -F '\t' '
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
}

# summarize: of all steps that have ended; `failed` is 1 after it if one of them failed.
summarize() {
  local steps name
  mapfile -t steps <build/test/ended
  printf '\n==== summary\n'
  for name in "${steps[@]}"; do line_of "$name"; done
  ! compgen -G 'build/test/*.xml' >/dev/null || python3 -B cmake/slowest.py build/test/*.xml
  left_out "${steps[@]}" | by_reason
  if [ -e build/venv/.without-torch ]; then
    echo "Not tested: what needs torch ($(cat build/venv/.without-torch))."
  fi
}
