# SPDX-License-Identifier: Apache-2.0
"""What the processes of a measurement do between two messages.

Between two steps of an engine other code runs, and the caches then hold other data. `--cold` (evict) has each process
read a block of memory twice as large as the L3 cache; `--cold BYTES` takes a block of that size, for a machine that
shares its L3 cache with others; `--cold sleep` has each process sleep. The source of a message then waits until
the gap since the last message is over, and the gap must be twice as long as the walk, so that the receivers wait again.
"""

import os
import time
import timeit
from typing import Any, NamedTuple, Optional

from ringcast.bench.turns import Failed

UNKNOWN = 64 << 20  # the block's bytes where the system does not tell the size of the L3 cache
SLEEP = 0.005  # seconds, where no --gap is given


class Plan(NamedTuple):
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
    """What `--cold` and `--gap` ask for: `mode` is None, "sleep", "evict" or a number of bytes."""
    if mode is None:
        return Plan(gap)
    if mode == "sleep":
        return Plan(gap or SLEEP, sleep=True)
    walk = block_bytes() if mode == "evict" else int(mode)
    rest = Rest(Plan(0, walk), source=False)
    took = min(timeit.repeat(rest, number=1, repeat=3)) * -(-processes // len(os.sched_getaffinity(0)))
    if gap and gap < 2 * took:
        raise Failed(
            f"--cold takes a longer gap: a walk over {walk >> 10} KiB takes {took * 1e3:.3g} ms with {processes} "
            f"processes, and --gap is {gap * 1e3:g} ms; give --gap {2.4 * took * 1e3:.0f} or more, no --gap at all, or "
            "a smaller block, such as --cold 16777216"
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
