#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the package's tests on each supported Python that the machine has: those on PATH and those of pyenv. A version
# that the machine lacks comes from a Debian of a newer suite, which debootstrap makes once in build/debian (as root,
# about 400 MB); a version that Debian lacks too is named. Exit status 0 only if every test that ran has passed, and 77
# if no Python was found. With CI=true a Debian that can't be made fails. The last lines are a table.
#   pythons.sh [OPTION...] [VERSION...] [-- PYTEST'S OPTION...]
#     VERSION   only these (3.10 3.11 3.12 3.13 3.14 3.15)
#     --codec   only the codec's tests: neither groups of processes nor devices
#     --ends    only the oldest and the newest version at hand
#     --here    only what the machine itself has: no Debian is made
#   PYTHONS_SUITE   Debian's suite (sid)
#   PYTHONS_NUMPY   the oldest NumPy, tried beside the newest where pip has a wheel of it (1.26; empty: not tried)
#   PYTHONS_TORCH   the torch to install, such as torch==2.13.0 (none: a wheel for a GPU has gigabytes)
set -uo pipefail
cd "$(dirname "$0")/.." || exit
supported=(3.10 3.11 3.12 3.13 3.14 3.15)
suite=${PYTHONS_SUITE:-sid} old_numpy=${PYTHONS_NUMPY-1.26} torch=${PYTHONS_TORCH:-}
out=build/pythons
ends=0 codec=0 here=0 wanted=() options=()
while [ $# -gt 0 ]; do
  case $1 in
  --ends) ends=1 ;;
  --codec) codec=1 ;;
  --here) here=1 ;;
  --) shift && options=("$@") && break ;;
  3.*) wanted+=("$1") ;;
  *) echo "pythons: '$1' is neither a version nor an option: see the head of cmake/pythons.sh" >&2 && exit 2 ;;
  esac
  shift
done
[ "${#wanted[@]}" -gt 0 ] || wanted=("${supported[@]}")
mkdir -p "$out"
failed=0 rows=()

say() { echo "pythons: $*"; }

# interpreter VERSION: its path, if a venv and an extension can be made with it.
interpreter() {
  local python
  for python in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1" "$(command -v "python$1")"; do
    [ -x "$python" ] || continue
    "$python" -c 'import ensurepip, os, sys, sysconfig
free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
sys.exit(bool(free_threaded) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null &&
      echo "$python" && return
  done
  return 1
}

# ---- One Python ------------------------------------------------------------------------------------------------------

pip() { "$venv/bin/python" -m pip "$@" --disable-pip-version-check -q >>"$venv/pip.log" 2>&1; }

# prepare PYTHON NUMPY: fills $venv with the package and what its tests need; `without` becomes what is missing.
prepare() {
  local package
  without=()
  rm -rf "$venv" && "$1" -m venv "$venv" || return
  pip install --only-binary :all: "$2" || without+=(numpy)
  [ "$2" = numpy ] || [ "${#without[@]}" = 0 ] || return 0 # no wheel of the old NumPy: `try` leaves this Python out
  pip install "scikit-build-core>=0.11" pytest hypothesis || return
  for package in msgspec xxhash mypy uvloop $torch; do
    pip install --only-binary :all: "$package" || without+=("${package%%=*}")
  done
  [ -n "$torch" ] || without+=(torch)
  pip install --no-build-isolation --no-deps --force-reinstall "--config-settings=build-dir=$venv/package" .
}

# The tests' arguments. The tests of groups need torch, and most of their time is waiting for processes.
tests() {
  local test
  for test in tests/python/test_*.py; do
    case $test in
    *_device*) [ "$codec" = 1 ] || echo "$test" ;;
    *_torch_*.py | *_vllm_*.py | *_dropins.py | *_sglang.py | *_machines.py | *_share_once.py | *_tp_workers.py)
      [ "$codec" = 1 ] || [ -z "$torch" ] || echo "$test" ;;
    *_bench.py | *_docs.py | *_typing.py | *_warm.py) [ "$codec" = 1 ] || echo "$test" ;;
    *) echo "$test" ;;
    esac
  done
}

