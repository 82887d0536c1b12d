#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The man pages that were built have no errors, and each function of the library has one.
#   manual.sh <build folder> <mandoc>
set -euo pipefail
build=$1 mandoc=$2 map=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../ringcast.map
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
done < <(sed -n 's/^ *\(ringcast_[a-z_0-9]*\);.*/\1/p' "$map")
echo "$pages pages"
