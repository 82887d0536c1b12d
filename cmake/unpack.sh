#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian's packages into a folder. They are fetched by lists of packages of the script's own, and not installed:
# nothing of this machine changes.
#   unpack.sh FOLDER ARCHITECTURE SUITE PACKAGE...
#     ARCHITECTURE   as Debian calls it: amd64, arm64
#     SUITE          bookworm, trixie, sid; or "-": what this machine's own sources have
set -euo pipefail
folder=$1 architecture=$2 suite=$3
shift 3
if ! type -P apt-get dpkg-deb >/dev/null; then
  echo "no apt-get to fetch $* for $architecture by" >&2
  exit 1
fi
mkdir -p "$folder"
apt=$(mktemp -d -p "$folder" apt.XXXXXX) # apt does not expand relative paths as others do
apt=$(realpath "$apt")
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
touch "$apt/status"
options=(-o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o "Dir::State::Lists=$apt/lists"
  -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
if [ "$suite" != - ]; then
  key=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$key] $("$(dirname "$0")/mirror.sh") $suite main" >"$apt/sources.list"
  options+=(-o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/nonexistent)
fi
fetch() { apt-get "${options[@]}" update && (cd "$apt/debs" && apt-get "${options[@]}" download "$@"); }
if ! fetch "$@" >"$apt/log" 2>&1; then
  tail -n 3 "$apt/log" >&2
  exit 1
fi
for package in "$apt"/debs/*.deb; do dpkg-deb -x "$package" "$folder"; done
