#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the shared library with that of the last release (the latest tag v*) by abidiff, and fails if a program of
# that release could not run with this library: a symbol is gone or has another type, or a public struct has changed,
# other than by new fields at the end of a struct that begins with its size. Not compared: macros, inline functions,
# enums that no function takes, and ringcast_gpu_*, which is not promised yet (version.h).
#   abi.sh [COMMIT]   compares with the sources of that commit instead
set -euo pipefail
cd "$(dirname "$0")/.."
command -v abidiff >/dev/null || { echo "abi: needs abidiff (Debian: abigail-tools)" >&2; exit 1; }
out=build/abi
old=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)}
if [ -z "$old" ]; then
  echo "SKIPPED abi: there is no release yet (a tag v*) to compare with"
  exit 0
fi
rm -rf $out/sources && mkdir -p $out/sources
git archive "$old" | tar -x -C $out/sources

build() { # build SOURCES FOLDER: the library with its types, and nothing else
  { cmake -S "$1" -B "$2" -DCMAKE_BUILD_TYPE=Debug -DRINGCAST_LIBURING=OFF &&
    cmake --build "$2" --target ringcast --parallel; } >"$2.log" 2>&1 || { tail -n 20 "$2.log" >&2; return 1; }
}
build $out/sources $out/old
build . $out/new
soname() { readelf -d "$1/libringcast.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'; }
if [ "$(soname $out/old)" != "$(soname $out/new)" ]; then
  echo "abi: $old has the soname $(soname $out/old), this is $(soname $out/new): nothing is promised between the two"
  exit 0
fi

# The structs of the old headers that begin with their size may grow at the end, unless another struct contains them.
old_headers=$(cat $out/sources/include/ringcast/*.h)
begins='/^struct ringcast_[a-z_]* {$/{N;s/struct \(ringcast_[a-z_]*\) {\n  uint32_t size[;,].*/\1/p}'
contained=$(sed -n 's/^  struct \(ringcast_[a-z_]*\) [a-z].*/\1/p' <<<"$old_headers")
sized=$(sed -n "$begins" <<<"$old_headers" | grep -vxF "$contained" | paste -sd '|')
cat >$out/allowed.ini <<END
[suppress_type]
name_regexp = ^($sized)\$
has_data_member_inserted_at = end
[suppress_function]
name_regexp = ^ringcast_gpu_
END
abidiff --headers-dir1 $out/sources/include/ringcast --headers-dir2 include/ringcast --drop-private-types \
  --no-added-syms --suppressions $out/allowed.ini $out/old/libringcast.so $out/new/libringcast.so ||
  { echo "abi: programs that were made for $old can't rely on this library: see above" >&2; exit 1; }
echo "abi: programs that were made for $old ($(git rev-parse --short "$old")) run with this library"
