#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages (debian/) for the release of Debian that runs this, into dist/deb, and runs lintian where
# it is installed. As root, or with sudo, it installs what the build lacks.
set -euo pipefail
cd "$(dirname "$0")/.."
# Debian's own tools and Python, not those of a virtual environment or of pyenv.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
command -v apt-get >/dev/null || { echo "deb: needs a Debian, or a system made from it" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@" -y -qq --no-install-recommends >build/apt.log; }

rm -rf build/deb dist/deb && mkdir -p build/deb dist/deb
command -v dpkg-buildpackage >/dev/null || { as_root apt-get update -qq && install install dpkg-dev; }
version=$(sed -n 's/#define RINGCAST_VERSION *"\(.*\)"/\1/p' include/ringcast/version.h)
[ "$(dpkg-parsechangelog -S Version)" = "$version" ] ||
  { echo "deb: debian/changelog does not begin with $version, the version of version.h" >&2; exit 1; }

# A copy of what git tracks: the build leaves files in the sources.
copy=build/deb/ringcast-$version
mkdir "$copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t "$copy"
if ! dpkg-checkbuilddeps "$copy/debian/control"; then
  as_root apt-get update -qq && install build-dep "./$copy"
fi
(cd "$copy" && dpkg-buildpackage --no-sign --build=full --jobs="$(nproc)")
find build/deb -maxdepth 1 -type f -exec mv -t dist/deb {} +
if command -v lintian >/dev/null; then
  lintian --fail-on error --info --tag-display-limit 0 dist/deb/*.changes
else
  echo "SKIPPED deb: lintian is not installed"
fi
ls dist/deb
