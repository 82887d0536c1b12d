#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What clang-format, ruff, shellcheck and codespell say of the tree. Exit status 0 only if they say nothing. A tool that
# is not installed is named, and not run (with CI=true that fails); `make deps` installs all of them.
#   lint.sh          checks, and changes nothing
#   lint.sh format   formats C and Python
set -uo pipefail
cd "$(dirname "$0")/.." || exit
formatted=yes         # yes: a tree that is not formatted fails
clang_format_major=14 # another version formats differently, so that only this one is asked
# shellcheck source=cmake/asked.sh
source cmake/asked.sh

list() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
bin() { # bin NAME: the tool in build/venv, or else of the system
  if [ -x "build/venv/bin/$1" ]; then echo "build/venv/bin/$1"; else command -v "$1"; fi
}

clang_format=$(bin clang-format)
if [ -z "$clang_format" ] || [[ $("$clang_format" --version) != *"version $clang_format_major."* ]]; then
  clang_format=
  lacking+=("clang-format $clang_format_major")
fi
ruff=$(bin ruff) || lacking+=(ruff)
shellcheck=$(bin shellcheck) || lacking+=(shellcheck)
codespell=$(bin codespell) || lacking+=(codespell)

# shellcheck disable=SC2317 # they are called by ask
c_formatted() { list '*.c' '*.h' '*.hpp' '*.cc' | xargs -0 "$clang_format" "$@"; }
# shellcheck disable=SC2317
spelled() { list | xargs -0 "$codespell"; }
# shellcheck disable=SC2317
scripts_checked() {
  list | xargs -0 grep -lZI -m 1 '^#!.*bash\|^# shellcheck shell=bash' | xargs -0 "$shellcheck" -x --severity=warning
}

if [ "${1:-}" = format ]; then
  [ -z "$clang_format" ] || ask clang-format c_formatted -i
  [ -z "$ruff" ] || ask "ruff format" "$ruff" format --quiet .
else
  if [ "$formatted" = yes ]; then
    [ -z "$clang_format" ] || ask clang-format c_formatted --dry-run -Werror --ferror-limit=1
    [ -z "$ruff" ] || ask "ruff format" "$ruff" format --quiet --check .
  fi
  [ -z "$ruff" ] || ask ruff "$ruff" check --quiet .
  [ -z "$codespell" ] || ask codespell spelled
  [ -z "$shellcheck" ] || ask shellcheck scripts_checked
fi
conclude lint
