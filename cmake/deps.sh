#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what the other scripts need: Debian packages, and build/venv for Python. Does nothing when all is there.
#   deps.sh build     what building, the demo and the examples need; with torch
#   deps.sh test      the same, and what `make test` needs
#   deps.sh all       the same, and what `make test-all`, soak, coverage, wheels, deb and abi need
#   deps.sh packages  of `all` the Debian packages alone
#   TORCH=<requirement>  the torch to install; empty: none
#   CI=true              torch must be had; otherwise its lack is told, here and after the tests
set -euo pipefail
cd "$(dirname "$0")/.."
level=${1:-all} torch=${TORCH-torch} venv=build/venv

say() { echo "deps: $*"; }

# Without the packages in `need` nothing can be built. The build and the tests do without those in `want`, and say so.
need="build-essential cmake ninja-build pkg-config python3-dev python3-venv"
want="liburing-dev libxxhash-dev"
python="scikit-build-core>=0.11 numpy"
extras=""
lint=""
if [ "$level" != build ]; then
  need+=" check"
  want+=" libbenchmark-dev systemtap-sdt-dev lowdown iproute2 shellcheck"
  python+=" pytest hypothesis mypy"
  extras="uvloop msgspec xxhash pyzmq ormsgpack pyfory matplotlib>=3.10 pyyaml"
  # Of these versions exactly, as another one judges, or counts, differently.
  lint="ruff==0.17.6 codespell==2.4.3 clang-format==14.0.6"
fi
case $level in
build | test) ;;
all | packages)
  # Models, fuzzing, memcheck, 64-bit Arm, probes; a clean Debian for wheels; abidiff.
  want+=" spin clang libclang-rt-dev valgrind gcc-12 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user bpftrace"
  want+=" unzip debootstrap debian-archive-keyring abigail-tools"
  lint+=" clang-tidy==21.1.6 gcovr==8.8 coverage==7.17.5"
  ;;
*) say "'$level' is not build, test, all or packages" >&2 && exit 2 ;;
esac

# ---- Debian packages ----

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
  # shellcheck disable=SC2086
  if [ -n "$wanted" ] && ! apt_install $wanted; then
    for package in $wanted; do
      apt_install "$package" || say "could not install $package; going on without"
    done
  fi
fi

[ "$level" != packages ] || exit 0

# ---- build/venv ----

pip() { "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@" 2>build/pip.log; }

# installed FILE KEY: whether the file in build/venv says that what the key names is there
installed() { grep -qxF "$2" "$venv/$1" 2>/dev/null; }

key="$torch | $(python3 -c 'import sys; print(sys.version, sys.base_prefix)' | tr '\n' ' ')"
if ! { "$venv/bin/python" -c '' && installed .requirements "$key"; } 2>/dev/null ||
  { [ "${CI:-}" = true ] && [ -n "$torch" ] && [ -e "$venv/.without-torch" ]; }; then
  say "filling $venv: numpy $torch"
  "$venv/bin/python" -c '' 2>/dev/null || rm -rf "$venv"
  python3 -m venv "$venv"
  rm -f "$venv/.requirements" "$venv/.without-torch" "$venv/.packages"
  if [ -z "$torch" ]; then
    echo "left out, as asked (TORCH=)" >"$venv/.without-torch"
  elif ! pip "$torch"; then
    grep -v '^WARNING' build/pip.log >&2 || true
    if [ "${CI:-}" = true ]; then
      say "could not install $torch" >&2
      exit 1
    fi
    echo "could not install $torch; to try again: rm $venv/.requirements && make deps" >"$venv/.without-torch"
  fi
  echo "$key" >"$venv/.requirements"
fi

# A line for each level in .packages, so that no level undoes what another has installed.
key="$python | $extras | $lint"
if ! installed .packages "$key"; then
  say "adding to $venv: $python $extras $lint"
  # shellcheck disable=SC2086
  pip $python || { grep -v '^WARNING' build/pip.log >&2; exit 1; }
  # Tests, and columns of the benchmarks, are left out without the others.
  # shellcheck disable=SC2086
  if [ -n "$extras$lint" ] && ! pip $extras $lint; then
    for package in $extras $lint; do
      pip "$package" || say "could not install $package; going on without"
    done
  fi
  echo "$key" >>"$venv/.packages"
fi
if [ -e "$venv/.without-torch" ]; then
  say "no torch: $(cat "$venv/.without-torch")"
fi
