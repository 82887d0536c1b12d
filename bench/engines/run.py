#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs whole engines as they are and with ringcast in turns, compares, and writes
build/engines/results.json.

run.py [--engine NAME] [--quick] [--rounds N] [--only PART]...

Exit status 0: each engine gives the same tokens both ways, notices what happens to its ranks, and
leaves nothing behind. Times and shares of a CPU are told, and judge nothing: a busy machine has
others.
"""

import argparse
import contextlib
import dataclasses
import json
import multiprocessing.connection
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
import uuid

import registry
import report
import usage

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "engines"
RESULTS = BUILD / "results.json"
SECONDS = 900 + int(os.environ.get("SOAK_SECONDS", "600"))  # of a session, at most
LOOK = 5  # every so many seconds run.py looks at the segments that the sessions map
ENDS = 30  # within so many seconds after a session all of its processes are gone

CASES = dict.fromkeys(["1 request", "8 requests", "64 requests", "pauses of 1.5 s"], 10)
CASES |= dict.fromkeys(["pauses of 0.5 s", "stopped for 3 s", "stopped for 3 s while idle"], 2)


@dataclasses.dataclass
class Part:
    """
    A script that appends rows to a file; the cases are those of session.py. rounds: in all, or by
    case.
    """

    script: str = "session.py"
    cases: tuple = ()
    rounds: int | dict = 2
    ways: tuple = tuple(registry.WAYS)
    asked: bool = False  # runs only by name
    # an engine of each way lives all the time, and only one of them at a time is not stopped
    together: bool = False


PARTS = {
    "cases": Part(cases=list(CASES), rounds=CASES, together=True),
    "killed": Part(cases=["killed"]),
    "soak": Part(cases=["soak"], rounds=1, ways=("ringcast",), asked=True),
}
QUICK = ["cases"]


def parts_of(name):
    """Those of every engine, but for WITHOUT, and the engine's own."""
    engine = registry.engine(name)
    common = {part: spec for part, spec in PARTS.items() if part not in engine.WITHOUT}
    return {**common, **{part: Part(script) for part, script in engine.SCRIPTS.items()}}


def say(text):
    print(f"engines: {text}", flush=True)


def python(name):
    return BUILD / name / "bin" / "python"


