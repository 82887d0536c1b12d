#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library and the command line, optimised, in build/install, and installs both. Needs a C compiler and CMake.
#   PREFIX   where the files are to be found; default /usr/local
#   DESTDIR  a folder that stands for the root, for packages
#   install.sh            installs
#   install.sh uninstall  removes the files of the last install
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local} destdir=${DESTDIR:-} build=build/install

if [ "${1:-}" = uninstall ]; then
  manifest=$build/install_manifest.txt
  [ -e $manifest ] || { echo "install: no $manifest: nothing was installed from here" >&2; exit 1; }
  sed "s|^|$destdir|" $manifest | tr '\n' '\0' | xargs -0 rm -f
else
  generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
  [ -e $build/CMakeCache.txt ] || cmake -S . -B $build -G "$generator"
  cmake -B $build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRINGCAST_TOOLS=ON -DCMAKE_INSTALL_PREFIX="$prefix"
  cmake --build $build --parallel
  DESTDIR=$destdir cmake --install $build
fi
# The loader finds a library in /usr/local/lib only by its cache.
if [ "$(id -u)" = 0 ] && [ -z "$destdir" ]; then ldconfig; fi
