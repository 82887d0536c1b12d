# SPDX-License-Identifier: Apache-2.0
"""
Runs a group: the member processes, until all steps are done, a member has failed, or a step takes
too long.

The result of a step that fails, hangs or crashes is the reason; the group is started anew for the
later steps.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Set

from adapters import find
from board import Board

MEMBER = Path(__file__).resolve().with_name("member.py")
# The members make the same sets, in the same order, as the pickles are compared.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
POLL = 0.02  # seconds
CLEANUP = 10.0  # seconds for the members to leave
FAILURES = 3  # afterwards the rest of the steps is given up
SETUP = 10.0  # seconds for a member to make the values of a step, while the rest does so too
ENGINE = 10.0  # seconds more for each member with values of an engine's classes, which it imports
LEFT = ("ecal_*", "psm_*", "sem.*", "vader_segment*", "iox2_*")  # in /dev/shm


class Result(NamedTuple):
    """Of one step: the members' lines, or the reason why there are no lines."""

    status: str  # "ok", or the reason
    members: List[Dict[str, Any]]


class Outcome(NamedTuple):
    version: str
    left_out: str  # why the way can't be used here at all; "": the way can
    results: List[Result]  # one for each step


class Group:
    """The processes of one start of a group."""

    def __init__(self, spec: Dict[str, Any], first: int) -> None:
        self.spec, self.first, self.processes = spec, first, spec["processes"]
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="peers-", dir=shared))
        (self.folder / "group.json").write_text(json.dumps({**spec, "first": first}))
        (self.folder / "board").write_bytes(bytes(Board.bytes(self.processes)))
        self.started: List[subprocess.Popen[bytes]] = []
        self.files = [self.folder / f"member-{rank}.jsonl" for rank in range(self.processes)]
        self.told: List[List[Dict[str, Any]]] = [[] for _ in self.files]  # the members' lines
        self.rest = [b""] * self.processes  # of a line that is not yet whole
        self.read = [0] * self.processes  # bytes
        self.before = left_there()

    def start(self) -> None:
        command = [sys.executable, str(MEMBER), str(self.folder)]
        launcher = find(self.spec["way"]).launcher(self.processes)
        environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(self.folder)}
        for rank in range(1 if launcher else self.processes):
            own = environment if launcher else {**environment, "PEERS_RANK": str(rank)}
            with open(self.folder / f"log-{rank}", "wb") as log:
                process = subprocess.Popen(
                    launcher + command,
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.started.append(process)

    def look(self) -> bool:
        """Take what the members have written since; whether there was anything."""
        changed = False
        for rank, path in enumerate(self.files):
            if not path.exists() or path.stat().st_size == self.read[rank]:
                continue
            with open(path, "rb") as file:
                file.seek(self.read[rank])
                text = file.read()
            self.read[rank] += len(text)
            *lines, self.rest[rank] = (self.rest[rank] + text).split(b"\n")
            self.told[rank] += map(json.loads, lines)
            changed = True
        return changed

    def end(self) -> None:
        """End the rest of the processes, by the sessions, which the group has started; remove what
        they left."""
        for how, seconds in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
            for process in self.started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
            end = time.monotonic() + seconds
            for process in self.started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.05, end - time.monotonic()))
        shutil.rmtree(self.folder, ignore_errors=True)
        remove(left_there() - self.before)

    def died(self) -> str:
        """Why a process has ended too soon; "" if all go on."""
        for rank, process in enumerate(self.started):
            code = process.poll()
            if code in (None, 0):
                continue
            log = (self.folder / f"log-{rank}").read_text(errors="replace").strip().splitlines()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
            return f"a process ended with {how}" + (f": {log[-1].strip()[:200]}" if log else "")
        return ""

    def lines_of(self, index: int) -> List[Dict[str, Any]]:
        """The members' lines of a step; [] unless each member has written one."""
        found = [line for lines in self.told for line in lines if line.get("step") == index]
        return found if len(found) == self.processes else []

    def at_work(self) -> Optional[int]:
        """The step of the slowest member; None: not all are connected."""
        if not all(self.told):
            return None
        done = min(max((line.get("step", -1) for line in lines), default=-1) for lines in self.told)
        return 0 if done < 0 else max(self.first, done + 1)

    def watch(self, limits: List[float], seconds: float) -> str:
        """Wait until the members have done all steps, or an error: the reason, or ""."""
        step, since = None, time.monotonic()
        while True:
            time.sleep(POLL)
            dead = self.died()
            if self.look():
                errors = [line for lines in self.told for line in lines if "error" in line]
                if errors:
                    return str(min(errors, key=lambda line: line["at"])["error"])
                if all(lines and lines[-1].get("end") is True for lines in self.told):
                    return ""
                step, since = self.at_work(), time.monotonic()
            if dead:
                return dead
            limit = seconds if step is None else limits[min(step, len(limits) - 1)]
            if time.monotonic() - since > limit:
                what = "not connected" if step is None else "no end"
                return f"{what} after {limit:.0f} s"

    def leave(self) -> None:
        """Give the members time to end without a signal."""
        end = time.monotonic() + CLEANUP
        while time.monotonic() < end and any(process.poll() is None for process in self.started):
            time.sleep(POLL)


