# SPDX-License-Identifier: Apache-2.0
"""Runs a group: the member processes, until all steps are done, a member has failed, or a step takes too long.

The result of a step that fails, hangs or crashes is the reason; the group is started anew for the later steps.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import leftovers
from adapters import find
from board import Board

MEMBER = Path(__file__).resolve().with_name("member.py")
# The members make the same sets, in the same order, as the pickles are compared.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
POLL = 0.01  # seconds
STEP = re.compile(rb'{"step": (\d+)')  # the beginning of a step's line
HEAD = 24  # bytes of a line that tell which line it is
CLEANUP = 10.0  # seconds for the members to leave
FAILURES = 3  # afterwards the rest of the steps is given up
SETUP = 10.0  # seconds for a member to make the values of a step, while the rest of the group does so too
ENGINE = 10.0  # seconds more for each member with values of an engine's classes: importing vLLM takes 6 s of CPU


class Result(NamedTuple):
    """Of one step: the members' lines, or the reason why there are no lines."""

    status: str  # "ok", or the reason
    members: List[Dict[str, Any]]


class Outcome(NamedTuple):
    version: str
    left_out: str  # why the way can't be used here at all; "": the way can
    results: List[Result]  # one for each step
    left: Tuple[int, int] = (0, 0)  # files and bytes left behind, where the group has ended by itself


class Group:
    """The processes of one start of a group."""

    def __init__(self, spec: Dict[str, Any], first: int) -> None:
        self.spec, self.first, self.processes = spec, first, spec["processes"]
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="peers-", dir=shared))
        (self.folder / "group.json").write_text(json.dumps({**spec, "first": first}))
        (self.folder / "board").write_bytes(bytes(Board.bytes(self.processes)))
        self.started: List[subprocess.Popen[bytes]] = []
        self.before, self.left = leftovers.there(), (0, 0)
        self.seen = [0] * self.processes  # bytes of whole lines, of each member
        self.heads: List[List[bytes]] = [[] for _ in self.seen]  # the beginnings of the whole lines

    def start(self) -> None:
        command = [sys.executable, str(MEMBER), str(self.folder)]
        launcher = find(self.spec["way"], self.spec["where"]).launcher(self.processes)
        environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(self.folder)}
        for rank in range(1 if launcher else self.processes):
            own = environment if launcher else {**environment, "PEERS_RANK": str(rank)}
            with open(self.folder / f"log-{rank}", "wb") as log:
                self.started.append(
                    subprocess.Popen(
                        launcher + command,
                        env=own,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )

    def told(self) -> List[List[Dict[str, Any]]]:
        """The whole lines of each member. Parsing takes a while: only for a group that has ended."""
        lines = []
        for rank in range(self.processes):
            path = self.folder / f"member-{rank}.jsonl"
            text = path.read_text() if path.exists() else ""
            lines.append([json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()])
        return lines

    def look(self) -> None:
        """Add to the heads. The members are measuring: only new bytes are read, and no line is parsed."""
        for rank, size in enumerate(self.sizes()):
            if size > self.seen[rank]:
                with open(self.folder / f"member-{rank}.jsonl", "rb") as file:
                    file.seek(self.seen[rank])
                    text = file.read()
                whole = text[: text.rfind(b"\n") + 1]
                self.seen[rank] += len(whole)
                self.heads[rank] += [line[:HEAD] for line in whole.splitlines()]

    def sizes(self) -> List[int]:
        paths = [self.folder / f"member-{rank}.jsonl" for rank in range(self.processes)]
        return [path.stat().st_size if path.exists() else 0 for path in paths]

    def end(self) -> None:
        """End the rest of the processes, by the sessions, which the group has started; remove what they left."""
        for how, seconds in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
            for process in self.started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
            end = time.monotonic() + seconds
            for process in self.started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.05, end - time.monotonic()))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.left = leftovers.remove(self.before)

    def died(self) -> str:
        """Why a process has ended too soon; "" if all go on."""
        for rank, process in enumerate(self.started):
            code = process.poll()
            if code not in (None, 0):
                log = (self.folder / f"log-{rank}").read_text(errors="replace").strip().splitlines()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
                return f"a process ended with {how}" + (f": {log[-1].strip()[:200]}" if log else "")
        return ""


