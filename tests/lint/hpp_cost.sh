#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ringcast.hpp costs what C costs: the instructions of a message of 64 bytes, sent and read, are counted by callgrind
# for both. The header may add at most 16, of some hundreds: what keeps a frame's place until its scope ends.
#   hpp_cost.sh <shared library> <c++>
set -euo pipefail
library=$1 cxx=$2
cd "$(dirname "$0")/../.."
command -v valgrind >/dev/null || { echo "SKIPPED hpp_cost: valgrind is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

instructions() { # instructions PROGRAM MESSAGES
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$1" "$2" 2>&1 | sed -n 's/.*Collected : \([0-9]*\)$/\1/p'
}
each() { # each NAME FLAG...: of one message
  "$cxx" -std=c++17 -O2 "${@:2}" -Iinclude tests/process/hpp_cost.cc -o "$dir/$1" "$library" -Wl,-rpath,"${library%/*}"
  echo $((($(instructions "$dir/$1" 11000) - $(instructions "$dir/$1" 1000)) / 10000))
}
c=$(each c -DPLAIN)
hpp=$(each hpp)
echo "instructions of a message of 64 bytes, sent and read: $c in C, $hpp by ringcast.hpp"
[ "$c" -gt 50 ] && [ $((hpp - c)) -le 16 ]
