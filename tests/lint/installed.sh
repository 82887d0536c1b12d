#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The installed library serves a stranger: by find_package and by pkg-config, shared and static, also when the installed
# tree has been moved. tests/lint/c_guide.py runs what docs/c.md shows, FetchContent and add_subdirectory among it.
#   installed.sh <build folder, or a prefix: that of a wheel> <cmake> <cc> <cflags>
set -euo pipefail
build=$1 cmake=$2 cc=$3 cflags=$4
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

prefix=$build
if [ -e "$build/CMakeCache.txt" ]; then
  "$cmake" --install "$build" --prefix "$dir/first" >"$dir/log"
  mv "$dir/first" "$dir/moved"
  prefix=$dir/moved
fi
libdir=$(dirname "$(find "$prefix" -name libringcast.a)")

mkdir "$dir/consumer"
cat >"$dir/consumer/main.c" <<'EOF'
#include <ringcast/ringcast.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  ringcast_reader *reader;
  puts(ringcast_version());
  /* One call that goes all the way down, so that a static link needs every library. */
  return strcmp(ringcast_version(), RINGCAST_VERSION) != 0 || ringcast_reader_attach("not a handle", &reader) >= 0;
}
EOF
cat >"$dir/consumer/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES C)
find_package(ringcast ${WANTED} REQUIRED)
foreach(library ringcast ringcast_static)
  add_executable(with_${library} main.c)
  target_link_libraries(with_${library} PRIVATE ringcast::${library})
endforeach()
EOF
version=$(sed -n 's/#define RINGCAST_VERSION *"\(.*\)"/\1/p' "$prefix/include/ringcast/version.h")

# The soname is the major version. In a wheel libringcast.so is a linker script, so the file of the soname is read.
soname=$(readelf -d "$libdir/libringcast.so.${version%%.*}" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = "libringcast.so.${version%%.*}" ] && [ -e "$libdir/libringcast.so" ] ||
  { echo "the soname is $soname, not libringcast.so.${version%%.*}, or no libringcast.so leads there" >&2; exit 1; }
echo "soname: $soname"

check() { # check NAME PROGRAM: it runs and says the version
  local said
  said=$("$2") || { echo "$1: failed" >&2; exit 1; }
  [ "$said" = "$version" ] || { echo "$1: says $said, not $version" >&2; exit 1; }
  echo "$1: $said"
}

# Each header stands by itself, without a warning, in C and in C++: some of their functions are inline.
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Werror -fsyntax-only"
languages="c:c11"
echo 'int main() { return 0; }' >"$dir/try.cc"
if "$cc" -x c++ -fsyntax-only "$dir/try.cc" 2>"$dir/log"; then
  languages+=" c++:c++11 c++:c++20"
else
  echo "SKIPPED lint_installed: no C++ compiler beside $cc to try the headers with"
fi
headers=0
for header in "$prefix"/include/ringcast/*.h; do
  for language in $languages; do
    # shellcheck disable=SC2086
    printf '#include <ringcast/%s>\nint stranger;\n' "${header##*/}" |
      "$cc" -x "${language%:*}" -std="${language#*:}" $warnings -I "$prefix/include" - ||
      { echo "${header##*/} does not stand by itself as ${language#*:}" >&2; exit 1; }
  done
  headers=$((headers + 1))
done
echo "headers: $headers, as $languages"

"$cmake" -S "$dir/consumer" -B "$dir/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_C_FLAGS="$cflags" -DWANTED="$version" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
"$cmake" --build "$dir/cmake" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
check "find_package, shared" "$dir/cmake/with_ringcast"
check "find_package, static" "$dir/cmake/with_ringcast_static"

export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046,SC2086
"$cc" $cflags "$dir/consumer/main.c" -o "$dir/shared" $(pkg-config --cflags --libs ringcast) -Wl,-rpath,"$libdir"
check "pkg-config, shared" "$dir/shared"
# shellcheck disable=SC2046,SC2086
"$cc" $cflags "$dir/consumer/main.c" -o "$dir/static" $(pkg-config --cflags ringcast) "$libdir/libringcast.a" \
  $(pkg-config --static --libs-only-l --libs-only-other ringcast | sed 's/-lringcast//')
check "pkg-config, static" "$dir/static"

# A program that was made for an earlier version of the same major version is served, another is refused.
takes() { # takes VERSION
  "$cmake" -S "$dir/consumer" -B "$dir/other" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DWANTED="$1" \
    >"$dir/log" 2>&1
}
takes "${version%%.*}.0" || { cat "$dir/log" >&2; exit 1; }
for wrong in "${version%.*}.99" "$((${version%%.*} + 1)).0"; do
  takes "$wrong" && { echo "find_package takes version $version for $wrong" >&2; exit 1; }
done
echo "find_package, an earlier version: found; a later and another major version: refused"

# ringcast.hpp, by each compiler here. A sanitizer is of one compiler: tests/CMakeLists.txt builds the test with it.
[[ $cflags != *-fsanitize* ]] || exit 0
for cxx in g++ clang++; do
  command -v $cxx >/dev/null || { echo "SKIPPED lint_installed: no $cxx to try ringcast.hpp with"; continue; }
  for standard in c++17 c++20; do
    # shellcheck disable=SC2046,SC2086
    $cxx -std=$standard ${warnings/-fsyntax-only/} tests/process/test_hpp.cc -o "$dir/hpp" \
      $(pkg-config --cflags --libs ringcast) -Wl,-rpath,"$libdir"
    echo '#include <ringcast/ringcast.hpp>' >"$dir/no_exceptions.cc"
    # shellcheck disable=SC2086
    $cxx -std=$standard -fno-exceptions $warnings -I "$prefix/include" "$dir/no_exceptions.cc"
    "$dir/hpp" | sed "s/^/$cxx: /"
  done
done
