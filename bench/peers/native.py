# SPDX-License-Identifier: Apache-2.0
"""
The ways of C: their plan, and the rows of the program peers_native, which runs one step at a time.

On a virtual machine the host moves the CPUs: near each other for some seconds, then far, and a line
of far CPUs costs many times as much. The program says what a bare line cost before and after the
step; a step in which the line was far is repeated a few times, so that the figures are of near
CPUs, if the machine has near moments.
"""

import json
import os
import random
import signal
import subprocess
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from figures import Row, blank

KI, MI = 1 << 10, 1 << 20
NEAR = 1.6  # times the least line that was seen
ATTEMPTS = 4  # of a step
LIMIT = 60  # seconds of a step without pauses
ROUNDS = 10  # of the headline
SMALL = 16 * KI  # bytes; slow ways send fewer of such messages
SLOW = {
    "c-zmq-push": 8,
    "c-unix-socket": 4,
    "c-unix-socket-polled": 4,
    "c-pipe": 4,
}  # so many times fewer
GROUPS = [
    "c-ringcast",
    "c-unix-socket",
    "c-zmq-push",
    "c-openmpi-bcast",
    "c-mpich-bcast",
    "c-in-place",
]
IDLE = ["c-ringcast-default", "c-unix-socket", "c-pipe", "c-zmq-push", "c-cache-line"]


class Step(NamedTuple):
    scenario: str
    bytes: int
    processes: int = 2
    quick: bool = False  # also in the quick plan


SIZES = [64, KI, 4 * KI, 64 * KI, MI, 4 * MI, 64 * MI]
QUICK = (64, 64 * KI, 4 * MI)
STEPS = [
    *(Step("one-way", size, 2, size in QUICK) for size in SIZES),
    *(Step("stream", size, 2, size in QUICK) for size in SIZES if size <= 4 * MI),
    *(Step("in-place", size, 2, size in QUICK) for size in SIZES),
    Step("every25", 64, 2, True),
    *(Step("one-way", size, count) for count in (4, 8) for size in (64, 64 * KI)),
    Step("idle", 64),
]
HEADLINE = Step("round-trip", 64, 2, True)


def takes(way: Row, step: Step) -> bool:
    """Whether the way is meant for the step at all."""
    crossing = not way["in_process"]
    wanted = {
        "in-place": not way["copying"],
        "stream": not way["no_queue"],
        "every25": crossing and (not way["floor"] or way["no_queue"]),
        "idle": way["peer"] in IDLE,
        "round-trip": not way["floor"] or way["no_queue"],
    }
    if step.processes > 2 and way["peer"] not in GROUPS:
        return False
    if way["largest"] and step.bytes > way["largest"]:
        return False
    if (
        step.scenario == "in-place"
        and way["largest_in_place"]
        and step.bytes > way["largest_in_place"]
    ):
        return False
    return bool(wanted.get(step.scenario, True))


def count_of(way: str, step: Step, quick: bool) -> Tuple[int, int]:
    """Messages: measured, and of the warm-up. A run of a fast way takes a fraction of a second."""
    streams = step.scenario == "stream"
    fixed = {"idle": (2, 0), "every25": (32 if quick else 80, 4)}
    if step.scenario in fixed:
        return fixed[step.scenario]
    if step.scenario == "round-trip":
        return 20000 // SLOW.get(way, 1), 200
    most = [(64, 2000000, 20000), (4 * KI, 1000000, 20000), (64 * KI, 20000, 5000), (MI, 1000, 500)]
    most += [(4 * MI, 300, 150), (64 * MI, 12, 12)]
    count = next(one[1] if streams else one[2] for one in most if step.bytes <= one[0])
    if step.scenario == "in-place":
        count = 2000
    slow = SLOW.get(way, 1) if step.bytes <= SMALL else 1
    count = max(8, count // slow // (4 if quick else 1) // (10 if step.processes > 2 else 1))
    return count, count // 10 + 2


class Native:
    """The program, and the least line that it has seen."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.least = float("inf")
        text = subprocess.run(
            [program, "--list"], capture_output=True, text=True, check=True
        ).stdout
        self.ways: List[Row] = [json.loads(line) for line in text.splitlines()]

    def jobs(self, quick: bool, only: List[str]) -> Iterator[Tuple[str, Callable[[], List[Row]]]]:
        """Each step by all ways, in a random order: in a fixed order, a way would always follow the
        same way, with the caches and CPUs as that way left them."""
        ways = [way for way in self.ways if not only or way["peer"] in only]
        steps = [(step, None) for step in STEPS if step.quick or not quick]
        rounds = [(HEADLINE, number) for number in range(1, ROUNDS + 1)]
        for step, number in steps + rounds:
            fit = [way for way in ways if way["status"] == "ok" and takes(way, step)]
            for way in random.sample(fit, len(fit)):
                what = f"{way['peer']}, {step.scenario}, {step.bytes} B"
                yield what, partial(self.rows, way, step, quick, number)
        missing = [way for way in ways if way["status"] != "ok"]
        yield (
            "the ways that are not built",
            lambda: [self.blank(way, "all", "all") for way in missing],
        )

    def blank(self, way: Row, payload: str, scenario: str) -> Row:
        facts = {name: way[name] for name in ("peer", "family", "status", "collective", "floor")}
        return blank(
            **facts, payload=payload, scenario=scenario, language="c", processes=2, reading="bytes",
            serialiser="none", copying=way["copying"], in_process=way["in_process"],
            note=way["note"], rounds=1, oversubscribed=False,
        )  # fmt: skip

    def rows(self, way: Row, step: Step, quick: bool, number: Optional[int]) -> List[Row]:
        row = self.blank(way, payload_name(step.bytes), step.scenario)
        if way["largest_in_place"] and step.bytes > way["largest_in_place"]:
            row["copying"] = True
        row.update(bytes=step.bytes, processes=step.processes)
        row["oversubscribed"] = step.processes > len(os.sched_getaffinity(0))
        row["reading"] = "in-place" if step.scenario == "in-place" else "bytes"
        for _ in range(ATTEMPTS):
            found = self.run(way["peer"], step, quick)
            line = max(found.get("line_ns") or 0, found.get("line_after_ns") or 0)
            self.least = min(self.least, found.get("line_ns") or self.least)
            if line <= NEAR * self.least or step.scenario == "idle":
                break
        return [{**row, **found, "round": number}]

    def run(self, way: str, step: Step, quick: bool) -> Dict[str, Any]:
        count, warm_up = count_of(way, step, quick)
        words = [
            self.program,
            way,
            step.scenario,
            *map(str, (step.bytes, step.processes, count, warm_up)),
        ]
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            text = process.communicate(timeout=LIMIT)[0]
            found: Dict[str, Any] = json.loads(text)
            return found
        except subprocess.TimeoutExpired:
            return {"status": f"no end after {LIMIT} s"}
        except ValueError:
            return {"status": f"ended with status {process.returncode}"}
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def payload_name(size: int) -> str:
    for unit, shift in (("Mi", 20), ("Ki", 10)):
        if size >= 1 << shift:
            return f"bytes-{size >> shift}{unit}"
    return f"bytes-{size}"
