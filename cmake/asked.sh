# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What cmake/lint.sh and cmake/analyze.sh share: tools that are asked, and what they said. Sourced. A script adds to
# `lacking` what is not installed.
failed=0 lacking=() ran=()

ask() { # ask NAME COMMAND...
  local name=$1
  shift
  if "$@"; then ran+=("$name"); else failed=1 && ran+=("$name (FAILED)"); fi
}

say() { printf '%s, ' "$@" | sed 's/, $//'; } # say WORD...: with commas

# conclude NAME: the last lines of the script of that name, and its exit status
conclude() {
  if [ ${#lacking[@]} != 0 ]; then
    echo "SKIPPED $1: not installed: $(say "${lacking[@]}")"
    [ "${CI:-}" != true ] || failed=1
  fi
  echo "$1: $(say "${ran[@]}")"
  exit "$failed"
}
