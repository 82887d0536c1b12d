#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library and the command line, optimised, in build/install, and installs both. Needs a C compiler and CMake.
#   PREFIX   where the files are to be found; default /usr/local
#   DESTDIR  a folder that stands for the root, for packages
#   install.sh            installs, and keeps a list of the files for each root and prefix
#   install.sh uninstall  removes, and prints, the files of the last install with the same DESTDIR and PREFIX
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "install: $*" >&2; exit 1; }
prefix=${PREFIX:-/usr/local} destdir=${DESTDIR:-} build=build/install
[[ $prefix == /* && ${destdir:-/} == /* ]] || fail "PREFIX and DESTDIR must be absolute: '$prefix', '$destdir'"
place=$destdir$prefix
list=$build/installed/${place//\//%}

if [ "${1:-}" = uninstall ]; then
  [ -e "$list" ] || fail "nothing to remove: no install from here to $place (DESTDIR, PREFIX) is on record"
  tr '\n' '\0' <"$list" | xargs -0 rm -fv
  rm "$list"
else
  missing=
  for tool in cmake "${CC:-cc}"; do command -v "${tool%% *}" >/dev/null || missing+=" $tool"; done
  [ -z "$missing" ] || fail "not found:$missing. On Debian: apt install gcc libc6-dev cmake make pkg-config"
  generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
  [ -e $build/CMakeCache.txt ] || cmake -S . -B $build -G "$generator"
  cmake -B $build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRINGCAST_TOOLS=ON -DCMAKE_INSTALL_PREFIX="$prefix"
  cmake --build $build --parallel
  DESTDIR=$destdir cmake --install $build
  mkdir -p "$build/installed" && touch "$list" # with what an earlier version of the sources has installed there
  awk -v root="$destdir" '{ print root $0 }' $build/install_manifest.txt | sort -u -o "$list" - "$list"
fi
# The loader finds a library in /usr/local/lib only by its cache.
if [ "$(id -u)" = 0 ] && [ -z "$destdir" ]; then PATH=$PATH:/usr/sbin:/sbin ldconfig; fi
