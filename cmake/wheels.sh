#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes dist/: the source distribution, and from it a wheel for each architecture and each supported CPython. The
# compiler is zig's clang from PyPI, which links against glibc 2.28. Python's headers, liburing, xxHash and sys/sdt.h
# come from Debian's packages, so that a wheel has the same abilities whatever this machine has. auditwheel judges each
# wheel. A Python whose headers can't be had is named at the end. Exit status 1: something that was tried has failed.
#   WHEELS_ALL=1              a Python without headers fails, too
#   wheels.sh [VERSION...]    only the wheels of these Pythons (3.10 3.11 3.12 3.13 3.14 3.15)
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=("$@") architectures=(x86_64 aarch64)
[ $# -gt 0 ] || wanted=(3.10 3.11 3.12 3.13 3.14 3.15)
tools="auditwheel==6.8.2 build==1.6.1 scikit-build-core==1.1.2 wheel==0.48.0 ziglang==0.17.1"
declare -A debian=([3.11]=bookworm [3.13]=trixie [3.14]=sid [3.15]=sid) # who has a libpython3.X-dev
out=$PWD/build/wheels venv=$PWD/build/wheels/venv source=$PWD/build/wheels/source

say() { echo "wheels: $*"; }

pip() { "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"; }

# ---- What a wheel is made of -----------------------------------------------------------------------------------------

prepare() {
  local tool needed=(cmake ninja lowdown readelf python3)
  { type -P "${needed[@]}" && python3 -c 'import ensurepip'; } >/dev/null 2>&1 || cmake/deps.sh packages
  for tool in "${needed[@]}"; do
    command -v "$tool" >/dev/null || { say "no $tool (make deps installs it on a Debian)" && exit 1; }
  done
  mkdir -p "$out"
  rm -rf "$out"/build-* # CMake keeps the flags of an older toolchain file
  [ -e "$venv/bin/python" ] || python3 -m venv "$venv"
  # shellcheck disable=SC2086
  pip install $tools 2>"$out/pip.log" || { cat "$out/pip.log" && exit 1; }
  # zig's cache, by the contents of the files, spares compiling them again; their times are those of the unpacking.
  export ZIG_GLOBAL_CACHE_DIR=$out/zig RINGCAST_WHEEL_ZIG SOURCE_DATE_EPOCH
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # of the files in a wheel, which is then the same again
  RINGCAST_WHEEL_ZIG=$("$venv/bin/python" -c 'import ziglang; print(ziglang.__path__[0])')/zig
}

# sysroot ARCHITECTURE: headers and liburing.a.
sysroot() {
  local root=$out/$1 architecture=amd64 version complete=1
  [ ! -e "$root/.complete" ] || return 0
  [ "$1" = x86_64 ] || architecture=arm64
  rm -rf "$root"
  cmake/unpack.sh "$root" "$architecture" bookworm liburing-dev libxxhash-dev systemtap-sdt-dev
  for version in "${!debian[@]}"; do
    cmake/unpack.sh "$root" "$architecture" "${debian[$version]}" "libpython$version-dev" ||
      { say "no headers of Python $version from Debian" && complete=0; }
  done
  [ "$complete" = 0 ] || touch "$root/.complete"
}

# headers ARCHITECTURE VERSION: the folder of Python.h, of Debian's package or of a Python of this machine. The latter
# serves both architectures: pyconfig.h of Debian's 3.11, 3.13, 3.14 and 3.15 for arm64 differs from that for amd64 in
# gcc's assembler for x87, in wchar_t without a sign and in the tier of support. The extension uses none of these.
headers() {
  local python folder=$out/$1/usr/include/python$2 ask='import sysconfig; print(sysconfig.get_path("include"))'
  for python in "" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$2".*/bin/"python$2" "$(command -v "python$2")"; do
    [ -z "$python" ] || folder=$("$python" -c "$ask" 2>/dev/null) || continue
    [ ! -e "$folder/Python.h" ] || { echo "$folder" && return; }
  done
  return 1
}

source_distribution() {
  local strange
  rm -rf dist/*.whl dist/*.tar.gz "$source"
  "$venv/bin/python" -m build --sdist --no-isolation --outdir dist . >"$out/sdist.log" 2>&1 ||
    { tail -n 20 "$out/sdist.log" && exit 1; }
  strange=$(comm -13 <(git ls-files | sort) <(tar -tf dist/*.tar.gz | cut -d / -f 2- | grep -v '^PKG-INFO$' | sort))
  [ -z "$strange" ] || { say "the source distribution has files that git does not have: $strange" && exit 1; }
  mkdir -p "$source"
  tar -xm -C "$source" --strip-components 1 -f dist/*.tar.gz
}

# ---- One wheel -------------------------------------------------------------------------------------------------------

# wheel ARCHITECTURE VERSION HEADERS. The library and the command are built once, for the first of the Pythons.
wheel() {
  local architecture=$1 tag=cp${2/./} made=$out/made root=$out/$1 triplet=$1-linux-gnu setting settings=() file
  rm -rf "$made"
  for setting in build-dir="$out/build-$architecture" install.strip=false \
    cmake.define.CMAKE_TOOLCHAIN_FILE="$source/cmake/wheel.cmake" \
    cmake.define.RINGCAST_LIBURING_ARCHIVE="$root/usr/lib/$triplet/liburing.a" \
    cmake.define.RINGCAST_PYTHON_INCLUDE="$3" cmake.define.RINGCAST_PYTHON_SOABI="cpython-${2/./}-$triplet"; do
    settings+=("--config-settings=$setting")
  done
  RINGCAST_WHEEL_ARCH=$architecture RINGCAST_WHEEL_SYSROOT=$root \
    pip wheel --no-index --no-deps --no-build-isolation "${settings[@]}" -w "$made" "$source" || return
  "$venv/bin/wheel" tags --remove --python-tag "$tag" --abi-tag "$tag" --platform-tag "manylinux_2_28_$architecture" \
    "$made"/*.whl >/dev/null || return
  file=$(echo "$made"/*.whl)
  judge "$file" || return
  say "$(du -k --apparent-size "$file" | cut -f 1) KiB $(basename "$file"), for auditwheel $judged"
  mv "$file" dist/
}

# judge FILE: `judged` becomes the oldest platform for which auditwheel finds the wheel fit. Fails if that is newer than
# 2.28, or the extension needs a function that glibc 2.28 lacks: such a name has no version, since zig knows of none; or
# if the command is no position-independent program.
judge() {
  local lacking
  judged=$("$venv/bin/auditwheel" show "$1" | tr '\n' ' ' | sed -n 's/.*platform tag: "\(manylinux_[^"]*\)".*/\1/p')
  case $judged in
  manylinux_2_1?_* | manylinux_2_2[0-8]_*) ;;
  *) "$venv/bin/auditwheel" show "$1" && return 1 ;;
  esac
  rm -rf "$out/unpacked"
  "$venv/bin/python" -m zipfile -e "$1" "$out/unpacked"
  lacking=$(readelf -W --dyn-syms "$out"/unpacked/ringcast/_ringcast*.so |
    awk '$7 == "UND" && $8 !~ /@|^_?Py|^$/ {print $8}')
  [ -z "$lacking" ] || { say "$1 needs what is neither of glibc 2.28 nor of Python: $lacking" && return 1; }
  readelf -h "$out"/unpacked/ringcast-*.data/scripts/ringcast | grep 'Type:.*DYN' >/dev/null ||
    { say "$1: the command can't be loaded at any address" && return 1; }
}

# ---- All of them -----------------------------------------------------------------------------------------------------

prepare
source_distribution
failed=() missing=()
for architecture in "${architectures[@]}"; do sysroot "$architecture"; done
for version in "${wanted[@]}"; do
  for architecture in "${architectures[@]}"; do
    folder=$(headers "$architecture" "$version") || { missing+=("$version for $architecture") && continue; }
    wheel "$architecture" "$version" "$folder" || failed+=("$version for $architecture")
  done
done
say "$(du -k --apparent-size dist/*.tar.gz | cut -f 1) KiB $(basename dist/*.tar.gz)"
for version in ${missing[@]+"${missing[@]}"}; do say "NOT MADE: Python $version: no Python.h here or in Debian"; done
for version in ${failed[@]+"${failed[@]}"}; do say "FAILED: Python $version"; done
[ "${#failed[@]}" = 0 ] && { [ "${#missing[@]}" = 0 ] || [ "${WHEELS_ALL:-}" != 1 ]; }