# try VERSION PYTHON NUMPY: adds a row.
try() {
  local venv=$out/$1 numpy=numpy result found said without row
  [ -z "$3" ] || venv+=-numpy$3 numpy="numpy==$3.*"
  say "$venv: $2"
  if ! prepare "$2" "$numpy"; then
    tail -n 20 "$venv/pip.log"
    result="not built: $venv/pip.log" failed=1
  elif [ -n "$3" ] && [ "${without[*]}" = numpy ]; then
    rm -rf "$venv"
    return
  else
    mapfile -t found < <(tests)
    # CI: there the tests insist on what is optional; here the table says what was missing.
    if ! CI='' "$venv/bin/python" -m pytest -q -p no:cacheprovider "${found[@]}" ${options[@]+"${options[@]}"} \
      >"$venv/tests.log" 2>&1; then
      failed=1
      grep -E '^(FAILED|ERROR)' "$venv/tests.log"
    fi
    result=$(tail -n 1 "$venv/tests.log" | sed 's/^=* *//; s/ *=*$//; s/, [0-9]* warnings\?//')
  fi
  said=$("$venv/bin/python" -c 'import platform; print(platform.python_version())')
  printf -v row '%-9s NumPy %-8s %-46s without: %s' "$said" \
    "$("$venv/bin/python" -c 'import numpy; print(numpy.__version__)' 2>/dev/null || echo none)" "$result" \
    "${without[*]:-nothing}"
  rows+=("$row")
}

# ---- A newer Debian --------------------------------------------------------------------------------------------------

# in_debian VERSION...: this script in the Debian, for those versions that it has; `rows` gets its rows.
in_debian() {
  local version status=0 arguments=() added
  local packages=(liburing-dev libxxhash-dev)
  for version; do
    packages+=("python$version-venv" "python$version-dev")
  done
  [ "$codec" = 0 ] || arguments+=(--codec)
  rm -f "$out/rows"
  # shellcheck disable=SC2016 # the text is for the shell within
  cmake/debian.sh "pythons-$suite" "$suite" gcc,libc6-dev,cmake,ninja-build,pkg-config,git,iproute2 bash -c '
    packages=$1 && shift
    install="apt-get install -y -qq --no-install-recommends"
    apt-get update -qq && { $install $packages || for package in $packages; do
      $install $package || echo "pythons: Debian has no $package"
    done; } >build/pythons/apt.log 2>&1
    exec cmake/pythons.sh --here "$@"' bash "${packages[*]}" ${arguments[@]+"${arguments[@]}"} "$@" \
    -- ${options[@]+"${options[@]}"} || status=$?
  mapfile -t added < <(cat "$out/rows" 2>/dev/null)
  rows+=(${added[@]+"${added[@]}"})
  for version; do
    printf '%s\n' ${added[@]+"${added[@]}"} | grep -q "^$version\." || missing+=("$version")
  done
  [ "$status" = 0 ] || [ "$status:${CI:-}" = 77: ] || failed=1
}

# ---- All of them -----------------------------------------------------------------------------------------------------

missing=() at_hand=() absent=()
for version in "${wanted[@]}"; do
  if interpreter "$version" >/dev/null; then at_hand+=("$version"); else absent+=("$version"); fi
done
if [ "$ends" = 1 ] && [ "${#at_hand[@]}" -gt 2 ]; then at_hand=("${at_hand[0]}" "${at_hand[-1]}"); fi
for version in ${at_hand[@]+"${at_hand[@]}"}; do
  python=$(interpreter "$version")
  try "$version" "$python" ""
  [ -z "$old_numpy" ] || try "$version" "$python" "$old_numpy"
done
if [ "$here" = 0 ] && [ "$ends" = 0 ] && [ "${#absent[@]}" -gt 0 ]; then
  in_debian "${absent[@]}"
else
  missing=(${absent[@]+"${absent[@]}"})
fi
printf '%s\n' ${rows[@]+"${rows[@]}"} >"$out/rows"
printf '\n==== Pythons\n'
cat "$out/rows"
[ "${#missing[@]}" = 0 ] || echo "Missing here: Python ${missing[*]}."
if [ "${#rows[@]}" = 0 ] && [ "$failed" = 0 ]; then
  echo "SKIPPED pythons: no Python of ${wanted[*]} is here"
  exit 77
fi
if [ "$failed" = 0 ]; then echo "Nothing failed."; else echo "FAILED."; fi
exit "$failed"
