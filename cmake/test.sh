#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What every change must pass, in some minutes: each kind of test once, and of each long loop a share. Runs all steps,
# whatever fails; then a summary. Exit status 0 only if every step passed. Expects what `make deps` makes, and the
# package in build/venv. cmake/test-all.sh runs the rest.
#
# ONLY=gpu: of each step the tests of device tensors alone.
#
# Two rows of steps side by side, as half of the tests wait for something most of the time. The first row, one step
# after the other, has what makes rings as users do. The second, `aside`, builds for the first at a lower priority.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
rm -f build/test/*.{log,result,cpu,xml} build/test/ended
source cmake/test-steps.sh

only=()
case ${ONLY:-} in
"") ;;
gpu) only=(-R 'gpu|cuda|device') ;;
*) echo "ONLY is $ONLY: it can be gpu, or nothing" >&2 && exit 2 ;;
esac

aside() {
  run build-asan build asan --target programs_sanitized
  finished asan
  run build-tsan build tsan
  finished tsan
  [ "${ONLY:-}" ] || run lint cmake/lint.sh
}

dev() { RINGCAST_TEST_SHARE=3 check dev dev -LE '^model$' ${only[@]+"${only[@]}"} -j "$jobs"; }
asan() { RINGCAST_TEST_SHARE=6 check asan asan -L '^sanitized$' ${only[@]+"${only[@]}"} -j "$jobs"; }
# ThreadSanitizer of older compilers cannot work with all the randomness that a kernel may give to addresses.
tsan() {
  local under=()
  setarch -R true 2>/dev/null && under=(setarch -R)
  RINGCAST_TEST_SHARE=3 check tsan tsan ${only[@]+"${only[@]}"} -j "$jobs"
}

hash=$(hash_of .)
run build-dev build dev
begin_aside aside
run dev dev
if [ "${ONLY:-}" ]; then run python pytest python tests/python/test_device*.py; else python python; fi
until_finished asan
run asan asan
until_finished tsan
run tsan tsan
[ "${ONLY:-}" ] || RINGCAST_DISABLE=$everything run no-extras again no-extras
wait "$aside" || failed=1

summarize
if [ "${ONLY:-}" ]; then
  [ "$failed" = 0 ] && echo "All of $ONLY passed." && exit
  echo "FAILED." && exit 1
fi
echo "make test-all runs the rest: all C tests with ASan and UBSan, without what a machine may lack, with huge pages,"
echo "under valgrind and for aarch64, models, fuzzing. make soak runs the long loops in full."
if [ "$failed" != 0 ]; then
  echo "FAILED."
  exit 1
fi
stamp test "$hash"
echo "All passed."
