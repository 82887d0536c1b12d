#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries what `make wheels` has made, in places that have none of what made it. The last lines are a table. Exit status
# 0: all that was tried has passed; a part that can't be tried here is named, and fails with CI=true.
#   wheels-test.sh [PART...]       (all of them)
#     old      in a clean Debian 12, which has no compiler, with its Python and with pyenv's of this machine: the
#              command, the package with and without NumPy, the drop-ins, the package's tests (tests/wheels/inside.py);
#              where pip's folder of wheels has a torch for that Python, two ranks with it
#     new      the same in a clean Debian of the newest suite, with each Python that the suite has
#     arm      the wheels for 64-bit Arm by qemu-user, with Debian's Pythons (tests/wheels/arm.sh)
#     source   the source distribution in a new virtual environment here, with pip's build isolation
#     c        programs in C that use the library in the wheel: by `python -m ringcast config`, pkg-config and CMake
#   WHEELS_TESTS=      leaves out the package's tests
#   WHEELS_TORCH       the torch to try (2.13.0)
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ $# -gt 0 ] || parts=(old new arm source c)
torch=${WHEELS_TORCH:-2.13.0} out=$PWD/build/wheels/test failed=0 rows=()
pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
mkdir -p "$out"
compgen -G 'dist/*.whl' >/dev/null || { echo "wheels-test: dist/ has no wheel: make wheels" >&2 && exit 1; }

# try NAME COMMAND...: a row of the table; exit status 77 is a part that can't be tried here.
try() {
  local name=$1 status start=$SECONDS
  shift
  echo "== $name"
  set +e
  (set -e && "$@") 2>&1 | tee "$out/log"
  status=${PIPESTATUS[0]}
  set -e
  case $status in
  0) rows+=("passed       $((SECONDS - start)) s  $name") ;;
  77) rows+=("NOT TRIED    $name: $(tail -n 1 "$out/log")") && [ "${CI:-}" != true ] || failed=1 ;;
  *) rows+=("FAILED       $((SECONDS - start)) s  $name") && failed=1 ;;
  esac
  mapfile -t -O "${#rows[@]}" rows < <(sed -n 's/^RESULT /             /p' "$out/log")
}

# has_torch VERSION: its options, if pip's folder of wheels has that torch for this Python.
has_torch() {
  local folder
  for folder in ${PIP_FIND_LINKS:-}; do
    ! compgen -G "$folder/torch-$torch*-cp${1/./}-*x86_64.whl" >/dev/null || { echo "--torch $torch" && return; }
  done
}

# in_debian NAME SUITE PACKAGE PYTHON...: tests/wheels/inside.py in the Debian with each of the Pythons.
in_debian() {
  local name=$1 suite=$2 packages=$3 python status=0 now settings
  shift 3
  for python; do
    settings=$(has_torch "$(grep -oE '3\.[0-9]+$' <<<"$python")")
    [ -z "${WHEELS_TESTS-1}" ] || settings+=" --tests"
    now=0
    # shellcheck disable=SC2086
    DEBIAN_FOLDERS=$([ ! -d "$pyenv" ] || echo "$pyenv") cmake/debian.sh "wheels-$suite" "$suite" "$packages" \
      "$python" tests/wheels/inside.py dist "$name" $settings || now=$?
    case $status in 0 | 77) status=$now ;; esac # the first failure
  done
  return "$status"
}

old() {
  local pythons=(python3.11) version python
  for version in 3.10 3.12 3.13; do
    for python in "$pyenv/$version".*/bin/"python$version"; do [ ! -x "$python" ] || pythons+=("$python"); done
  done
  in_debian "Debian 12" bookworm python3-venv "${pythons[@]}"
}

new() {
  local pythons
  # shellcheck disable=SC2016 # for the shell within
  cmake/debian.sh wheels-sid sid python3-venv bash -c '
    apt-get update -qq >/dev/null
    for version in 3.10 3.11 3.12 3.13 3.14 3.15; do
      ! apt-get install -y -qq --no-install-recommends "python$version-venv" >/dev/null 2>&1 || echo "python$version"
    done' >"$out/pythons" || { pythons=$? && cat "$out/pythons" && return "$pythons"; }
  pythons=$(grep '^python' "$out/pythons")
  # shellcheck disable=SC2086
  in_debian "Debian sid" sid python3-venv $pythons
}

arm() {
  local pair status=0 now
  for pair in 3.11:bookworm 3.13:trixie 3.14:sid 3.15:sid; do
    now=0
    tests/wheels/arm.sh dist "${pair%:*}" "${pair#*:}" "$out/arm" || now=$?
    case $now in
    0) echo "RESULT Arm by qemu, Python ${pair%:*}: passed" ;;
    77) return 77 ;; # no qemu
    *) echo "RESULT Arm by qemu, Python ${pair%:*}: FAILED" && status=1 ;;
    esac
  done
  return "$status"
}

fresh() { rm -rf "$out/venv" && python3 -m venv "$out/venv"; }
pip() { "$out/venv/bin/python" -m pip -q --disable-pip-version-check "$@"; }

source_distribution() {
  fresh
  pip install dist/ringcast-*.tar.gz
  "$out/venv/bin/ringcast" --version && "$out/venv/bin/python" -m ringcast config --cflags --libs
  "$out/venv/bin/python" -c 'import ringcast; assert ringcast.unpack(ringcast.pack({"step": 7})) == {"step": 7}'
}

in_c() {
  local lib
  fresh
  pip install --no-index --find-links dist --only-binary :all: ringcast
  # shellcheck disable=SC2046
  cc examples/hello.c -o "$out/hello" $("$out/venv/bin/python" -m ringcast config --cflags --libs) && "$out/hello"
  lib=$("$out/venv/bin/python" -m ringcast config --libdir)
  tests/lint/installed.sh "$(dirname "$lib")" cmake cc ""
}

for part in "${parts[@]}"; do
  case $part in
  old) try "clean Debian 12" old ;;
  new) try "clean Debian sid" new ;;
  arm) try "64-bit Arm by qemu-user" arm ;;
  source) try "the source distribution, built by pip" source_distribution ;;
  c) try "programs in C" in_c ;;
  *) echo "wheels-test: '$part' is no part: see the head of cmake/wheels-test.sh" >&2 && exit 2 ;;
  esac
done
printf '\n==== Wheels\n'
printf '%s\n' "${rows[@]}"
exit "$failed"
