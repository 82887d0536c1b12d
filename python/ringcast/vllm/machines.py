# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a group share a machine: found out by trying to attach, for nothing else tells. Machines may have the
same name, and containers of one machine may be kept apart."""

import sys
from typing import Any, Callable, Dict, List, Sequence, Tuple, TypeVar

import ringcast

_Made = TypeVar("_Made")

# A probe's bytes: it carries nothing.
_PROBE_BYTES = 4096


class Ranks:
    """A torch ProcessGroup, or what has rank, world_size and broadcast_obj(obj, src), as vLLM's StatelessProcessGroup.

    rank: this process's, in the group. globally: every rank's number outside of it.
    """

    def __init__(self, group: Any) -> None:
        dist = sys.modules.get("torch.distributed")  # whoever has a ProcessGroup has imported it
        self._group = group
        self._dist = dist if dist is not None and isinstance(group, dist.ProcessGroup) else None
        if self._dist is not None:
            self.globally: List[int] = self._dist.get_process_group_ranks(group)
            self.rank: int = self._dist.get_rank(group)
        elif all(hasattr(group, name) for name in ("rank", "world_size", "broadcast_obj")):
            self.globally = list(range(group.world_size))
            self.rank = group.rank
        else:
            raise TypeError(
                "pg must be a torch.distributed.ProcessGroup, or have rank, world_size and broadcast_obj(obj, src), "
                f"not {type(group).__name__}"
            )

    @property
    def size(self) -> int:
        return len(self.globally)

    def gather(self, mine: Any) -> List[Any]:
        """Collective: what each rank gave."""
        if self._dist is None:
            return [self._group.broadcast_obj(mine, src) for src in range(self.size)]
        everyone: List[Any] = [None] * self.size
        self._dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def all_or_none(self, make: Callable[[], _Made], tell: Callable[[_Made], Any]) -> Tuple[_Made, List[Any]]:
        """Collective: what `make` makes here, and what `tell` says of that on each rank. Where one rank fails, all
        do: that one with its own error, the others with a RuntimeError that names it."""
        try:
            made = make()
            told = tell(made)
        except Exception as error:
            self.gather((None, f"{type(error).__name__}: {error}"))
            raise
        everyone = self.gather((told, None))
        for number, (_, failure) in zip(self.globally, everyone):
            if failure is not None:
                raise RuntimeError(f"rank {number} could not take part in the message queue: {failure}")
        return made, [told for told, _ in everyone]


def who_attaches(ranks: Ranks, writers: Sequence[int], readers: Sequence[int]) -> Dict[int, List[int]]:
    """Collective: for each of `writers`, those of `readers` that can attach to a ring it makes. All are ranks in the
    group; a writer can attach to its own."""
    mine = ranks.rank
    probe, handles = ranks.all_or_none(
        lambda: _make_probe(len(readers)) if mine in writers else None, lambda made: made and made.handle
    )
    try:
        _, reached = ranks.all_or_none(
            lambda: [writer for writer in writers if mine in readers and attaches(handles[writer])], lambda found: found
        )
    finally:
        if probe is not None:
            probe.close()
    return {writer: [reader for reader in readers if writer in reached[reader]] for writer in writers}


def _make_probe(readers: int) -> ringcast.Writer:
    return ringcast.Writer(_PROBE_BYTES, max(1, readers), memory="pages", numa="none", spill_bytes=0)


def attaches(handle: str) -> bool:
    """Whether this process can attach to the ring. What fails for another reason, such as too many open files, is no
    answer, and raised."""
    try:
        ringcast.Reader(handle).close()
    except (ringcast.RingNotFound, ringcast.AccessDenied, ringcast.ProtocolError):
        return False
    return True
