# SPDX-License-Identifier: Apache-2.0
"""One process of a group: makes an end of the way, and does the group's steps in turn.

    member.py FOLDER    with the rank in PEERS_RANK, or in a variable of MPI's launcher

The results go to the file member-RANK.jsonl in the folder, a line for each step; see group.py.
"""

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
# bits: the numbers of each step start at a new multiple of 1 << 20, to make old messages show
BASE = 20


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, LeftOut) else f"{type(error).__name__}: {text[:400]}"


def payload_of(step: Dict[str, Any], vllm: Optional[str]) -> payloads.Payload:
    name: str = step["payload"]
    if step["reading"] == "in-place":
        return payloads.in_place(name)
    found = payloads.find(name, vllm)
    raw = name.startswith("bytes-")
    return payloads.beforehand(found) if step["reading"] == "bytes" and not raw else found


def reads_later(way: Way, step: Dict[str, Any], values: List[Any]) -> bool:
    """Whether the way reads a message while the writer goes on to the next."""
    if way.keeps is None or step["scenario"] not in ("stream", *PERIODS):
        return False
    if step["reading"] == "in-place":
        return False
    return bool((len(values[0]) if step["reading"] == "bytes" else step["bytes"]) >= way.keeps)


class Steps:
    """The steps of the group, for the member."""

    def __init__(self, way: Way, board: Board, group: Dict[str, Any]) -> None:
        self.way, self.board, self.group = way, board, group
        self.made: Any = None  # the payload at hand: name, reading, payload and values

    def values(self, step: Dict[str, Any]) -> Any:
        """The payload and the variants; the last are kept, as the next step may have the same."""
        key = (step["payload"], step["reading"])
        if self.made is None or self.made[0] != key:
            self.made = None
            payload = payload_of(step, self.group["vllm"])
            made = [payload.make(k) for k in range(payloads.variants(step["payload"]))]
            self.made = (key, payload, made)
        return self.made[1:]

    def run(self, index: int, step: Dict[str, Any]) -> Dict[str, Any]:
        payload, values = self.values(step)
        write, read = calls(self.way, step["reading"], step["bytes"])
        in_place, rank = step["reading"] == "in-place", self.way.me.rank
        run = Run(
            way=self.way,
            board=self.board,
            payload=payload,
            values=values,
            write=write,
            read=read,
            finish=self.way.release if in_place else lambda: None,
            scenario=step["scenario"],
            messages=step["messages"],
            seconds=step["seconds"],
            base=(index + 1) << BASE,
            rank=rank,
            warm=warm(step["messages"]) if step["scenario"] == "stream" else 0,
            spares=spares(values, step) if reads_later(self.way, step, values) else [],
        )
        gc.collect()
        gc.freeze()
        self.board.clear()
        self.board.barrier()
        start = time.perf_counter_ns()
        times = SCENARIOS[step["scenario"]][rank > 0](run)
        self.board.barrier()
        gc.unfreeze()
        return {"step": index, "took": time.perf_counter_ns() - start, **times}


def main(folder: Path, rank: int) -> None:
    group = json.loads((folder / "group.json").read_text())
    processes = group["processes"]
    with open(folder / f"member-{rank}.jsonl", "w", buffering=1) as lines:

        def tell(**what: Any) -> None:
            lines.write(json.dumps(what) + "\n")

        try:
            me = Member(rank, processes, group["largest"], folder, group["vllm"], group["sglang"])
            way = way_class(group["way"])(me)
            way.initialize()
            tell(version=way.version())
            board = Board(folder / "board", processes, rank, group["spin"])
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


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    status = 1
    try:
        main(Path(sys.argv[1]), int(next(os.environ[name] for name in RANKS if name in os.environ)))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a peer's threads may wait for ever
