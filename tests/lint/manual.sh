#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The man pages that were built have no errors, and each function of the library and each struct that one takes has one.
#   manual.sh <build folder> <mandoc>
set -euo pipefail
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
build=$1 mandoc=$2 map=$root/ringcast.map include=$root/include/ringcast
cd "$build/manual"

"$mandoc" -Tlint -W error man3/*.3 man7/*.7 "$build"/tools/man/*.1
pages=0
for page in man3/*.3 man7/*.7; do
  while read -r word file; do
    [ "$word" != .so ] || [ -f "$file" ] || { echo "$page sources $file, which is not there" >&2; exit 1; }
  done <"$page"
  "$mandoc" -Tutf8 "$page" 2>/dev/null | grep ringcast >/dev/null || { echo "$page is empty" >&2; exit 1; }
  pages=$((pages + 1))
done
while read -r name; do
  [ -f "man3/$name.3" ] || { echo "$name has no man page" >&2; exit 1; }
done < <(sed -n 's/^ *\(ringcast_[a-z_0-9]*\);.*/\1/p' "$map"
         cat "$include"/*.h | sed -n '/^RINGCAST_API/,/;/{s/.*struct \(ringcast_[a-z_]*\) .*/\1/p}' | sort -u)

# Errors that a comment has by reference, excludes, or leaves to the list that all functions share.
lists() { grep -xF "\\fB$2\\fR" "man3/$1.3" >/dev/null; }
for error in "tap_attach -EPROTO" "reader_next -EINVAL" "writer_send -ENOBUFS" "writer_create -E2BIG"; do
  # shellcheck disable=SC2086
  lists ringcast_$error || { echo "the man page lacks an error: $error" >&2; exit 1; }
done
! lists ringcast_tap_attach -EUSERS || { echo "ringcast_tap_attach gives no -EUSERS" >&2; exit 1; }
echo "$pages pages"
