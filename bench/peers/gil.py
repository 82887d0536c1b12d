# SPDX-License-Identifier: Apache-2.0
"""The share of a write in which a second Python thread of the process can't run, as the call holds the GIL.

    gil.py [--json] [--quick] [--way NAME] [--vllm FOLDER]

The calls are each way's usual calls with objects, with a reader in a second process; "pickle5" is dumps and loads
alone. Half of the calls are made beside a second thread, which only counts, half without, in blocks in turn. First,
while the main thread sleeps, the speed of the counting is taken, by the thread's CPU time. In a call beside the
counting thread, either thread has the GIL at any time, so

    time with the GIL = time of the call - counts / speed
    share = time with the GIL / time of the call without the thread,

each the median of the calls. The main thread waits for the GIL for INTERVAL, not the usual 5 ms, when a call comes
back from a part without the GIL: the wait makes the call longer, but the counting goes on meanwhile, and the difference
stays the same. The difference contains the waking of a thread, some 10 us whenever the GIL changes hands: a call of a
few us can't be much below 1, and no thread could do much in so little time. "hash" is the control: SHA-256 of the
payload's pickle, which holds no GIL from 2 KiB on.

All runnable threads must run at once, or the counting thread stands still without the GIL being held. So the processes
have a real-time priority, where permitted; and no more than two threads want to run, as there may be but two CPUs:
where the way has room for the message, the reader sleeps until the write is done. Elsewhere the reader waits in read(),
which sleeps too.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import beside  # noqa: E402
import payloads  # noqa: E402
from adapters import find, way_class  # noqa: E402
from adapters.base import Member, Way  # noqa: E402
from beside import Row  # noqa: E402
from board import WRITTEN, Board  # noqa: E402
from member import reason  # noqa: E402

ALONE = {  # not through any way
    "pickle5": lambda value: pickle.loads(pickle.dumps(value, 5)),
    "hash": lambda value: hashlib.sha256(value).digest(),
}
AFTER = {"ringcast", "vllm-queue", "lmdb"}  # have room for a message: the reader begins when the write is done
WAYS = [*ALONE, "ringcast", "zmq-push", "gloo-object", "vllm-queue", "mp-pipe", "lmdb"]
PAYLOADS = {"features": 40, "scheduler-64": 400, "metadata": 400}  # and calls of each kind; see calls_by_payload()
WARM = 20  # calls that don't count
BLOCK = 10  # calls until the counting thread stops or goes on
INTERVAL = 1e-4  # seconds
CALIBRATION = 0.3  # seconds
LIMIT = 120  # seconds for the calls of a way


def prepare() -> None:
    """Of the process, before there is a second thread."""
    sys.setswitchinterval(INTERVAL)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


class Counter(threading.Thread):
    """The second Python thread."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.wanted = threading.Event()
        self.start()

    def run(self) -> None:
        wanted = self.wanted
        while True:
            wanted.wait()
            while wanted._flag:  # type: ignore[attr-defined]  # a call of is_set() would take longer
                self.count += 1

    def speed(self) -> float:
        """Counts a second of CPU time while the main thread holds no GIL."""
        clock = time.pthread_getcpuclockid(self.ident or 0)
        self.wanted.set()
        time.sleep(0.01)
        count, start = self.count, time.clock_gettime(clock)
        time.sleep(CALIBRATION)
        speed = (self.count - count) / (time.clock_gettime(clock) - start)
        self.wanted.clear()
        return speed


class Call(NamedTuple):
    seconds: float
    counted: int
    beside: bool  # the second thread was counting


def measured(write: Callable[[Any], Any], value: Any, calls: int, settle: Callable[[int], None]) -> Row:
    """The figures of a row. `settle` is called after each call with the call's number."""
    counter = Counter()
    speed = counter.speed()
    found: List[Call] = []
    for n in range(WARM + 2 * calls):
        beside = n % (2 * BLOCK) >= BLOCK
        if n % BLOCK == 0:
            (counter.wanted.set if beside else counter.wanted.clear)()
            time.sleep(0.001)
        count, start = counter.count, time.perf_counter()
        write(value)
        found.append(Call(time.perf_counter() - start, counter.count - count, beside))
        settle(n)
    counter.wanted.clear()
    found = found[WARM:]
    alone = statistics.median(call.seconds for call in found if not call.beside)
    held = statistics.median(call.seconds - call.counted / speed for call in found if call.beside)
    return {
        "gil_share": round(min(1.0, max(0.0, held / alone)), 3), "write_us": round(alone * 1e6, 3),
        "messages": len(found), "status": "ok",
    }  # fmt: skip


# ---- The processes of a way ------------------------------------------------------------------------------------------


def calls_of(way: Way) -> Tuple[Callable[[Any], None], Callable[[], Any]]:
    typed = way.family == "ringcast"
    return (way.write_typed, way.read_typed) if typed else (way.write_object, way.read_object)


