# SPDX-License-Identifier: Apache-2.0
"""Exchanges among all ranks of a group."""

import sys
from typing import Any, Callable, List, Tuple, TypeVar

_Made = TypeVar("_Made")


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
                raise RuntimeError(f"rank {number} could not take part in making the ring: {failure}")
        return made, [told for told, _ in everyone]
