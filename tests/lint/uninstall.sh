#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make uninstall` removes what an install to the same DESTDIR and PREFIX has put there, says what, and touches no other
# place. cmake/install.sh runs on a project of one file, so that nothing is compiled.
#   uninstall.sh <cmake>
set -euo pipefail
script=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../cmake/install.sh
PATH=$(dirname "$1"):$PATH
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/cmake"
cp "$script" "$dir/cmake"

fail() { echo "uninstall: $*" >&2; exit 1; }
project() { # project FILE...: what the sources install
  touch "${@/#/$dir/}"
  printf 'cmake_minimum_required(VERSION 3.22)\nproject(one LANGUAGES NONE)\ninstall(FILES %s DESTINATION lib)\n' "$*" \
    >"$dir/CMakeLists.txt"
}
run() { DESTDIR=$dir/$1 PREFIX=$2 "$dir/cmake/install.sh" "${@:3}" >"$dir/log" 2>&1; }

project one
(umask 077 && run stage /usr) && run other /usr && run stage /opt || fail "the install failed: $(cat "$dir/log")"
[ "$(stat -c %a "$dir/stage/usr/lib")" = 755 ] || fail "after a strict umask others can't read what is installed"
project two
run stage /usr || fail "the second install failed: $(cat "$dir/log")"

run elsewhere /usr uninstall && fail "uninstall takes a DESTDIR without an install"
run stage /usr/local uninstall && fail "uninstall takes a PREFIX without an install"
grep -F "$dir/stage/usr/local" "$dir/log" >/dev/null || fail "the refusal does not name the place: $(cat "$dir/log")"
[ -e "$dir/stage/usr/lib/one" ] || fail "a refused uninstall removes files"

run stage /usr uninstall || fail "$(cat "$dir/log")"
for name in one two; do
  [ ! -e "$dir/stage/usr/lib/$name" ] || fail "$name of an install to the place is left"
  grep -F "$dir/stage/usr/lib/$name" "$dir/log" >/dev/null || fail "uninstall does not say that it removes $name"
done
[ -e "$dir/other/usr/lib/one" ] && [ -e "$dir/stage/opt/lib/one" ] || fail "uninstall removes files of another place"
run stage /usr uninstall && fail "uninstall removes twice"
[ ! -e "$dir/stage/usr" ] || fail "folders of the install are left: $(find "$dir/stage/usr")"
touch "$dir/other/usr/theirs"
run other /usr uninstall || fail "$(cat "$dir/log")"
[ -e "$dir/other/usr/theirs" ] && [ ! -e "$dir/other/usr/lib" ] || fail "of the folders, not the empty ones are removed"
mkdir -p "$dir/before/usr/lib"
run before /usr && run before /usr uninstall || fail "$(cat "$dir/log")"
[ -e "$dir/before/usr/lib" ] || fail "uninstall removes a folder that was there before the install"
echo "uninstall: what was installed to the place, and nothing else"
