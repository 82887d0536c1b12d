#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# At length what `make test-all` does in short, one step after the other, whatever fails; then a summary, which is also
# left in build/soak/summary.txt. A progress line every ten seconds. Exit status 0 only if every step passed. Expects
# what `make deps` makes, and the package in build/venv.
#   SOAK_SECONDS  about how long all of it runs (600): frames, fuzzing and threads share what the kills leave of it;
#                 the codec, mutated frames, the loops, the model, valgrind and aarch64 take what they take
#   KILLS, SEED   strikes of the kill campaign (2000), and the seed of their order (of the clock)
#   FRAMES        frames in sequence (as many as the time allows)
#   MUTATED       mutated frames of values, which the sanitized extension unpacks (1000000)
#   STEPS         which steps (all): kill frames codec mutated loops fuzz model threads valgrind aarch64
#                 or engines: whole engines (bench/engines/run.sh) for SOAK_SECONDS each, which is not among all
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source cmake/test-steps.sh
all="kill frames codec mutated loops fuzz model threads valgrind aarch64"
seconds=${SOAK_SECONDS:-600} kills=${KILLS:-2000} seed=${SEED:-$(date +%s)} frames=${FRAMES:-}
mutated=${MUTATED:-1000000}
chosen=${STEPS:-$all}
out=build/soak
summary=() details=()

for word in "$seconds" "$kills" "$seed" "$mutated"; do
  [[ $word =~ ^[0-9]+$ ]] || {
    echo "soak: SOAK_SECONDS, KILLS, SEED and MUTATED are whole numbers, not '$word'" >&2
    exit 2
  }
done
for step in $chosen; do
  [[ " $all engines " == *" $step "* ]] ||
    { echo "soak: STEPS has '$step': it must be a list of $all engines" >&2; exit 2; }
done
mkdir -p "$out"
rm -f "$out"/*.log "$out/summary.txt"

# What a step has got to, every ten seconds, until it is ended.
progress() { # progress NAME LOG BEGAN
  while sleep 10; do
    printf 'soak: %4d s  %s: %s\n' $((SECONDS - $3)) "$1" "$(tail -n 1 "$2" | cut -c 1-150)"
  done
}

ticker=
trap '[ -z "$ticker" ] || kill "$ticker" 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP

# step NAME PATTERN COMMAND...: runs it; the last line of its log that matches goes into the summary. 77: skipped.
step() {
  local name=$1 pattern=$2 log=$out/$1.log result=passed began=$SECONDS status=0 closing
  shift 2
  printf '\n==== %s\n' "$name"
  : >"$log"
  progress "$name" "$log" "$began" &
  ticker=$!
  "$@" >"$log" 2>&1 || status=$?
  kill "$ticker" 2>/dev/null && wait "$ticker" 2>/dev/null
  ticker=
  closing=$(grep -E "$pattern" "$log" | tail -n 1)
  case $status in
    0) ;;
    77) result=SKIPPED closing=$(grep -E '^SKIPPED' "$log" | tail -n 1) ;;
    *) result=FAILED failed=1 && tail -n 40 "$log" ;;
  esac
  summary+=("$(printf '%-9s %-7s %5d s  %s' "$name" "$result" $((SECONDS - began)) \
    "${closing:-no closing line; see $log}")")
  details+=("$(grep -E '^SKIPPED' "$log" | sort -u | sed "s/^/$name: /")")
}

# Over and over until the time is up, or it fails.
repeat() { # repeat SECONDS COMMAND...
  local end=$((SECONDS + $1)) times=0
  shift
  while [ "$times" = 0 ] || [ $SECONDS -lt $end ]; do
    "$@" || return
    times=$((times + 1))
  done
  echo "soak: $times times in a row"
}

wants() { [[ " $chosen " == *" $1 "* ]]; }
share() { echo $((rest * $1 / 100 > 5 ? rest * $1 / 100 : 5)); } # a part of the time that is left, in percent

# The tests in C with each loop in full, and not the share that `make test` and `make test-all` run.
loops() {
  build dev && ctest --preset dev -LE '^(lint|model)$' -j "$(nproc)" &&
    build asan && ctest --preset asan -LE '^lint$' -j "$(nproc)" &&
    RINGCAST_TEST_EXAMPLES=2000 build/venv/bin/python -m pytest tests/python/test_{fidelity,objects}.py
}
threads() {
  local under=()
  setarch -R true 2>/dev/null && under=(setarch -R) # as in test.sh
  build tsan && repeat "$1" ${under[@]+"${under[@]}"} ctest --preset tsan
}
fuzz() {
  local why
  why=$(tests/fuzz/run.py --why-not) || return
  if [ -n "$why" ]; then
    echo "SKIPPED fuzz: $why"
    return 77
  fi
  build fuzz && python3 tests/fuzz/run.py --seconds "$1"
}

step build 'ninja|Linking|Built' build soak
[ "$failed" = 0 ] || { echo "soak: it does not build" >&2; exit 1; }
bin=$out/tests began=$SECONDS

if wants kill; then
  step kill '^kill: .* strikes in' "$bin/kill_campaign" --kills "$kills" --seed "$seed" --strict --each
  details+=("$(sed -n '/^kill: .* strikes in/,$p' "$out/kill.log" | grep -v ' passed$')") # by point: in the log
  step gpu_kill '^gpu_kill: .* strikes' env "LD_LIBRARY_PATH=$bin/fake_cuda/new" "$bin/gpu_kill" \
    --rounds $((kills / 200 + 1)) --seed "$seed"
fi
rest=$((seconds - (SECONDS - began)))
if wants frames; then
  if [ -n "$frames" ]; then
    step frames 'in sequence' "$bin/soak_frames" --frames "$frames" --seconds 1000000
  else
    step frames 'in sequence' "$bin/soak_frames" --seconds "$(share 40)"
  fi
fi
if wants codec; then step codec '^leaks: ' build/venv/bin/python tests/python/leaks.py --frames 1000000; fi
if wants mutated; then
  step mutated '^mutated frames: ' cmake/python-asan.sh --run tests/fuzz/mutate.py --rounds "$mutated" --seed "$seed"
fi
if wants loops; then step loops '% tests passed|passed.* in ' loops; fi
if wants fuzz; then step fuzz 'fuzzed frames' fuzz "$(share 7)"; fi # each of its targets
if wants threads; then step threads 'times in a row' threads "$(share 20)"; fi
if wants model; then step model '.' python3 tests/model/run.py --deep; fi
if wants valgrind; then step valgrind '% tests passed' memcheck; fi
if wants engines; then
  step engines '^engines: .* rows' env "SOAK_SECONDS=$seconds" bench/engines/run.sh --only soak
fi
if wants aarch64; then step aarch64 '% tests passed' aarch64; fi

printf '\n==== summary\n'
{
  printf '%s\n' "${summary[@]}"
  printf '%s\n' ${details[@]+"${details[@]}"} | sed '/^$/d'
  if [ "$failed" = 0 ]; then echo "All passed."; else echo "FAILED."; fi
} | tee "$out/summary.txt"
exit "$failed"
