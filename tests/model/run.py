# SPDX-License-Identifier: Apache-2.0
"""
Proves the models in this folder with Spin, and that each ordering they rely on is needed.

  models     must be free of errors, and searched to the end mutations  weaken one edge each; Spin
  must find what breaks controls   the sizes of the mutations with nothing weakened: free of errors,
  so that it is the weakening that is found spare      weaken what another edge makes good, as
  docs/memory-order.md says; they must be free of errors, too

--deep: the larger sizes. --only TEXT: those whose name has TEXT in it. Works in build/model. Exit
status 77: no Spin.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
WORK = HERE.parents[1] / "build" / "model"

# Kind, model and name: what it is about; then its size, and a larger one for --deep.
MODELS = {
    "ring publish": ("FRAMES=4", "FRAMES=6"),
    "ring sizes": ("FRAMES=6 READERS=1 CELLS=6 SIZES", "FRAMES=9 READERS=1 CELLS=6 SIZES"),
    "ring pins": ("FRAMES=6 READERS=1 PINS", "FRAMES=5 PINS"),
    "ring join": (
        "FRAMES=5 READERS=1 JOINS=2 LEAVES GRANT=CELLS",
        "FRAMES=6 READERS=1 JOINS=3 LEAVES GRANT=CELLS",
    ),
    "ring join-two": ("FRAMES=3 JOINS=1 SLOTS=1 LEAVES", "FRAMES=4 JOINS=2 SLOTS=1 LEAVES"),
    "ring join-beside": ("FRAMES=2 JOINS=1", "FRAMES=3 JOINS=1 LEAVES"),
    "ring latest": (
        "FRAMES=5 READERS=1 JOINS=1 LATEST",
        "FRAMES=6 READERS=1 JOINS=2 LEAVES LATEST",
    ),
    "ring reader-dies": ("FRAMES=3 JOINS=1 SLOTS=1 DEATHS=1", "FRAMES=4 DEATHS=1"),
    "ring writer-dies": ("FRAMES=2 KILL_WRITER", "FRAMES=4 KILL_WRITER"),
    "ring evict": ("FRAMES=5 READERS=1 JOINS=3 EVICTIONS=2", "FRAMES=5 EVICTIONS=2"),
    "ring evict-two": (
        "FRAMES=4 JOINS=1 SLOTS=1 EVICTIONS=1",
        "FRAMES=5 JOINS=2 SLOTS=1 EVICTIONS=1",
    ),
    "ring evict-dies": (
        "FRAMES=4 READERS=1 JOINS=2 EVICTIONS=1 DEATHS=1",
        "FRAMES=3 JOINS=1 SLOTS=1 EVICTIONS=1 DEATHS=1",
    ),
    "event data": ("ROUNDS=2 SLEEPERS=2", "ROUNDS=4 SLEEPERS=2"),
    "event room": ("ROUNDS=2 SIGNALLERS=2 WANTED", "ROUNDS=4 SIGNALLERS=2 WANTED"),
    "event unfenced": (
        "ROUNDS=2 SIGNALLERS=2 WANTED UNFENCED",
        "ROUNDS=3 SIGNALLERS=2 WANTED UNFENCED",
    ),
    "event timeouts": ("ROUNDS=2 SLEEPERS=2 TIMEOUTS=1", "ROUNDS=3 SLEEPERS=2 TIMEOUTS=2"),
    "event cancel": ("ROUNDS=1 CANCEL", "ROUNDS=2 SLEEPERS=2 CANCEL"),
    "newest tags": ("FRAMES=4", "FRAMES=7"),
    "tap ring": ("FRAMES=6", "FRAMES=12"),
    "spill tap": ("FRAMES=3 TAP", "FRAMES=5 TAP"),
    "spill latest": ("FRAMES=3 LATEST", "FRAMES=4 LATEST"),
    "spill evict": ("FRAMES=3 EVICT", "FRAMES=4 EVICT TAP"),
    "device pool": ("FRAMES=4 SLOTS=2", "FRAMES=6 SLOTS=2 STREAMS=2"),
    "device streams": ("FRAMES=4 STREAMS=2", "FRAMES=6 STREAMS=2"),
    "device readers": ("FRAMES=3 LIVES=2", "FRAMES=4 LIVES=3 SLOTS=2"),
    "device again": ("FRAMES=4 OPENS=2", "FRAMES=4 OPENS=3 LIVES=2"),
    "device reader-dies": ("FRAMES=3 LIVES=2 DEATHS", "FRAMES=3 LIVES=3 DEATHS SLOTS=2"),
    "device writer-dies": ("FRAMES=3 KILL_WRITER", "FRAMES=4 KILL_WRITER LIVES=2 SLOTS=2"),
}

EVICTED = "FRAMES=5 READERS=1 EVICTIONS=1"
JOINED = "FRAMES=6 READERS=1 JOINS=1 GRANT=CELLS"
LATEST = "FRAMES=5 READERS=1 JOINS=1 LATEST"
AGAIN = "FRAMES=5 READERS=1 JOINS=2 LEAVES"
MUTATIONS = {
    "ring W0": "FRAMES=3 READERS=1",
    "ring W2": "FRAMES=3 READERS=1",
    "ring W3": "FRAMES=5 READERS=1 JOINS=1",
    "ring R1": "FRAMES=3 READERS=1",
    "ring A1": "FRAMES=8 READERS=1 SIZES CELLS=6",
    "ring PIN": "FRAMES=6 READERS=1 PINS",
    "ring G0": JOINED,
    "ring G1": "FRAMES=5 READERS=1 JOINS=1",
    "ring J2": JOINED,
    "ring J3": AGAIN,
    "ring J3_LOOK": AGAIN,
    "ring J4": "FRAMES=5 READERS=1 JOINS=1",
    "ring N0": LATEST,
    "ring HALF": LATEST,
    "ring J5_LOOK": LATEST,
    "ring LEAVE": "FRAMES=5 READERS=1 JOINS=1 LEAVES",
    "ring C0": "FRAMES=3 READERS=1",
    "ring C1": "FRAMES=3 READERS=1",
    "ring R3": EVICTED,
    "ring A0": EVICTED,
    "ring L1+G0": EVICTED,
    "ring EVICTED": "FRAMES=6 READERS=1 JOINS=2 EVICTIONS=2",
    "ring TURN": "FRAMES=6 READERS=1 JOINS=2 LEAVES EVICTIONS=1",
    "event E2": "ROUNDS=2",
    "event E5": "ROUNDS=2",
    "event E7": "ROUNDS=2",
    "event E8": "ROUNDS=2 SLEEPERS=2 TIMEOUTS=1",
    "event E9": "ROUNDS=2 UNFENCED",
    "event STANDS": "ROUNDS=2 UNFENCED",
    "event NUDGE": "ROUNDS=1 CANCEL",
    "newest N1": "FRAMES=4",
    "newest N2": "FRAMES=4",
    "newest N4": "FRAMES=4",
    "newest N5": "FRAMES=4",
    "newest N7": "FRAMES=4",
    "newest N8": "FRAMES=4",
    "tap L0": "FRAMES=6",
    "tap L1": "FRAMES=6",
    "tap T1": "FRAMES=6",
    "tap T2": "FRAMES=6",
    "tap T3": "FRAMES=6",
    "spill W2": "FRAMES=3",
    "spill S0": "FRAMES=3 TAP",
    "spill S1": "FRAMES=3 TAP",
    "spill T5": "FRAMES=3 TAP",
    "spill A0": "FRAMES=3 EVICT",
    "spill LOOK": "FRAMES=3 LATEST",
    "spill S1+G0": "FRAMES=3 EVICT",
    "device Q3": "FRAMES=4",
    "device U2": "FRAMES=4",
    "device U4": "FRAMES=4",
    "device GENERATION": "FRAMES=4",
    "device ACK": "FRAMES=4",
    "device READY": "FRAMES=4 STREAMS=2",
    "device D1": "FRAMES=4",
    "device D2": "FRAMES=4",
    "device O4": "FRAMES=4",
    "device JOINING": "FRAMES=4",
    "device LOOK": "FRAMES=3 LIVES=2",
    "device TURN": "FRAMES=3 LIVES=2",
    "device CLOSE": "FRAMES=3 LIVES=2",
    "device X1": "FRAMES=3 KILL_WRITER",
}
SPARE = {
    "ring L1": EVICTED,
    "spill S1": "FRAMES=3 EVICT",
    "event E1+E6": "ROUNDS=2 SIGNALLERS=2 WANTED",
}


def controls(deep):
    """A name for each size that only mutations are run at."""
    known = {(name.split()[0], sizes[deep]) for name, sizes in MODELS.items()}
    found = {}
    for name, flags in MUTATIONS.items():
        model = name.split()[0]
        if (model, flags) not in known:
            known.add((model, flags))
            found[f"{model} for-{name.split()[1]}"] = flags
    return found


def compiler(deep):
    """Most are searched in less time than they are compiled in, and clang compiles them in half of
    gcc's."""
    return ["cc", "-O2"] if deep else ["clang" if shutil.which("clang") else "cc", "-O0"]


