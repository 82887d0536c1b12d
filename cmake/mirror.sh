#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the address of the Debian archive that apt on this machine uses; else that of Debian itself.
set -euo pipefail
mirror=$(sed -n 's/^URIs: *\(.*debian\)\/* *$/\1/p; s/^deb  *\(\[[^]]*\] *\)\?\([^ ]*debian\)\/* .*/\2/p' \
  /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | sed -n 1p) || true
echo "${mirror:-http://deb.debian.org/debian}"
