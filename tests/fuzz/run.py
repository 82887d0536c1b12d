#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs fuzz targets, each for a time, and says what came of it.

    cmake --preset fuzz && cmake --build --preset fuzz && tests/fuzz/run.py --seconds 600 ring frame

Each starts from what is kept in tests/fuzz/corpus/<target>.txt (one input a line, in hexadecimal)
and from what tests/vectors/hostile.py makes. An input that a target fails on is left in build/fuzz/crashes;
build/fuzz/tests/fuzz/fuzz_<target> FILE tries it again. The time is also taken from
RINGCAST_FUZZ_SECONDS.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "vectors"))

import hostile  # noqa: E402

TARGETS = [
    "frame",
    "object",
    "handle",
    "attach",
    "writer",
    "ring",
    "gpu",
    "dump",
    "recording",
    "python",
]
# Bytes of an input; of the others 512.
LONGEST = {
    "frame": 2048,
    "object": 2560,
    "python": 2048,
    "dump": 2048,
    "recording": 4096,
    "handle": 128,
}


def why_not():
    """Why targets can't be built here, in words, or None."""
    clang = shutil.which("clang")
    if not clang:
        return "clang is not there (Debian: clang)"
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "try.c"
        source.write_text(
            "int LLVMFuzzerTestOneInput(const char *a, unsigned long b) { return !a && b; }\n"
        )
        out = [
            clang,
            "-fsanitize=fuzzer,address,undefined",
            str(source),
            "-o",
            str(source.with_suffix("")),
        ]
        tried = subprocess.run(out, capture_output=True, text=True, check=False)
    return (
        None
        if tried.returncode == 0
        else "clang has no libFuzzer or no sanitizers (Debian: libclang-rt-dev)"
    )


def last(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def environment():
    """Python's target needs the package, and the NumPy of build/venv if there is one."""
    paths = [
        ROOT / "python",
        *(ROOT / "build/venv").glob("lib/python*/site-packages"),
        os.environ.get("PYTHONPATH"),
    ]
    path = os.pathsep.join(str(path) for path in paths if path)
    return {"UBSAN_OPTIONS": "print_stacktrace=1", **os.environ, "PYTHONPATH": path}


def write_seeds(target, folder):
    """One file for each input that is kept, as libFuzzer wants them."""
    lines = (HERE / "corpus" / f"{target}.txt").read_text(encoding="utf-8").splitlines()
    inputs = [bytes.fromhex(line.split("#")[0]) for line in lines]
    inputs += hostile.seeds(target)
    folder.mkdir()
    for number, data in enumerate(inputs):
        (folder / f"seed-{number}").write_bytes(data)


def run(target, args):
    """Runs one target. Returns (passed, executions, frames)."""
    program = args.programs / f"fuzz_{target}"
    crashes = args.crashes / f"{target}-"
    args.crashes.mkdir(parents=True, exist_ok=True)
    before = set(args.crashes.glob(f"{target}-*"))
    with tempfile.TemporaryDirectory() as fresh:
        seeds = pathlib.Path(fresh, "seeds")
        grown = args.keep / target if args.keep else pathlib.Path(fresh, "grown")
        grown.mkdir(parents=True, exist_ok=True)
        write_seeds(target, seeds)
        command = [
            str(program),
            f"-max_total_time={args.seconds}",
            f"-seed={args.seed}",
            "-timeout=20",
        ]
        command += [
            "-print_final_stats=1",
            f"-artifact_prefix={crashes}",
            f"-max_len={LONGEST.get(target, 512)}",
        ]
        command += [str(grown), str(seeds)]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            check=False,
        )
    log = done.stdout.decode(errors="replace")
    skipped = re.search(r"^SKIPPED .*", log, re.M)
    if skipped and done.returncode == 0:
        print(skipped[0], flush=True)
        return True, 0, 0
    executions = last(r"stat::number_of_executed_units: *(\d+)", log)
    frames = last(r"frames fuzzed: (\d+)", log)
    found = sorted(set(args.crashes.glob(f"{target}-*")) - before)
    passed = done.returncode == 0 and not found
    coverage = last(r"cov: (\d+)", log)
    figures = f"{executions:>11} executions  {frames:>12} frames  coverage {coverage:>5}"
    print(f"{target:8} {figures}  crashes {len(found)}", flush=True)
    if not passed:
        print("\n".join(log.splitlines()[-60:]))
        for path in found:
            print(f"{target}: fails on {path}; to try again: {program} {path}")
        if not found:
            print(f"{target}: ended with status {done.returncode}")
    return passed, executions, frames


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "targets", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)}; default: all"
    )
    seconds = int(os.environ.get("RINGCAST_FUZZ_SECONDS") or 10)
    parser.add_argument(
        "--seconds", type=int, default=seconds, help="for each target (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the random numbers; 0: another each time"
    )
    parser.add_argument(
        "--keep",
        type=pathlib.Path,
        metavar="FOLDER",
        help="keeps inputs that reached something new, to go on from them",
    )
    parser.add_argument(
        "--programs", type=pathlib.Path, default=ROOT / "build/fuzz/tests/fuzz", metavar="FOLDER"
    )
    parser.add_argument(
        "--crashes", type=pathlib.Path, default=ROOT / "build/fuzz/crashes", metavar="FOLDER"
    )
    parser.add_argument(
        "--why-not", action="store_true", help="say why targets can't be built here, if so, and end"
    )
    args = parser.parse_args()
    if args.why_not:
        reason = why_not()
        print(reason or "", end="\n" if reason else "")
        return 0
    unknown = [target for target in args.targets if target not in TARGETS]
    if unknown:
        parser.error(f"{unknown[0]} is no target: it must be one of {', '.join(TARGETS)}")
    passed, frames, all_executions = True, 0, 0
    for target in args.targets or TARGETS:
        if not (args.programs / f"fuzz_{target}").is_file():
            if target != "python":
                build = "cmake --preset fuzz && cmake --build --preset fuzz"
                sys.exit(f"{args.programs}/fuzz_{target} is not there: {build}")
            print(
                f"SKIPPED fuzz_{target}: it is not built here: no libpython to embed (Debian: "
                f"libpython3-dev)"
            )
            continue
        good, executions, seen = run(target, args)
        passed &= good
        frames += seen
        all_executions += executions
    print(f"fuzzed frames: {frames} (in {all_executions} executions)")
    return 0 if passed else 1


sys.exit(main())