class Run:
    """A program in an engine's Python, with a mark in the environment of all that it starts."""

    def __init__(self, name, way, log, script, *arguments, stdin=subprocess.DEVNULL):
        self.name, self.way, self.mark = name, way, uuid.uuid4().hex
        self.segments = set()  # in /dev/shm, seen to be mapped by a process of the run
        self.ended = self.gone = (
            None  # when the program ended, and when the last process of the run was gone
        )
        self.log = (BUILD / "logs" / f"{name}-{way}-{log}.log").relative_to(ROOT)
        environment = {**registry.environment(name, way), usage.MARK: self.mark}
        with open(ROOT / self.log, "w") as file:
            command = [python(name), HERE / script, *arguments]
            streams = {"stdin": stdin, "stdout": file, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(
                command, env=environment, start_new_session=True, cwd=BUILD, **streams
            )
        self.descriptor = os.pidfd_open(self.process.pid)

    def look(self):
        """
        Whether there is nothing more to wait for; notes the segments, and the end of processes.
        """
        ended, alive = self.process.poll() is not None, usage.marked(self.mark)
        self.segments |= usage.mapped(alive)
        now = time.monotonic()
        if ended and self.ended is None:
            self.ended = now
        if self.ended is not None and not alive and self.gone is None:
            self.gone = now
        return self.gone is not None or self.ended is not None and now >= self.ended + ENDS

    def end(self):
        """The row of the case "end", after wait_for(): nothing is left behind."""
        status = self.process.poll()
        if status is None:
            status = f"still runs after {SECONDS} s"
        names = [usage.name(pid) for pid in usage.marked(self.mark)]
        took = 0 if self.ended is None else (self.gone or time.monotonic()) - self.ended
        self.kill()
        left, known = self.segments_left()
        wrong = [f"exit status {status}, see {self.log}"] if status else []
        wrong += [f"left processes: {', '.join(names)}"] if names else []
        wrong += [f"left in /dev/shm: {', '.join(left)}"] if left else []
        return {
            "case": "end",
            "p50_ms": round(1000 * took),
            "ok": not wrong,
            "note": "; ".join(wrong + known) or None,
        }

    def send(self, number):
        """A signal to each process of the run."""
        for pid in usage.marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self):
        """Stops the processes of the run, and waits until they are: a signal takes effect after
        kill(2) returns."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not all(map(usage.is_stopped, usage.marked(self.mark))):
            self.send(signal.SIGSTOP)
            time.sleep(LOOK / 1000)

    def kill(self):
        """Ends the processes of the run."""
        self.send(signal.SIGKILL)
        self.process.wait()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def segments_left(self):
        """
        The names left in /dev/shm, and a remark about the names that the engine always leaves.
        """
        left = usage.unused(self.segments)
        known = [
            name
            for name in left
            if re.fullmatch(registry.engine(self.name).SEGMENTS[self.way], name)
        ]
        for name in known:
            pathlib.Path("/dev/shm", name).unlink(missing_ok=True)
        remark = (
            [f"{len(known)} segments in /dev/shm, which {self.name} always leaves"] if known else []
        )
        return [name for name in left if name not in known], remark


def wait_for(run):
    """
    Until it is over, or for SECONDS. Looks at it from time to time, and as soon as the program has
    ended.
    """
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not run.look():
        running = [run.descriptor] if run.ended is None else []
        multiprocessing.connection.wait(running, LOOK if running else 0.1)


def read_rows(file, run):
    """The rows that a script has told, without the segments, which the run notes."""
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for row in found:
        run.segments |= set(row.pop("segments"))
    return found


def begin(name, way, part, cases, quick, **streams):
    """Starts the script of a part with these cases: (the file of its rows, the run)."""
    file = BUILD / "logs" / f"{name}-{way}-{part}.rows"
    file.unlink(missing_ok=True)
    arguments = [name, way, BUILD / "model", file, *cases, *(["--quick"] if quick else [])]
    return file, Run(name, way, part, parts_of(name)[part].script, *arguments, **streams)


def rows_of(name, way, part, quick):
    """Runs a part of an engine one way: its rows."""
    spec = parts_of(name)[part]
    file, run = begin(name, way, part, spec.cases, quick)
    try:
        wait_for(run)
        rows = read_rows(file, run)
        end = run.end()
    finally:
        run.kill()
    missing = [case for case in spec.cases if case not in {row["case"] for row in rows}]
    rows += [{"case": case, "ok": False, "note": f"did not end, see {run.log}"} for case in missing]
    for row in [*rows, end]:
        yield row if row["case"] == part else {**row, "case": f"{part}: {row['case']}"}


class Alive:
    """An engine that is stopped while it is not asked for a case."""

    def __init__(self, name, way, part, quick):
        self.file, self.run = begin(name, way, part, ["-"], quick, stdin=subprocess.PIPE)
        self.told = 0

    def rows(self, count):
        """
        The next rows, so many; fewer if the engine ends before, or tells none for SECONDS. Then it
        is stopped.
        """
        end = time.monotonic() + SECONDS
        while True:
            ended = self.run.process.poll() is not None or time.monotonic() > end
            found = read_rows(self.file, self.run)[self.told :]
            if len(found) >= count or ended:
                break
            time.sleep(LOOK / 100)
        self.told += len(found)
        self.run.stop()
        return found

    def ask(self, case):
        """The row of a case."""
        self.run.send(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self.run.process.stdin.write(f"{case}\n".encode())
            self.run.process.stdin.flush()
        return self.rows(1) or [
            {"case": case, "ok": False, "note": f"did not end, see {self.run.log}"}
        ]

    def end(self):
        """The rows after the last case."""
        self.run.send(signal.SIGCONT)
        self.run.process.stdin.close()
        wait_for(self.run)
        return [*read_rows(self.file, self.run)[self.told :], self.run.end()]


def order(ways, number):
    """The ways of a round: the way that was last in the round before goes first."""
    return ways[:: -1 if number % 2 else 1]


def together(name, part, rounds, quick):
    """The rows of a part with engines that live at the same time: (way, round, row). Both ways of a
    case follow each other at once, so that what else the machine does meets both alike."""
    spec = parts_of(name)[part]
    engines = {}
    try:
        for way in spec.ways:
            engines[way] = Alive(name, way, part, quick)
            yield from ((way, 0, row) for row in engines[way].rows(1))
        for number in range(rounds or max(spec.rounds.values())):
            for case in [case for case in spec.cases if number < (rounds or spec.rounds[case])]:
                for way in order(spec.ways, number):
                    yield from ((way, number, row) for row in engines[way].ask(case))
        for way, engine in engines.items():
            yield from ((way, 0, row) for row in engine.end())
    finally:
        for engine in engines.values():
            engine.run.kill()


def is_wanted(part, spec, only, quick):
    if only:
        return part in only
    return part in QUICK if quick else not spec.asked


def one_by_one(name, part, rounds, quick):
    """The rows of a part that is started anew for each round and way: (way, round, row)."""
    spec = parts_of(name)[part]
    for number in range(rounds or spec.rounds):
        for way in order(spec.ways, number):
            say(f"{name}, {way}, {part}, round {number + 1} of {rounds or spec.rounds}")
            yield from ((way, number, row) for row in rows_of(name, way, part, quick))


def turns(chosen, rounds, quick):
    """Each engine's ways in turns, for each (engine, part)."""
    found = []
    for name, part in chosen:
        run_part = together if parts_of(name)[part].together else one_by_one
        for way, number, row in run_part(name, part, rounds or (1 if quick else None), quick):
            found.append({"engine": name, "way": way, "round": number, **row})
            say(f"{way}, {report.line(found[-1])}")
    return found


