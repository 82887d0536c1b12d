#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The documentation site: build/docs/site, from docs/, the headers and the Python package; mkdocs.yml says how. Fails at
# any warning and any broken link. The tools are in build/docs/venv, of the versions in cmake/docs.txt.
#   RINGCAST_SITE_URL   where the site will be served, for canonical addresses and the page of an unknown address
#   RINGCAST_REPO_URL   the repository's page: links to source files lead there, not to copies on the site
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/docs/venv
export NO_MKDOCS_2_WARNING=1

python3 -c 'import ensurepip' 2>/dev/null || cmake/deps.sh packages
if ! cmp -s cmake/docs.txt "$venv/.requirements"; then
  mkdir -p build/docs
  python3 -m venv --clear "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r cmake/docs.txt
  cp cmake/docs.txt "$venv/.requirements"
fi
# Not --quiet: --strict does not see the warnings then.
if ! "$venv/bin/mkdocs" build --strict >build/docs/log 2>&1; then
  grep -v '^INFO' build/docs/log >&2
  exit 1
fi
echo "docs: $(find build/docs/site -name '*.html' | wc -l) pages in build/docs/site"
