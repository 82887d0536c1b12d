# SPDX-License-Identifier: Apache-2.0
"""Three lists must be one: what the shared library exports, the names in ringcast.map, and the
RINGCAST_API names of the headers. The map names each symbol under its release, so that a change of
the ABI shows in review.

And the library stays in memory when a program that has loaded the library as a plugin unloads it
(dlclose): the library's threads may still run, for a device that reads a ring which was closed."""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include" / "ringcast"


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def exported(library, nm):
    """Each name with the release that it has: name@@RELEASE."""
    out = subprocess.run(
        [nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    symbols = (line.split()[-2:] for line in out.splitlines())
    # Type A: the version node itself.
    return {name for kind, name in symbols if kind != "A"}


def mapped():
    text = without_comments((ROOT / "ringcast.map").read_text(encoding="utf-8"))
    names = set()
    for node, body in re.findall(r"(\w[\w.]*)\s*\{(.*?)\}", text, flags=re.S):
        names.update(f"{name}@@{node}" for name in re.findall(r"(\S+);", body.split("local:")[0]))
    return names


def declared():
    names = set()
    for header in HEADERS.glob("*.h"):
        text = without_comments(header.read_text(encoding="utf-8"))
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        names.update(re.findall(r"\bRINGCAST_API\b[^;(]*?\b(\w+)\s*\(", text))
    return names


def stays(library, readelf):
    out = subprocess.run(
        [readelf, "-d", library], check=True, capture_output=True, text=True
    ).stdout
    return any("NODELETE" in line for line in out.splitlines() if "FLAGS_1" in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--readelf", default="readelf")
    args = parser.parse_args()

    lists = {
        "exported by the library": exported(args.library, args.nm),
        "in ringcast.map": mapped(),
    }
    releases = {name.split("@")[0]: name for name in lists["in ringcast.map"]}
    lists["RINGCAST_API in the headers"] = {releases.get(name, name) for name in declared()}
    same = stays(args.library, args.readelf)
    if not same:
        print(f"{args.library} can be unloaded while its threads run: link it with -z nodelete")
    for symbol in sorted(set().union(*lists.values())):
        missing = [name for name, symbols in lists.items() if symbol not in symbols]
        if missing:
            same = False
            print(f"{symbol}: not {', not '.join(missing)}")
    print(", ".join(f"{len(symbols)} {name}" for name, symbols in lists.items()))
    return 0 if same and lists["in ringcast.map"] else 1


sys.exit(main())
