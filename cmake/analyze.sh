#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What clang-tidy and gcc's -fanalyzer find in the library, the command line, the extension and the examples in C. Exit
# status 0 only if they find nothing. Which checks are off, and why: .clang-tidy. Each of the two is a build of its own
# in build/analyze/, so that the next run looks only at what has changed since.
#
# Each judges differently in other versions, so that only clang-tidy of build/venv (cmake/deps.sh names the version) and
# gcc of the version below run. What is not installed is named, and not run; with CI=true that fails.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
gcc_major=12
# shellcheck source=cmake/asked.sh
source cmake/asked.sh
shopt -s nullglob

tidy=$PWD/build/venv/bin/clang-tidy
[ -x "$tidy" ] || lacking+=("clang-tidy in build/venv")
gcc=$(command -v "gcc-$gcc_major" gcc | head -n 1)
if [ -z "$gcc" ] || [ "$("$gcc" -dumpversion)" != "$gcc_major" ]; then
  lacking+=("gcc $gcc_major")
  gcc=
fi

# Anew with other checks or tools: a build does not see that these have changed.
key=$(cat .clang-tidy ./*/.clang-tidy cmake/analyze.sh cmake/deps.sh | sha256sum)
[ "$(cat build/analyze/key 2>/dev/null)" = "$key" ] || rm -rf build/analyze
mkdir -p build/analyze && echo "$key" >build/analyze/key

# build NAME OPTION...: all findings, not only those of the first file that has some
build() {
  local folder=build/analyze/$1
  shift
  cmake -S . -B "$folder" -G Ninja -D CMAKE_BUILD_TYPE=Debug -D RINGCAST_PYTHON=ON -D RINGCAST_TOOLS=ON \
    -D RINGCAST_INSTALL=OFF -D Python_EXECUTABLE="$PWD/build/venv/bin/python" "$@" >"$folder.log" 2>&1 ||
    { cat "$folder.log" && return 1; }
  nice ninja -C "$folder" -k 0 --quiet _ringcast ringcast ringcast_tool
}

tidied() {
  local status=0 header
  build tidy -D CMAKE_C_CLANG_TIDY="$tidy;--quiet" || status=1
  "$tidy" --quiet examples/*.c -- -Iinclude 2>/dev/null || status=1
  for header in include/ringcast/*.hpp; do
    "$tidy" --quiet "$header" -- -x c++ -std=c++17 -Iinclude 2>/dev/null || status=1
  done
  return "$status"
}
# shellcheck disable=SC2317
analyzed() {
  local status=0 example
  build gcc -D CMAKE_C_COMPILER="$gcc" -D CMAKE_C_FLAGS="-fanalyzer" -D RINGCAST_WERROR=ON || status=1
  for example in examples/*.c; do "$gcc" -fanalyzer -Werror -Iinclude -S -o /dev/null "$example" || status=1; done
  return "$status"
}

[ ! -x "$tidy" ] || ask clang-tidy tidied
[ -z "$gcc" ] || ask "gcc -fanalyzer" analyzed
conclude analyze
