#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each fault of tests/faults/AREA.txt into a copy of the tree, and demands that a test fails.

A fault is a paragraph: its name; the file; the lines as they stand, with "- " before each; the
lines as they become, with "+ "; and the tests of which one must fail: "! ctest NAME" or
"! pytest ARGUMENTS". The lines must stand in the file exactly once, however indented. The copy is
in build/faults, and its build is of the preset dev; Python and pytest are those of build/venv."""

import argparse
import ctypes
import filecmp
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
TREE, PYTHON = TOP / "build/faults", TOP / "build/venv/bin/python"
DEV = TREE / "build/dev"
SECONDS = 120  # for a test; one that hangs has caught the fault
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TREE}/python", "CCACHE_BASEDIR": str(TREE)}
if shutil.which("ccache"):
    ENVIRONMENT |= {"CMAKE_C_COMPILER_LAUNCHER": "ccache", "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"}
PR_SET_CHILD_SUBREAPER = 36


class Unusable(Exception):
    pass


def read_faults(areas):
    for area in areas or sorted(path.stem for path in TOP.glob("tests/faults/*.txt")):
        text = (TOP / f"tests/faults/{area}.txt").read_text()
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            name, file, *rest = [x for x in paragraph.splitlines() if not x.startswith("#")]
            marked = [[x[2:] for x in rest if x[0] == mark] for mark in "-+!"]
            yield name, TREE / file, *marked


def copy_tree():
    """The files that git knows or would add; the copy of one that is the same keeps its time."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=TOP, stdout=subprocess.PIPE, text=True, check=True).stdout
    names = {name for name in names.split("\0") if name and (TOP / name).is_file()}
    (TREE / "build").mkdir(parents=True, exist_ok=True)
    for folder in [x for x in TREE.iterdir() if x.name != "build"]:
        for path in [folder, *folder.rglob("*")]:
            if path.is_file() and str(path.relative_to(TREE)) not in names:
                path.unlink()
    for name in names:
        if not (TREE / name).is_file() or not filecmp.cmp(TOP / name, TREE / name, shallow=False):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, TREE / name)
    if not (TREE / "build/venv").exists():
        (TREE / "build/venv").symlink_to(TOP / "build/venv")


def output(*command):
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=TREE, env=ENVIRONMENT, check=False, **piped)
    if done.returncode != 0:
        raise Unusable(f"{shlex.join(command)}:\n{done.stdout[-2000:]}")
    return done.stdout


def build(tests):
    """What these tests run, where a target says what that is; else all."""
    if not (DEV / "build.ninja").exists():
        output("cmake", "--preset", "dev", "-DRINGCAST_WERROR=OFF")
    targets = re.findall(r"^(\w+): phony", output("ninja", "-C", str(DEV), "-t", "targets"), re.M)
    wanted = ["_ringcast" if x.startswith("pytest ") else x.removeprefix("ctest ") for x in tests]
    if not wanted or not set(wanted) <= set(targets):
        wanted = ["all"]
    output("cmake", "--build", str(DEV), "--target", *wanted)
    for extension in DEV.glob("python/_ringcast*.so"):
        link = TREE / "python/ringcast" / extension.name
        link.unlink(missing_ok=True)
        link.symlink_to(extension)


def end_descendants():
    """Also those whose parent is gone, which are this process's then."""
    below, more = set(), {os.getpid()}
    while more:
        below |= more
        parents = shlex.join(map(str, more)).replace(" ", ",")
        listed = subprocess.run(["pgrep", "-P", parents], capture_output=True, check=False).stdout
        more = {int(pid) for pid in listed.split()} - below
    for pid in below - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def fails(test):
    kind, _, arguments = test.partition(" ")
    if kind == "ctest":
        command = ["ctest", "--test-dir", str(DEV), "--no-tests=error", "-R", f"^{arguments}$"]
    else:
        command = [str(PYTHON), "-m", "pytest", "-q", "-x", *shlex.split(arguments)]
    nowhere = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.STDOUT,
    }
    process = subprocess.Popen(command, cwd=TREE, env=ENVIRONMENT, **nowhere)
    try:
        return process.wait(SECONDS) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        end_descendants()
        process.wait()


def plant(path, before, after):
    lines = path.read_text().split("\n")
    wanted, stands = [x.strip() for x in before], [x.strip() for x in lines]
    found = [at for at in range(len(lines)) if stands[at : at + len(wanted)] == wanted]
    if not wanted or len(found) != 1:
        raise Unusable(f"these lines stand in it {len(found)} times")
    at, given = found[0], len(before[0]) - len(before[0].lstrip())
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines[at : at + len(wanted)] = [indent + line[given:] for line in after]
    path.write_text("\n".join(lines))


def catcher(path, before, after, tests):
    """The test that fails with the fault."""
    original = path.read_bytes()
    try:
        plant(path, before, after)
        build(tests)
        return next((test for test in tests if fails(test)), None)
    finally:
        path.write_bytes(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", metavar="AREA")
    parser.add_argument("--only", metavar="NAME", help="the fault of this name alone")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    faults = [fault for fault in read_faults(options.areas) if options.only in (None, fault[0])]
    copy_tree()
    build([])
    broken = {test for test in {test for *_, tests in faults for test in tests} if fails(test)}
    caught = 0
    for name, path, before, after, tests in faults:
        try:
            if broken & set(tests):
                raise Unusable(f"fails without the fault too: {broken & set(tests)}")
            test = catcher(path, before, after, tests)
            result = f"caught by {test}" if test else f"MISSED by {', '.join(tests)}"
        except (Unusable, OSError) as error:
            test, result = None, f"NOT PLANTED: {error}"
        caught += test is not None
        print(f"{name:48} {str(path.relative_to(TREE)):28} {result}", flush=True)
    print(f"{caught} of {len(faults)} faults caught")
    return 0 if caught == len(faults) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
