#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes BUILD/site, a folder for PYTHONPATH: the package's modules, and beside them the extension of that build, if any.
#   site.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
site=$1/site
rm -rf "$site"
mkdir -p "$site"
cp -r python/ringcast "$site/ringcast"
rm -f "$site"/ringcast/_ringcast*.so
for extension in "$1"/python/_ringcast*.so; do
  [ ! -e "$extension" ] || cp "$extension" "$site/ringcast/"
done
