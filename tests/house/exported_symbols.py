# SPDX-License-Identifier: Apache-2.0
"""Three lists must be one: what the shared library exports, exported_symbols.txt, and the RINGCAST_API names of the
headers. The list is committed, so that a change of the ABI shows in review."""

import argparse
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = HERE.parents[1] / "include" / "ringcast"


def exported(library, nm):
    out = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    symbols = (line.split()[-2:] for line in out.splitlines())
    # Type A: the version node itself.
    return {name.split("@")[0] for kind, name in symbols if kind != "A"}


def listed():
    lines = (HERE / "exported_symbols.txt").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def declared():
    names = set()
    for header in HEADERS.glob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        names.update(re.findall(r"\bRINGCAST_API\b[^;(]*?\b(\w+)\s*\(", text))
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--nm", default="nm")
    args = parser.parse_args()

    lists = {
        "exported by the library": exported(args.library, args.nm),
        "in exported_symbols.txt": listed(),
        "RINGCAST_API in the headers": declared(),
    }
    same = True
    for symbol in sorted(set().union(*lists.values())):
        missing = [name for name, symbols in lists.items() if symbol not in symbols]
        if missing:
            same = False
            print(f"{symbol}: not {', not '.join(missing)}")
    print(", ".join(f"{len(symbols)} {name}" for name, symbols in lists.items()))
    return 0 if same and lists["in exported_symbols.txt"] else 1


sys.exit(main())