def complete(told: List[List[Dict[str, Any]]], index: int) -> List[Dict[str, Any]]:
    """The members' lines of a step; [] unless each member has written a line."""
    found = [line for lines in told for line in lines if line.get("step") == index]
    return found if len(found) == len(told) else []


def watch(group: Group, limits: List[float], seconds: float) -> str:
    """Wait until the members have done all steps, or an error: the reason, or ""."""
    step: Optional[int] = None
    since, sizes = time.monotonic(), [0]
    while True:
        time.sleep(POLL)
        dead = group.died()
        now = group.sizes()
        if now != sizes or dead:
            sizes = now
            group.look()
            if any(head.startswith(b'{"error"') for heads in group.heads for head in heads):
                errors = [line for lines in group.told() for line in lines if "error" in line]
                return str(min(errors, key=lambda line: line["at"])["error"])
            if all(heads and heads[-1].startswith(b'{"end"') for heads in group.heads):
                return ""
            step, since = at_work(group.heads, group.first), time.monotonic()
        if dead:
            return dead
        limit = seconds if step is None else limits[min(step, len(limits) - 1)]
        if time.monotonic() - since > limit:
            what = "not connected" if step is None else "no end"
            return f"{what} after {limit:.0f} s"


def at_work(heads: List[List[bytes]], first: int) -> Optional[int]:
    """The step of the slowest member; None: not all are connected."""
    if not all(heads):
        return None
    steps = [[int(found[1]) for found in map(STEP.match, of) if found] for of in heads]
    return max(first, min(done[-1] for done in steps) + 1) if all(steps) else 0


def leave(group: Group) -> None:
    """Give the members time to end without a signal."""
    end = time.monotonic() + CLEANUP
    while time.monotonic() < end and any(process.poll() is None for process in group.started):
        time.sleep(POLL)


def limit_of(step: Dict[str, Any], processes: int) -> float:
    """Seconds for a step."""
    of_engine = step.get("payload", "").startswith("scheduler-")
    return float(step["seconds"] + 4 * step["idle"] + SETUP + (ENGINE * processes if of_engine else 0))


def once(spec: Dict[str, Any], first: int) -> Tuple[str, List[List[Dict[str, Any]]], Tuple[int, int]]:
    """One start of the group: the reason of the end, the members' lines, and what was left."""
    group = Group(spec, first)
    try:
        group.start()
        limits = [limit_of(step, spec["processes"]) for step in spec["steps"]]
        why = watch(group, limits, spec["limit"])
        if not why:
            leave(group)
        told = group.told()
    except OSError as error:
        why, told = f"the group can't be started: {error}", [[]]
    finally:
        group.end()
    return why, told, group.left if not why else (0, 0)


def run_group(spec: Dict[str, Any]) -> Outcome:
    """`spec`: way, where, processes, largest, steps, vllm, sglang, spin, limit; see plan.py."""
    count = len(spec["steps"])
    results: List[Result] = []
    version, why, left = "", "", (0, 0)
    for attempt in range(FAILURES):
        why, told, left = once(spec, len(results))
        left_out = any(line.get("left_out") for lines in told for line in lines)
        versions = [line["version"] for lines in told for line in lines if "version" in line]
        if left_out or (not version and len(versions) < spec["processes"]):
            return Outcome("", why or "a process ended before it was connected", [])
        version = version or versions[0]
        for index in range(len(results), count):
            members = complete(told, index)
            results.append(Result("ok" if members else why, members))
            if not members:
                break
        if len(results) == count:
            break
    given_up = Result(f"given up after {FAILURES} failures, the last one: {why}", [])
    return Outcome(version, "", results + [given_up] * (count - len(results)), left)