# ---- What is left in shared memory ---------------------------------------------------------------


def left_there() -> Set[Path]:
    """The files of the peers' patterns, of this user."""
    found = (path for name in LEFT for path in Path("/dev/shm").glob(name))
    return {path for path in found if path.exists() and path.stat().st_uid == os.getuid()}


def remove(paths: Set[Path]) -> None:
    """
    Unless a living process has one open or mapped: a further run beside this one keeps its files.
    """
    used: Set[str] = set()
    for process in Path("/proc").glob("[0-9]*") if paths else ():
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text(errors="replace").splitlines()
            used.update("/" + line.partition("/")[2] for line in maps)
            used.update(os.readlink(link) for link in (process / "fd").iterdir())
    # Some of them are in use, but not mapped.
    if any(name.startswith("/dev/shm/iox2_") for name in used):
        paths = {path for path in paths if not path.name.startswith("iox2_")}
    for path in paths:
        if str(path) not in used:
            path.unlink(missing_ok=True)


# ---- A group -------------------------------------------------------------------------------------


def limit_of(step: Dict[str, Any], processes: int) -> float:
    """Seconds for a step."""
    engine = ENGINE * processes if step["payload"].startswith("scheduler-") else 0
    return float(step["seconds"] + SETUP + engine)


def run_once(spec: Dict[str, Any], first: int) -> "tuple[str, Group]":
    """One start of the group, from a step on: the reason of the end, and what the members told."""
    group = Group(spec, first)
    try:
        group.start()
        limits = [limit_of(step, spec["processes"]) for step in spec["steps"]]
        why = group.watch(limits, spec["limit"])
        if not why:
            group.leave()
    except OSError as error:
        why = f"the group can't be started: {error}"
    finally:
        group.end()
    return why, group


def run_group(spec: Dict[str, Any]) -> Outcome:
    """`spec`: way, processes, largest, steps, vllm, sglang, spin, limit; see plan.py."""
    count = len(spec["steps"])
    results: List[Result] = []
    version = why = ""
    for attempt in range(FAILURES):
        why, group = run_once(spec, len(results))
        lines = [line for of in group.told for line in of]
        versions = [line["version"] for line in lines if "version" in line]
        left_out = any(line.get("left_out") for line in lines)
        if left_out or (not version and len(versions) < spec["processes"]):
            return Outcome("", why or "a process ended before it was connected", [])
        version = version or versions[0]
        for index in range(len(results), count):
            members = group.lines_of(index)
            results.append(Result("ok" if members else why, members))
            if not members:
                break
        if len(results) == count:
            break
    given_up = Result(f"given up after {FAILURES} failures, the last one: {why}", [])
    return Outcome(version, "", results + [given_up] * (count - len(results)))