class Run:
    """One model with its flags, made and searched."""

    def __init__(self, kind, name, flags, deep=False):
        self.kind, self.name, self.deep = kind, name, deep
        self.model, what = name.split()
        self.flags = flags.split()
        if kind in ("mutation", "spare"):
            self.flags += [f"WEAK_{edge}" for edge in what.split("+")]
        self.folder = WORK / f"{kind}-{name.replace(' ', '-')}"
        self.report, self.wrong = "", ""

    def search(self):
        """Prints one line. False: it is not as it must be."""
        began = time.monotonic()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        source = os.path.relpath(HERE / f"{self.model}.pml", self.folder)
        said = (
            self.call("spin", "-a", *[f"-D{flag}" for flag in self.flags], source)
            or self.call(
                *compiler(self.deep), "-w", "-DSAFETY", "-DMEMLIM=8000", "-o", "pan", "pan.c"
            )
            or self.call(
                "./pan", "-m20000", "-w18" if self.kind == "mutation" else "-w24", report=True
            )
        )
        self.judge(said)
        print(
            f"{self.kind:<9} {self.name:<18} {self.outcome():<72} {time.monotonic() - began:5.1f} "
            f"s",
            flush=True,
        )
        if self.wrong and not said:
            print("\n".join("    " + line for line in self.report.splitlines()[-14:]), flush=True)
        return not self.wrong

    def call(self, *command, report=False):
        """Runs it. What went wrong, in words; nothing if nothing."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if report:
            self.report = done.stdout
        elif done.returncode != 0:
            return f"{command[0]} failed: {done.stdout.strip()[-600:]}"
        return ""

    def number(self, pattern):
        found = re.search(pattern, self.report)
        return int(found[1]) if found else None

    def found(self):
        """What Spin found to be wrong, or None."""
        line = re.search(r"^pan:1: (.*?) \(at depth", self.report, re.M)
        if not line:
            return None
        name = re.search(r"!\s*\(?(\w+)\)?$", line[1])
        if line[1].startswith("assertion violated") and name:
            return name[1].replace("_", " ")
        return "a wait that never ends" if line[1] == "invalid end state" else line[1]

    def judge(self, said):
        found, errors = self.found(), self.number(r"errors: (\d+)")
        # Out of memory, out of depth, or killed: all of these say so, or leave the count of errors
        # out.
        partial = (
            "Search not completed" in self.report
            or "search depth too small" in self.report
            or errors is None
        )
        if said:
            self.wrong = said
        elif self.kind == "mutation":
            known = found and (
                found == "a wait that never ends" or not found.startswith("assertion violated")
            )
            self.wrong = "" if known else f"NOT CAUGHT: {found}" if found else "NOT CAUGHT"
        elif found or errors:
            self.wrong = f"ERROR: {found}"
        elif partial:
            self.wrong = "NOT EXHAUSTED"

    def outcome(self):
        if self.wrong:
            return self.wrong
        if self.kind == "mutation":
            return f"caught: {self.found()}"
        states, steps = self.number(r"(\d+) states, stored"), self.number(r"(\d+) transitions")
        depth = self.number(r"depth reached (\d+)")
        return f"no error: {states} states, {steps} transitions, depth {depth}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    for tool, package in (("spin", "spin"), ("cc", "gcc")):
        if not shutil.which(tool):
            print(f"SKIPPED model: {tool} is not installed (Debian: {package})")
            return 77
    runs = [Run("model", name, sizes[options.deep], options.deep) for name, sizes in MODELS.items()]
    runs += [Run("mutation", name, flags) for name, flags in MUTATIONS.items()]
    runs += [Run("control", name, flags) for name, flags in controls(options.deep).items()]
    runs += [Run("spare", name, flags) for name, flags in SPARE.items()]
    runs = [run for run in runs if options.only in f"{run.kind} {run.name}"]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        well = list(pool.map(Run.search, runs))
    states = sum(run.number(r"(\d+) states, stored") or 0 for run in runs if run.kind == "model")
    caught = sum(good for run, good in zip(runs, well) if run.kind == "mutation")
    mutations = sum(run.kind == "mutation" for run in runs)
    print(
        f"{sum(run.kind == 'model' for run in runs)} models, {states} states; {caught} of "
        f"{mutations} mutations "
        f"caught; {well.count(False)} failed; {time.monotonic() - began:.0f} s"
    )
    return 1 if not well or False in well else 0


sys.exit(main())
