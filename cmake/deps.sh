#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what building and testing needs: Debian packages, and build/venv for Python. Does nothing when all is there.
#   deps.sh [packages]   packages: those of Debian alone
#   TORCH=<requirement>  the torch to install; empty: none
#   CI=true              torch must be had; otherwise its lack is told, here and after the tests
set -euo pipefail
cd "$(dirname "$0")/.."
torch=${TORCH-torch}
venv=build/venv

say() { echo "deps: $*"; }

# ---- Debian packages ----

need="build-essential cmake ninja-build pkg-config check python3-dev python3-venv"
# The build does without, and says so; the tests leave out what the others are for: the model, fuzzing,
# memcheck, 64-bit Arm, machines (network namespaces), lint, man pages, probes. make wheels and
# wheels-test need unzip, lowdown, debootstrap and Debian's keys, make abi abigail-tools.
want="liburing-dev libxxhash-dev libbenchmark-dev spin clang libclang-rt-dev valgrind"
want+=" gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user iproute2 gcc-12 shellcheck"
want+=" lowdown systemtap-sdt-dev bpftrace unzip debootstrap debian-archive-keyring abigail-tools"

missing() { # missing PACKAGE...: those of them that are not installed
  local package
  for package; do
    [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    say "to install packages, be root or have sudo: $*" >&2
    return 1
  fi
}

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >build/apt.log 2>&1
}

mkdir -p build
if ! type -P apt-get dpkg-query >/dev/null; then
  say "this is no Debian; see for yourself that the like of these is there: $need $want"
else
  # shellcheck disable=SC2086
  needed=$(missing $need) wanted=$(missing $want)
  if [ -n "$needed$wanted" ]; then
    say "installing" $needed $wanted
    as_root apt-get update -qq >build/apt.log 2>&1 ||
      { tail -n 3 build/apt.log; say "apt-get update failed; going on"; }
  fi
  # shellcheck disable=SC2086
  if [ -n "$needed" ] && ! apt_install $needed; then
    tail -n 5 build/apt.log >&2
    say "could not install:" $needed >&2
    exit 1
  fi
  for package in $wanted; do
    apt_install "$package" || say "could not install $package; going on without"
  done
fi

[ "${1:-}" != packages ] || exit 0

# ---- build/venv ----

requirements="scikit-build-core>=0.11 numpy pytest hypothesis mypy"
# Tests, and columns of the benchmarks, are left out without them.
extras="uvloop msgspec xxhash pyzmq ormsgpack pyfory matplotlib>=3.10 pyyaml"
key="$requirements $extras | $torch | $(python3 -c 'import sys; print(sys.version, sys.base_prefix)' | tr '\n' ' ')"

if ! { "$venv/bin/python" -c '' && [ "$(cat "$venv/.requirements")" = "$key" ]; } 2>/dev/null ||
  { [ "${CI:-}" = true ] && [ -n "$torch" ] && [ -e "$venv/.without-torch" ]; }; then
  say "filling $venv: $requirements $torch"
  "$venv/bin/python" -c '' 2>/dev/null || rm -rf "$venv"
  python3 -m venv "$venv"
  rm -f "$venv/.requirements" "$venv/.without-torch"
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip install -q --disable-pip-version-check $requirements
  for package in $extras; do
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "$package" 2>build/pip.log ||
      say "could not install $package; going on without"
  done
  if [ -z "$torch" ]; then
    echo "left out, as asked (TORCH=)" >"$venv/.without-torch"
  elif ! "$venv/bin/python" -m pip install -q --disable-pip-version-check "$torch" 2>build/torch.log; then
    grep -v '^WARNING' build/torch.log >&2 || true
    if [ "${CI:-}" = true ]; then
      say "could not install $torch" >&2
      exit 1
    fi
    echo "could not install $torch; to try again: rm $venv/.requirements && make deps" >"$venv/.without-torch"
  fi
  echo "$key" >"$venv/.requirements"
fi
# Of these versions exactly, as another one judges, or counts, differently.
lint="ruff==0.17.6 codespell==2.4.3 clang-format==14.0.6 clang-tidy==21.1.6 gcovr==8.8 coverage==7.17.5"
if [ "$(cat "$venv/.lint" 2>/dev/null)" != "$lint" ]; then
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip install -q --disable-pip-version-check $lint 2>build/pip.log &&
    echo "$lint" >"$venv/.lint" || say "could not install $lint; make lint, or coverage, goes without"
fi
if [ -e "$venv/.without-torch" ]; then
  say "no torch: $(cat "$venv/.without-torch")"
fi
