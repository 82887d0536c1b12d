#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests, one step after the other, whatever fails; then a summary. Exit status 0 only if every step passed.
# Expects what `make deps build` makes. The logs are in build/test/.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/test
summary=() failed=0
jobs=$(nproc)

# step NAME FUNCTION: runs it, and takes the closing line of ctest or pytest into the summary
step() {
  local name=$1 log=build/test/$1.log result=passed closing
  printf '\n==== %s\n' "$name"
  "$2" 2>&1 | tee "$log" || { result=FAILED && failed=1; }
  closing=$(grep -E '% tests passed|^=+ .* in [0-9.]+s.* =+$|^[0-9]+ (passed|failed).* in ' "$log" | tail -n 1 | sed 's/^=* *//; s/ *=*$//')
  summary+=("$(printf '%-8s %-7s %s' "$name" "$result" "${closing:-no closing line; see $log}")")
}

dev() { cmake --preset dev && cmake --build --preset dev && ctest --preset dev -j "$jobs"; }
asan() { cmake --preset asan && cmake --build --preset asan && ctest --preset asan -j "$jobs"; }
# ThreadSanitizer of older compilers cannot work with all the randomness that a kernel may give to addresses.
tsan() {
  local fixed=()
  setarch -R true 2>/dev/null && fixed=(setarch -R)
  cmake --preset tsan && cmake --build --preset tsan && ${fixed[@]+"${fixed[@]}"} ctest --preset tsan
}
python() { build/venv/bin/python -m pytest; }

step dev dev
step asan asan
step tsan tsan
step python python

printf '\n==== summary\n'
printf '%s\n' "${summary[@]}"
# ctest keeps the output of tests that pass to itself; what they had to leave out is said here.
for preset in dev asan tsan; do
  sed -n "s/^SKIPPED /Not tested ($preset): /p" "build/$preset/Testing/Temporary/LastTest.log" 2>/dev/null
done
if [ -e build/venv/.without-torch ]; then
  echo "Not tested: what needs torch ($(cat build/venv/.without-torch))."
fi
if [ "$failed" = 0 ]; then echo "All passed."; else echo "FAILED."; fi
exit "$failed"