# ---- What the rounds say together ----------------------------------------------------------------

FIGURES = ["p50_ms", "p99_ms", "tokens_per_s", "cpu_percent", "idle_percent"]
PARTS_OF_A_STEP = ["to_us", "from_us", "rank_ms"]  # what inside_vllm.py also tells


def medians(rounds):
    """
    One row for each (engine, way, case): medians of the rounds; ok if all rows were, and all tokens
    are the same.
    """
    rows = []
    cases = list(dict.fromkeys((row["engine"], row["case"]) for row in rounds))
    for name, case in cases:
        same = [row for row in rounds if (row["engine"], row["case"]) == (name, case)]
        hashes = {row.get("token_hash") for row in same}
        for way in registry.WAYS:
            mine = [row for row in same if row["way"] == way]
            if not mine:
                continue
            values = {
                key: [row[key] for row in mine if row.get(key) is not None]
                for key in FIGURES + PARTS_OF_A_STEP
            }
            notes = sorted({row["note"] for row in mine if row.get("note")})
            if len(hashes) > 1:
                notes.append(f"tokens differ: {sorted(map(str, hashes))}")
            rows.append(
                {
                    "engine": name,
                    "version": registry.engine(name).VERSION,
                    "way": way,
                    "case": case,
                    **{
                        key: round(statistics.median(found), 3) if found else None
                        for key, found in values.items()
                    },
                    "token_hash": mine[-1].get("token_hash"),
                    "ok": all(row["ok"] for row in mine) and len(hashes) == 1,
                    "by_process": mine[-1].get("by_process"),
                    "note": "; ".join(notes) or None,
                }
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--engine", action="append", choices=registry.NAMES, help="default: all")
    every = list(dict.fromkeys(part for name in registry.NAMES for part in parts_of(name)))
    parser.add_argument(
        "--only", action="append", choices=every, metavar="PART", help=f"of {', '.join(every)}"
    )
    parser.add_argument(
        "--rounds", type=int, help="how often both ways run (each part its own; 1 with --quick)"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"once, with fewer tokens, and only {', '.join(QUICK)}"
    )
    arguments = parser.parse_args()
    names = arguments.engine or registry.NAMES
    # So that the runs are ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    (BUILD / "logs").mkdir(parents=True, exist_ok=True)
    chosen = [
        (name, part)
        for name in names
        for part, spec in parts_of(name).items()
        if is_wanted(part, spec, arguments.only, arguments.quick)
    ]
    machine = report.machine()  # before the runs, which are a load themselves
    rounds = turns(chosen, arguments.rounds, arguments.quick)
    rows = medians(rounds)
    results = {"machine": machine, "quick": arguments.quick, "rows": rows, "rounds": rounds}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(report.text(rows), *report.verdicts(results), sep="\n")
    failed = [row for row in rows if not row["ok"]]
    for row in failed:
        say(f"FAILED: {row['engine']}, {row['way']}, {row['case']}: {row['note']}")
    say(f"{RESULTS.relative_to(ROOT)}: {len(rows)} rows, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
