# SPDX-License-Identifier: Apache-2.0
"""What the first broadcast of a group would do, done before: ringcast.torch.prepare().

The ranks first meet at the group's store, by keys with a timeout: a collective without one of the
ranks would wait for the group's own timeout, and break the group. The first rank that sees all
ranks, or runs out of time, writes the outcome. No other rank can change the outcome, so all ranks
go on or none does, and every rank names the missing ranks. Each meeting has a number, since its
keys stay in the store.

Then the ranks make the ring and a few broadcasts, after which the memory of the writer, of the
readers and of Python is there.
"""

import time
import weakref
from datetime import timedelta
from typing import Any, Dict, List, Optional

import torch

from ringcast._group.config import is_ours
from ringcast._group.endpoint import PREPARE, Source
from ringcast._group.ranks import global_ranks
from ringcast._group.rings import BROADCAST, end_of, ends, policies

# Broadcasts of each kind: by the first ones of large values, a Reader learns what to retain.
_ROUNDS = 4
# The longest part of a wait, after which Ctrl-C is seen.
_SLICE = 1.0
_ALL_HERE = "all ranks are here"

# group -> (src -> the number of the last meeting)
_meetings: "weakref.WeakKeyDictionary[Any, Dict[int, int]]" = weakref.WeakKeyDictionary()
# end -> the bytes that it was prepared for
_prepared: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def prepare(
    group: Any, src: int, nbytes: int, timeout: float, metadata_group: Any, on_death: Optional[str]
) -> None:
    """group: a ProcessGroup of two ranks or more. on_death: of new rings; None: as the environment
    says."""
    if on_death is not None:
        policies[group] = on_death
    end = ends(group).get((BROADCAST, src))
    if end is not None and not end.ring.closed and _prepared.get(end, -1) >= nbytes:
        return
    _meet(group, src, timeout)
    end = end_of(group, src, metadata_group)
    for size in sorted({0, nbytes}):
        _warm_up(end, size)
    _prepared[end] = nbytes


def _meet(group: Any, src: int, timeout: float) -> None:
    """Return once all ranks are here. TimeoutError: a rank is not, and no rank returns."""
    numbers = _meetings.setdefault(group, {})
    numbers[src] = numbers.get(src, -1) + 1
    store, ranks = group.get_group_store(), global_ranks(group)
    key = f"ringcast.prepare/{src}/{numbers[src]}/"
    store.set(key + str(group.rank()), "here")
    missing = _missing(store, key, len(ranks), timeout)
    names = ", ".join(f"rank {ranks[rank]}" for rank in missing)
    mine = f"{names} did not call prepare() within {timeout:g} s" if missing else _ALL_HERE
    outcome = store.compare_set(key + "outcome", "", mine).decode()
    if outcome != _ALL_HERE:
        raise TimeoutError(
            f"{outcome}; nothing was prepared: call prepare() again, on all ranks of the group "
            f"{ranks}"
        )


def _missing(store: Any, key: str, ranks: int, timeout: float) -> List[int]:
    """The ranks in the group that have not come in time."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        try:
            store.wait(
                [key + str(rank) for rank in range(ranks)], timedelta(seconds=min(left, _SLICE))
            )
            return []
        except RuntimeError as error:  # in time or not, the keys tell
            if not is_ours(error):
                raise
    return [rank for rank in range(ranks) if not store.check([key + str(rank)])]


def _warm_up(end: Any, size: int) -> None:
    """Collective: broadcasts of `size` bytes."""
    for _ in range(_ROUNDS):
        if isinstance(end, Source):
            end.send(
                {"ranks": ["0", 1, 2.0, None], "x": torch.zeros(size, dtype=torch.uint8)}, PREPARE
            )
        else:
            received = end.receive(PREPARE)
            received["x"].sum()  # each page of a retained tensor is mapped when it is touched
            del received
