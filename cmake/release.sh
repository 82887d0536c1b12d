#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What of RELEASING.md a program can check.
#   release.sh check          the sources agree on the version, and there is no tag of the version yet
#   release.sh check vX.Y.Z   the same with a tag that is there: it is of the version, and of this commit
#   release.sh notes          prints the newest release's section of CHANGELOG.md
set -euo pipefail
cd "$(dirname "$0")/.."
wrong=0
complain() { echo "release: $*" >&2 && wrong=1; }
number() { sed -nE "s/^#define RINGCAST_VERSION_$1 +([0-9]+)$/\1/p" include/ringcast/version.h; } # number MAJOR

check() { # check [TAG]
  local version node changed packaged
  version=$(sed -nE 's/^#define RINGCAST_VERSION +"([^"]+)"$/\1/p' include/ringcast/version.h)
  [ "$version" = "$(number MAJOR).$(number MINOR).$(number PATCH)" ] ||
    complain "include/ringcast/version.h: RINGCAST_VERSION is $version, and its parts are others"
  changed=$(grep -m 1 -E '^## \[[0-9]' CHANGELOG.md || true)
  [[ $changed =~ ^"## [$version] - "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
    complain "CHANGELOG.md: the newest release is '$changed', not '## [$version] - YYYY-MM-DD'"
  [ "$(grep -A 2 -F '## [Unreleased]' CHANGELOG.md | tail -n 1)" = "$changed" ] ||
    complain "CHANGELOG.md: '## [Unreleased]', with nothing under it, must come before the newest release"
  node=$(sed -nE 's/^RINGCAST_([0-9.]+) .*\{.*/\1/p' ringcast.map | sort -V | tail -n 1)
  [ "$(printf '%s\n' "$node" "${version%.*}" | sort -V | tail -n 1)" = "${version%.*}" ] ||
    complain "ringcast.map: the newest node is RINGCAST_$node, and the version is $version"
  packaged=$(sed -nE '1s/^ringcast \(([^)]+)\).*/\1/p' debian/changelog 2>/dev/null || true)
  [ "$packaged" = "$version" ] || complain "debian/changelog: the newest version is '$packaged', not $version"
  [ -z "$(git status --porcelain)" ] || complain "the tree is not clean: git status"
  if [ $# = 0 ]; then
    [ -z "$(git tag --list "v$version")" ] || complain "there is a tag v$version already: raise the version"
  else
    [ "$1" = "v$version" ] || complain "the tag is $1, and the version is $version"
    [ "$(git rev-parse -q --verify "refs/tags/$1^{commit}")" = "$(git rev-parse HEAD)" ] ||
      complain "the tag $1 is not of this commit"
  fi
  [ "$wrong" = 0 ] && echo "release: $version can be released"
}

notes() { awk '/^## \[[0-9]/ { if (begun++) exit; next } begun' CHANGELOG.md; }

case ${1:-} in
check | notes) "$@" ;;
*) sed -n 's/^#   //p' "$0" >&2 && exit 2 ;;
esac