def values(calls: Dict[str, int], vllm: str) -> Dict[str, Any]:
    return {name: payloads.find(name, vllm).make(0) for name in calls}


def calls_by_payload(quick: bool) -> Dict[str, int]:
    """Without a message of vLLM's classes in a quick run: each process would take seconds to import vLLM."""
    if not quick:
        return PAYLOADS
    return {name: max(BLOCK, calls // 10) for name, calls in PAYLOADS.items() if name != "scheduler-64"}


def write_all(way: Way, board: Board, sent: Dict[str, Any], calls: Dict[str, int]) -> Dict[str, Row]:
    write, done, rows = calls_of(way)[0], 0, {}

    def settle(n: int) -> None:
        board.words[WRITTEN] = done + n + 1
        board.wait_readers(done + n + 1, spin=False)

    for name, value in sent.items():
        rows[name] = measured(write, value, calls[name], settle)
        done += WARM + 2 * calls[name]
    return rows


def read_all(way: Way, board: Board, sent: Dict[str, Any], calls: Dict[str, int]) -> None:
    read, done = calls_of(way)[1], 0
    for name, value in sent.items():
        for n in range(WARM + 2 * calls[name]):
            if way.name in AFTER:
                board.wait_word(WRITTEN, done + 1, spin=False)
            received = read()
            if n % BLOCK == 0 and not payloads.same(value, received):
                raise ValueError(f"a message of {name} has other contents than were written")
            del received
            done += 1
            board.done(done)


def member(options: argparse.Namespace, calls: Dict[str, int]) -> Dict[str, Row]:
    """One of the two processes: a row for each payload, of the writer."""
    prepare()
    sent = values(calls, options.vllm)
    largest = max(payloads.bytes_of(name, options.vllm) for name in sent) + 4096
    folder = Path(options.folder)
    way = way_class(options.way)(Member(options.rank, 2, largest, folder, options.vllm))
    way.initialize()
    board = Board(folder / "board", 2, options.rank, False)
    board.barrier()
    rows = {} if options.rank else write_all(way, board, sent, calls)
    if options.rank:
        read_all(way, board, sent, calls)
    board.barrier()
    way.cleanup()
    return {name: {**row, "version": way.version()} for name, row in rows.items()}


def alone(options: argparse.Namespace, calls: Dict[str, int]) -> Dict[str, Row]:
    prepare()
    rows = {}
    for name, value in values(calls, options.vllm).items():
        given = pickle.dumps(value, 5) if options.way == "hash" else value
        rows[name] = measured(ALONE[options.way], given, calls[name], lambda n: None)
    return rows


# ---- All of them -----------------------------------------------------------------------------------------------------


def run(way: str, options: argparse.Namespace) -> Dict[str, Any]:
    """The writer's results; {"why": ...} if the way can't be used."""
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    (folder / "board").write_bytes(bytes(Board.bytes(2)))
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    command += ["--vllm", options.vllm] if options.vllm else []
    command += ["--quick"] if options.quick else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    started = []
    try:
        for rank in range(1 if way in ALONE else 2):
            started.append(
                subprocess.Popen(
                    [*command, "--rank", str(rank)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        text = started[0].communicate(timeout=LIMIT)[0]
        found: Dict[str, Any] = json.loads(text.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"why": f"no end after {LIMIT} s"}
    except (IndexError, ValueError):
        return {"why": f"the writer ended with status {started[0].wait()}"}
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def rows_of(way: str, options: argparse.Namespace) -> List[Row]:
    found = run(way, options)
    family = way if way in ALONE else find(way).family
    row = {
        "peer": way, "family": family, "language": "python", "scenario": "gil",
        "processes": 1 if way in ALONE else 2, "reading": "typed" if family == "ringcast" else "objects",
        "floor": way == "hash",
    }  # fmt: skip
    if "why" in found:
        return [{**row, "payload": name, "status": found["why"]} for name in calls_by_payload(options.quick)]
    return [{**row, "payload": name, **figures} for name, figures in found.items()]


def rank_main(options: argparse.Namespace, calls: Dict[str, int]) -> None:
    try:
        found: Dict[str, Any] = (alone if options.way in ALONE else member)(options, calls)
    except Exception as error:
        found = {"why": reason(error)}
    print(json.dumps(found), flush=True)
    os._exit(0)


def main() -> None:
    options = beside.options_of(__doc__, "a tenth of the calls, and two payloads", WAYS)
    if options.rank is not None:
        return rank_main(options, calls_by_payload(options.quick))
    beside.tell((rows_of(way, options) for way in ([options.way] if options.way else WAYS)), line, options.json)


def line(row: Row) -> str:
    head = f"{row['peer']:12} {row['payload']:14}"
    return f"{head} {row['status']}" if row["status"] != "ok" else (
        f"{head} {row['gil_share']:6.1%} of {row['write_us']:10.1f} us"
    )  # fmt: skip


if __name__ == "__main__":
    main()
