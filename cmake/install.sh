#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library and the command line, optimised, in build/install, and installs both. Needs a C compiler and CMake.
#   PREFIX   where the files are to be found; default /usr/local
#   DESTDIR  a folder that stands for the root, for packages
#   install.sh            installs, and keeps lists of the files, and of the folders that it makes, for each root and prefix
#   install.sh uninstall  removes, and prints, what the installs with the same DESTDIR and PREFIX have left there
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "install: $*" >&2; exit 1; }
prefix=${PREFIX:-/usr/local} destdir=${DESTDIR:-} build=build/install
[[ $prefix == /* && ${destdir:-/} == /* ]] || fail "PREFIX and DESTDIR must be absolute: '$prefix', '$destdir'"
place=$destdir$prefix
list=$build/installed/${place//\//%} folders=$list.folders stage=$build/stage

if [ "${1:-}" = uninstall ]; then
  [ -e "$list" ] || fail "nothing to remove: no install from here to $place (DESTDIR, PREFIX) is on record"
  tr '\n' '\0' <"$list" | xargs -0 rm -fv
  # The inner ones first. A folder that holds something of others stays.
  if [ -e "$folders" ]; then tac "$folders" | xargs -d '\n' rmdir -v --ignore-fail-on-non-empty 2>/dev/null || true; fi
  rm -f "$list" "$folders"
else
  missing=
  for tool in cmake "${CC:-cc}"; do command -v "${tool%% *}" >/dev/null || missing+=" $tool"; done
  [ -z "$missing" ] || fail "not found:$missing. On Debian: apt install gcc libc6-dev cmake make pkg-config"
  generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
  [ -e $build/CMakeCache.txt ] || cmake -S . -B $build -G "$generator"
  cmake -B $build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRINGCAST_TOOLS=ON -DCMAKE_INSTALL_PREFIX="$prefix"
  cmake --build $build --parallel
  mkdir -p "$build/installed" && touch "$list" "$folders"
  rm -rf $stage && DESTDIR=$PWD/$stage cmake --install $build >/dev/null
  (cd $stage && find . -mindepth 1 -type d -printf '/%P\n') |
    while IFS= read -r folder; do [ -d "$destdir$folder" ] || printf '%s\n' "$destdir$folder"; done |
    sort -u -o "$folders" - "$folders"
  rm -r $stage
  (umask 022 && DESTDIR=$destdir cmake --install $build) # CMake makes folders by the umask, and others must read them
  # with what an earlier version of the sources has installed there
  awk -v root="$destdir" '{ print root $0 }' $build/install_manifest.txt | sort -u -o "$list" - "$list"
fi
# The loader finds a library in /usr/local/lib only by its cache.
if [ "$(id -u)" = 0 ] && [ -z "$destdir" ]; then PATH=$PATH:/usr/sbin:/sbin ldconfig; fi
