#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the tests reach: of the C code, counted by gcov (preset coverage), and of the Python package, counted by
# coverage.py in each process that the tests start. The last lines are the figures and the files that are reached least,
# which build/coverage/report/summary.txt has too; build/coverage/report/{c,python}/index.html show each line. Exit
# status 0: the tests passed, and reach 90 % of the lines of C and of Python. docs/coverage.md says what is not counted.
#   coverage.sh             builds, runs the tests, reports
#   coverage.sh --report    reports what the run before has counted
#   coverage.sh ... --page  writes the figures into docs/coverage.md, too
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out=build/coverage
bin=build/venv/bin
# coverage.py reads both, the second in pyproject.toml.
export COVERAGE_FILE=$PWD/$out/counts/python RINGCAST_COVERED=$PWD/$out/site/ringcast
if ! ${CC:-cc} --version | grep -q 'Free Software Foundation' || ! [ -x $bin/gcovr ] || ! [ -x $bin/coverage ]; then
  echo "coverage: ${CC:-cc} must be gcc, and build/venv must have gcovr and coverage (make deps)" >&2
  exit 1
fi

failed=0
if [ "${1:-}" != --report ]; then
  rm -rf $out/counts build/test/*.{log,result,cpu,xml} build/test/ended
  find $out -name '*.gcda' -delete 2>/dev/null
  source cmake/test-steps.sh
  export RINGCAST_TEST_SHARE=10
  umask 0 # a test's process of another user writes its counts, too
  run coverage-build build coverage
  [[ $(cat build/test/coverage-build.result) == passed* ]] || { summarize && exit 1; }
  mkdir -p $out/counts
  cmake/site.sh $out
  cp -r "$($bin/python -c 'import ringcast; print(*ringcast.__path__)')/_c" $out/site/ringcast/ # for programs in C
  run coverage-c check coverage coverage-c -j "$jobs"
  # With these, each Python begins with coverage.py, and the package that was built here.
  export COVERAGE_PROCESS_START=$PWD/pyproject.toml PYTHONPATH=$PWD/$out/site LD_PRELOAD=$PWD/$out/tests/libcounted.so
  python coverage-python -m 'not uncounted' --durations=15
  unset COVERAGE_PROCESS_START PYTHONPATH LD_PRELOAD
  $bin/coverage combine -q >build/test/coverage-combine.log 2>&1
  rm -f $out/counts/python.* # half a file of a process that was killed; each command would try to read it again
  summarize
else
  shift
fi

report=$out/report
rm -rf $report
mkdir -p $report/c
$bin/gcovr --root . --object-directory $out --filter '(include|ring|shm|channel|gpu|tools|python/extension)/' \
  --exclude-directories '.*/CMakeFiles/[0-9.]+' --exclude-unreachable-branches \
  --json-summary $report/c.json --html-details $report/c/index.html $out >$report/c.log 2>&1 &&
  $bin/coverage json -q -o $report/python.json && $bin/coverage html -q -d $report/python || exit
$bin/python -B cmake/coverage.py $report "$@" >$report/summary.txt || failed=1
echo
cat $report/summary.txt
exit $failed
