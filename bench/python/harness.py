# SPDX-License-Identifier: Apache-2.0
"""
What all measurements share: turns, the rest between two messages, and processes with a pipe each.
"""

import contextlib
import datetime
import gc
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import timeit
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

TURNS = 40  # of each way, in the time that there is
LEAST = 2  # rounds of a turn
# rounds of a turn with a gap, if so many take no longer than MOST: an engine's steps follow each
# other
IN_A_ROW = 20
MOST = 0.5  # seconds
UNCOUNTED = 2  # turns that warm up, and tell how many rounds fill a turn
UNKNOWN = 64 << 20  # bytes of a walk where the system does not tell the size of the L3 cache
SLEEP = 0.005  # seconds, where no --gap is given
LIMIT = 300.0  # seconds until a silent process is an error: importing vLLM takes some, on each rank


# Label of the rows, columns (title, path of keys), and the figures by row: see
# bench.tables.table_of.
Table = Tuple[str, List[Tuple[str, str]], Dict[str, Any]]


class Failed(Exception):
    """A measurement can't go on; the text says what is known."""


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


# ---- Turns ---------------------------------------------------------------------------------------


def in_turns(
    ways: Dict[str, Callable[[int], Any]], seconds: float, gap: float = 0.0
) -> Dict[str, List[Any]]:
    """
    The results of each way(rounds), turn by turn, for some `seconds` in all; at least one turn of
    each. All other load of the machine meets all ways alike. The number of rounds is such that the
    ways get the same time. `gap` is that of the Plan.
    """
    share = max(seconds / TURNS / len(ways), min(IN_A_ROW * gap, MOST))
    rounds = dict.fromkeys(ways, LEAST)
    results: Dict[str, List[Any]] = {name: [] for name in ways}
    order = list(ways)
    gc.collect()
    end = time.perf_counter() + seconds
    turn = 0
    while turn <= UNCOUNTED or time.perf_counter() < end:
        for name in order:
            start = time.perf_counter()
            result = ways[name](rounds[name])
            took = time.perf_counter() - start
            if turn >= UNCOUNTED:
                results[name].append(result)
            rounds[name] = max(LEAST, int(rounds[name] * min(100.0, share / took)))
        order.reverse()
        turn += 1
    return results


def percentile(values: List[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# ---- Between two messages ------------------------------------------------------------------------


class Plan(NamedTuple):
    """
    What the processes do between two messages. Between two steps of an engine other code runs, and
    the caches then hold other data: each process walks over a block of memory, or sleeps. The
    source then waits until the gap since the last message is over; the gap is twice as long as the
    walk, so that the receivers wait again.
    """

    gap: float = 0.0  # seconds from one message to the next
    walk: int = 0  # bytes
    sleep: bool = False


def block_bytes() -> int:
    try:
        cache = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        cache = 0
    return 2 * cache if cache > 0 else UNKNOWN


def plan(mode: Optional[str], gap: float, processes: int) -> Plan:
    """What `--cold` and `--gap` ask for: `mode` is None, "sleep" or "evict"."""
    if mode is None:
        return Plan(gap)
    if mode == "sleep":
        return Plan(gap or SLEEP, sleep=True)
    walk = block_bytes()
    rest = Rest(Plan(0, walk), source=False)
    took = min(timeit.repeat(rest, number=1, repeat=3))
    took *= -(-processes // len(os.sched_getaffinity(0)))
    if gap and gap < 2 * took:
        raise Failed(
            f"--cold takes a longer gap, --gap {2.4 * took * 1e3:.0f} or more, or no --gap at all"
        )
    return Plan(gap or 3 * took, walk)


class Rest:
    """Called by one process between two messages."""

    def __init__(self, plan: Plan, source: bool) -> None:
        import numpy as np

        self.plan, self.source = plan, source
        self.block: Any = np.ones(plan.walk // 8, np.int64)[::8] if plan.walk else None

    def __call__(self) -> None:
        end = time.perf_counter() + self.plan.gap
        if self.block is not None:
            self.block.sum()
        elif self.plan.sleep and not self.source:
            time.sleep(self.plan.gap / 2)
        left = end - time.perf_counter()
        if self.source and left > 0:
            time.sleep(left)


def rest_of(plan: Plan, source: bool) -> Optional[Rest]:
    """None: the process goes on at once."""
    return Rest(plan, source) if plan.walk or plan.sleep or (source and plan.gap) else None


# ---- Processes -----------------------------------------------------------------------------------


def join(rank: int, ranks: int, store: str) -> Any:
    """Becomes a rank of a group of torch.distributed over gloo."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=LIMIT)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit
    )
    return dist.group.WORLD


def serve(served: Any, pipe: Any) -> None:
    """Calls the methods that the pipe names, until the other end closes the pipe."""
    with contextlib.suppress(EOFError):
        while True:
            method, *arguments = pipe.recv()
            pipe.send(getattr(served, method)(*arguments))
    served.end()


def _run(body: Callable[..., None], rank: int, pipe: Any, arguments: Sequence[Any]) -> None:
    os.dup2(2, 1)  # the standard output is for the figures alone
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        body(rank, pipe, *arguments)


class Processes:
    """`count` processes that run body(rank, pipe, *arguments), until the pipe is closed."""

    def __init__(
        self, count: int, body: Callable[..., None], *arguments: Any, method: str = "spawn"
    ) -> None:
        self.count, self.body, self.arguments, self.method = count, body, arguments, method
        self.workers: List[Tuple[Any, Any]] = []  # process, pipe

    def __enter__(self) -> "Processes":
        context: Any = multiprocessing.get_context(self.method)
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run, args=(self.body, rank, theirs, self.arguments), daemon=True
            )
            process.start()
            theirs.close()
            self.workers.append((process, ours))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        for process, pipe in self.workers:
            pipe.close()
            if kind or self.method == "fork":
                # the other processes may wait for the failed one; a fork holds the others' pipes
                process.kill()
        for process, _ in self.workers:
            process.join()
            process.close()
        self.workers.clear()

    def tell(self, message: Any) -> None:
        for rank, (_, pipe) in enumerate(self.workers):
            try:
                pipe.send(message)
            except OSError:
                raise self.ended(rank) from None

    def hear(self, without: int = -1) -> List[Any]:
        """One answer of each process; None of the process `without`."""
        answers: List[Any] = [None] * self.count
        waiting: Dict[Any, int] = {
            pipe: rank for rank, (_, pipe) in enumerate(self.workers) if rank != without
        }
        while waiting:
            ready: List[Any] = multiprocessing.connection.wait(list(waiting), LIMIT)
            if not ready:
                raise Failed(f"no answer of ranks {sorted(waiting.values())} for {LIMIT:.0f} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise self.ended(rank) from None
        return answers

    def ask(self, message: Any) -> List[Any]:
        self.tell(message)
        return self.hear()

    def ended(self, rank: int) -> Failed:
        return Failed(f"rank {rank} has ended; the process may have said why above")
