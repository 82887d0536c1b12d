#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/aarch64-sysroot: what the tests need of Debian's packages for 64-bit Arm, unpacked and not installed, and
# fetched by lists of packages of its own, so that nothing of this machine changes. Does nothing when it is there.
# Exit status 77, with the reason: 64-bit Arm can't be built for, or be run, here.
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=build/aarch64-sysroot
packages="check libsubunit-dev"

cannot() {
  echo "SKIPPED $*"
  exit 77
}

for tool in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user; do
  command -v "${tool%:*}" >/dev/null || cannot "no ${tool%:*} (Debian: ${tool#*:})"
done
echo 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -static -x c -o /dev/null - 2>/dev/null ||
  cannot "aarch64-linux-gnu-gcc can't link (Debian: libc6-dev-arm64-cross)"
[ ! -e "$sysroot/.complete" ] || exit 0

rm -rf "$sysroot"
# shellcheck disable=SC2086
cmake/unpack.sh "$sysroot" arm64 - $packages || cannot "could not fetch $packages for arm64"
# The shared library that it names is not here, and what is linked takes the static one.
rm -f "$sysroot"/usr/lib/aarch64-linux-gnu/libsubunit.so
touch "$sysroot/.complete"
