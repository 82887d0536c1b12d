#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python tests with an extension that AddressSanitizer and UndefinedBehaviorSanitizer watch. Python itself is not
# built with them, so that the runtime is loaded first, Python takes its memory from malloc, where the runtime sees it,
# and leaks are not looked for, since Python does not free all at its end. Expects build/venv. Exit status 77: not here.
#   python-asan.sh [PYTEST'S OPTION...]
#   python-asan.sh --run SCRIPT [ITS OPTION...]    another script than pytest
set -euo pipefail
cd "$(dirname "$0")/.."
cc=${CC:-cc}
runtime=$($cc -print-file-name=libasan.so)
if [ "$runtime" = libasan.so ] || ! $cc --version | grep -q 'Free Software Foundation'; then
  echo "SKIPPED python-asan: $cc is not a gcc that has libasan.so"
  exit 77
fi
cmake --preset python-asan "-DPython_EXECUTABLE=$PWD/build/venv/bin/python"
cmake --build --preset python-asan
cmake/site.sh build/python-asan

# libstdc++ beside the runtime: it looks once, at the start, for the function by which torch's libraries throw.
LD_PRELOAD="$runtime $($cc -print-file-name=libstdc++.so.6)"
export LD_PRELOAD PYTHONMALLOC=malloc PYTHONPATH=$PWD/build/python-asan/site${PYTHONPATH:+:$PYTHONPATH}
# A test that shows that a wrong write ends the process expects its signal.
export ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0 UBSAN_OPTIONS=print_stacktrace=1
if [ "${1:-}" = --run ]; then
  shift
  exec build/venv/bin/python -B "$@"
fi
exec build/venv/bin/python -m pytest -m 'not unwatched' "$@"
