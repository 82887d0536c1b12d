# SPDX-License-Identifier: Apache-2.0
"""
Calls and includes between files.

No file of ring/, shm/, channel/ or gpu/ uses a symbol of a higher folder, and rc_ring_, rc_slot_
and rc_spill_ are names of ring/. No comment in a folder names a file of a higher folder.

A room is a header with its C files: a C file belongs to the header that it includes first, if that
is in its folder; else it is a room of its own. In the folders of WALKED no rooms form a circle,
neither by calls nor by includes, and so not by inline functions. In the others no C files form a
circle of calls. Each function of ring/ or shm/ is declared in the header of its room, or, if
public, in include/; of channel/ and gpu/, in a header of the folder.

Of the Python extension, where its objects are given: a part of ROOMS uses no symbol of a later part,
and neither its C files, by calls, nor its rooms, by calls and includes, form a circle.

    circles.py OBJECTS NM [EXTENSION]

OBJECTS and EXTENSION are the folders that hold ring/ring.c.o and call.c.o; NM lists symbols.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["ring", "shm", "channel", "gpu"]
WALKED = ["ring", "shm", "channel", "gpu"]  # the folders whose rooms are judged with their includes
OF_RING = re.compile(r"rc_(ring|slot|spill|tap|frame|estimate)_")

EXTENSION = "python/extension"
ROOMS = ["errors.c", "spans.c", "call.c", "tensors", "codec", "handles", "module.c"]

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
NAMED = re.compile(r"\b(ring|shm|channel|gpu)/(\w+\.[ch])\b")


INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def room_of(path):
    """The room of a file: its header, from the root and without the suffix."""
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    if path.suffix == ".h":
        return name
    first = INCLUDE.search(path.read_text(encoding="utf-8"))
    header = pathlib.PurePosixPath(first[1] if first else name)
    return (
        header.with_suffix("").as_posix()
        if header.parent == pathlib.PurePosixPath(name).parent
        else name
    )


def rooms(folder, calls):
    """For each room of a folder the rooms that it includes or calls."""
    files = sorted((ROOT / folder).rglob("*.[ch]"))
    uses = {room_of(path): set() for path in files}
    for path in files:
        own = room_of(path)
        name = path.relative_to(ROOT).as_posix()
        called = {room_of(ROOT / file) for file in calls.get(name, ())}
        included = {
            header.removesuffix(".h")
            for header in INCLUDE.findall(path.read_text(encoding="utf-8"))
        }
        uses[own] |= ((called | included) & set(uses)) - {own}
    return uses


def named_upwards():
    """A complaint for each comment that names a file of a higher folder."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.[ch]")):
            for comment in COMMENT.findall(path.read_text(encoding="utf-8")):
                for other, file in NAMED.findall(comment):
                    if FOLDERS.index(other) > FOLDERS.index(folder):
                        yield f"{folder}/{path.name}: a comment names {other}/{file}, of a higher folder"


def declared(header, symbol):
    """Whether the header, without its comments, declares the symbol."""
    return header.exists() and re.search(
        rf"\b{symbol}\b", COMMENT.sub(" ", header.read_text(encoding="utf-8"))
    )


def undeclared(home):
    """A complaint for each symbol that no header of its own room declares."""
    for symbol, file in sorted(home.items()):
        path = ROOT / file
        header = ROOT / f"{room_of(path)}.h"
        headers = [header, *sorted((ROOT / "include/ringcast").glob("*.h"))]
        if file.startswith(("channel/", "gpu/")):
            headers += sorted(path.parent.glob("*.h"))
        if not any(declared(header, symbol) for header in headers):
            yield f"{file} defines {symbol}, which {header.name} does not declare"


def symbols(objects, nm, pattern, root):
    """For each object the symbols that the object defines, and those that the object uses."""
    defined, used = {}, {}
    for file in sorted(objects.glob(pattern)):
        name = file.relative_to(objects).as_posix()[:-2]
        if name.split("/")[0] not in FOLDERS + ROOMS or not (root / name).exists():
            continue  # an object of a file that is gone
        listed = subprocess.run(
            [nm, "-g", str(file)], check=True, capture_output=True, text=True
        ).stdout
        for kind, symbol in re.findall(r"([A-Za-z]) (\w+)$", listed, re.M):
            (used if kind == "U" else defined).setdefault(name, set()).add(symbol)
    return defined, used


def circle(calls, files):
    """One circle of calls among the files, or an empty list."""
    state, path = {}, []

    def visit(file):
        state[file] = 1
        path.append(file)
        for callee in sorted(calls.get(file, set()) & files):
            if state.get(callee) == 1:
                return path[path.index(callee) :] + [callee]
            found = visit(callee) if callee not in state else []
            if found:
                return found
        path.pop()
        state[file] = 2
        return []

    for file in sorted(files):
        found = visit(file) if file not in state else []
        if found:
            return found
    return []


def of_the_extension(objects, nm):
    """A complaint for each call upwards, and for each circle."""
    defined, used = symbols(objects, nm, "**/*.c.o", ROOT / EXTENSION)
    home = {
        symbol: file
        for file, names in defined.items()
        for symbol in names
        if symbol.startswith("rc_py_")
    }
    calls = {}
    for file, names in used.items():
        for symbol in sorted(names & set(home)):
            callee = home[symbol]
            calls.setdefault(file, set()).add(callee)
            if ROOMS.index(callee.split("/")[0]) > ROOMS.index(file.split("/")[0]):
                yield f"{file} uses {symbol} of {callee}, a later room"
    calls = {
        f"{EXTENSION}/{file}": {f"{EXTENSION}/{callee}" for callee in callees}
        for file, callees in calls.items()
    }
    uses = rooms(EXTENSION, calls)
    for found in [circle(calls, set(calls)), circle(uses, set(uses))]:
        if found:
            yield f"a circle in {EXTENSION}: {' -> '.join(found)}"
    if len(defined) < 20:
        yield f"{objects} has no more than {len(defined)} objects"


def main():
    nm = sys.argv[2] if len(sys.argv) > 2 else "nm"
    defined, used = symbols(pathlib.Path(sys.argv[1]), nm, "*/*.c.o", ROOT)
    home = {symbol: file for file, names in defined.items() for symbol in names}
    calls, complaints = {}, []
    for file, names in used.items():
        for symbol in sorted(names & set(home)):
            callee = home[symbol]
            calls.setdefault(file, set()).add(callee)
            if FOLDERS.index(callee.split("/")[0]) > FOLDERS.index(file.split("/")[0]):
                complaints.append(f"{file} uses {symbol} of {callee}, a higher folder")
    for folder in FOLDERS:
        uses = rooms(folder, calls) if folder in WALKED else calls
        found = circle(uses, {name for name in uses if name.startswith(folder + "/")})
        if found:
            complaints.append(f"a circle: {' -> '.join(found)}")
    for symbol, file in sorted(home.items()):
        if OF_RING.match(symbol) and not file.startswith("ring/"):
            complaints.append(f"{file} defines {symbol}: such names are for ring/")
    complaints += [*named_upwards(), *undeclared(home)]
    if len(sys.argv) > 3:
        complaints += of_the_extension(pathlib.Path(sys.argv[3]), nm)
    for complaint in complaints:
        print(complaint)
    print(f"{len(defined)} objects, {len(home)} symbols; {len(complaints)} wrong")
    return 1 if complaints or len(defined) < 20 else 0


sys.exit(main())
