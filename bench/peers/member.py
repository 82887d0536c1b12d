# SPDX-License-Identifier: Apache-2.0
"""One process of a group: makes an end of the way, and does the group's steps in turn.

    member.py FOLDER    with the rank in PEERS_RANK, or in a variable of MPI's launcher

The results go to the file member-RANK.jsonl in the folder, a line for each step; see group.py.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))

import payloads  # noqa: E402
from adapters import way_class  # noqa: E402
from adapters.base import LeftOut, Member, Way  # noqa: E402
from board import Board  # noqa: E402
from figures import warm  # noqa: E402
from scenarios import PERIODS, SCENARIOS, Run, calls, spares  # noqa: E402

PR_SET_PDEATHSIG = 1
RANKS = ("PEERS_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
BASE = 20  # bits: the numbers of each step start at a new multiple of 1 << 20, to make old messages show


def rank_here() -> int:
    return int(next(os.environ[name] for name in RANKS if name in os.environ))


def peak_mb() -> Optional[float]:
    """The largest resident memory since forget_peak()."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, LeftOut) else f"{type(error).__name__}: {text[:400]}"


def payload_of(step: Dict[str, Any], vllm: Optional[str]) -> payloads.Payload:
    if step["reading"] == "in-place":
        return payloads.in_place(step["payload"])
    found = payloads.find(step["payload"], vllm)
    return payloads.beforehand(found) if step["reading"] == "bytes" and not is_bytes(step) else found


def is_bytes(step: Dict[str, Any]) -> bool:
    return bool(step["payload"].startswith("bytes-"))


def kept(way: Way, step: Dict[str, Any], values: List[Any]) -> bool:
    """Whether the way reads a message while the writer goes on to the next."""
    if way.keeps is None or step["scenario"] not in ("stream", *PERIODS) or step["reading"] == "in-place":
        return False
    return bool((len(values[0]) if step["reading"] == "bytes" else step["bytes"]) >= way.keeps)


class Steps:
    """The steps of the group, for the member."""

    def __init__(self, way: Way, board: Board, group: Dict[str, Any]) -> None:
        self.way, self.board, self.group = way, board, group
        self.made: Any = None  # the payload at hand: name, reading and values

    def values(self, step: Dict[str, Any]) -> Any:
        """The payload and the variants; the last are kept, as the next step may have the same."""
        key = (step["payload"], step["reading"])
        if self.made is None or self.made[0] != key:
            self.made = None
            payload = payload_of(step, self.group["vllm"])
            self.made = (key, payload, [payload.make(k) for k in range(payloads.variants(step["payload"]))])
        return self.made[1:]

    def run(self, index: int, step: Dict[str, Any]) -> Dict[str, Any]:
        payload, values = self.values(step)
        write, read = calls(self.way, step["reading"], step["bytes"])
        rank, keeps = self.way.me.rank, kept(self.way, step, values)
        run = Run(
            self.way, self.board, payload, values, write, read,
            self.way.release if step["reading"] == "in-place" else lambda: None,
            step["scenario"], step["messages"], step["seconds"], step["idle"], (index + 1) << BASE, rank,
            warm(step["messages"]) if step["scenario"] == "stream" else 0, keeps,
            spares(values, step) if keeps and rank == 0 else [],
        )  # fmt: skip
        gc.collect()
        gc.freeze()
        forget_peak()
        self.board.clear()
        self.board.barrier()
        cpu, start = time.process_time(), time.perf_counter_ns()
        times = SCENARIOS[step["scenario"]][rank > 0](run)
        if "cpu_end" in times:
            times["cpu"] = times.pop("cpu_end") - times.pop("cpu_start", cpu)
        self.board.barrier()
        gc.unfreeze()
        return {"step": index, "took": time.perf_counter_ns() - start, "rss": peak_mb(), **times}


def way_of(group: Dict[str, Any], folder: Path, rank: int) -> Way:
    found = way_class(group["way"], group["where"])
    return found(Member(rank, group["processes"], group["largest"], folder, group["vllm"], group["sglang"]))


def main(folder: Path, rank: int) -> None:
    group = json.loads((folder / "group.json").read_text())
    with open(folder / f"member-{rank}.jsonl", "w", buffering=1) as lines:

        def tell(**what: Any) -> None:
            lines.write(json.dumps(what) + "\n")

        try:
            way = way_of(group, folder, rank)
            way.initialize()
            tell(version=way.version())
            board = Board(folder / "board", group["processes"], rank, group["spin"])
            board.barrier()
            steps = Steps(way, board, group)
            for index, step in enumerate(group["steps"]):
                if index == 0 or index >= group["first"]:
                    tell(**steps.run(index, step))
            steps.made = None
            tell(end=True)
            way.cleanup()
        except BaseException as error:
            tell(error=reason(error), at=time.monotonic_ns(), left_out=isinstance(error, LeftOut))
            raise


def start(arguments: List[str], rank: int) -> None:
    """Also called by a launcher that forks the members."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    status = 1
    try:
        main(Path(arguments[0]), rank)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a peer's threads may wait for ever


if __name__ == "__main__":
    start(sys.argv[1:], rank_here())
