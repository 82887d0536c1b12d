# SPDX-License-Identifier: Apache-2.0
"""The order of the folders: a C file includes only what stands before it. Prints each include that
breaks the order."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The public headers are included as "ringcast/x.h", all others as "folder/x.h", from the root.
ORDER = ["include", "ring", "shm", "channel", "gpu"]
# Outside of the library: the public headers and their own files; the benchmarks measure by the
# tools' own means, the doctor reads RINGCAST_DISABLE as the library does, and a Reader of Python
# decodes ahead within the reader's wait.
OUTSIDE = ["python", "tools", "bench", "examples"]
ALSO = {
    "bench": ["tools"],
    "tools": ["shm/options.h"],
    "python": ["channel/liveness.h", "channel/reader.h"],
}
# Under tests/ anything goes.
TESTS = ["tests"]

# The rooms of the extension, in their order.
ROOMS = ["python/extension/tensors", "python/extension/codec", "python/extension/handles"]

# ring/ is arithmetic on the caller's memory: no header that brings a system call or an allocation.
RING_HEADERS = {
    f"{name}.h"
    for name in "assert errno limits math stdatomic stdbool stddef stdint string".split()
}

SOURCES = {".c", ".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def allowed(folder):
    """The folders that a file in `folder` may include from."""
    if folder in ORDER:
        return ORDER[: ORDER.index(folder) + 1]
    return ["include", folder, *ALSO.get(folder, [])]


def complaint(path, quote, header):
    """What is wrong with this include in the file at `path` (from the root), or None."""
    folder = path.parts[0]
    top = header.split("/")[0] if "/" in header else None
    target = "include" if top == "ringcast" else top
    ours = target in ORDER + OUTSIDE + TESTS
    if ours and target not in allowed(folder) and header not in allowed(folder):
        return f"{folder}/ stands before {target}/ or apart from it"
    room, other = (str(pathlib.PurePosixPath(file).parent) for file in (path.as_posix(), header))
    if room in ROOMS and other in ROOMS and ROOMS.index(other) > ROOMS.index(room):
        return f"{room}/ stands before {other}/"
    if quote == '"' and not ours:
        if folder in ORDER:
            return 'is neither "ringcast/x.h" nor "folder/x.h"'
        if not (ROOT / path.parent / header).is_file():
            return "is not a file beside it"
    if folder == "ring" and quote == "<" and not ours and header not in RING_HEADERS:
        return "ring/ takes no such system header: it makes no system call and allocates nothing"
    return None


def main():
    files = complaints = 0
    for folder in ORDER + OUTSIDE:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            files += 1
            path = file.relative_to(ROOT)
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                found = INCLUDE.match(line)
                why = found and complaint(path, found[1], found[2])
                if why:
                    complaints += 1
                    print(f"{path}:{number}: {line.strip()}: {why}")
    print(f"{files} files, {complaints} includes out of order")
    return 1 if complaints or not files else 0


sys.exit(main())
