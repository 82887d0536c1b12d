# SPDX-License-Identifier: Apache-2.0
"""Exchanges among all ranks of a group."""

import sys
from typing import Any, Callable, List, Tuple, TypeVar

_Made = TypeVar("_Made")


def global_ranks(group: Any) -> List[int]:
    """The number of each rank of a ProcessGroup in torch.distributed, where a global rank is asked
    for. A group that torch.distributed does not know, made without new_group() or outliving
    destroy_process_group(), has its own numbers only."""
    try:
        return list(sys.modules["torch.distributed"].get_process_group_ranks(group))
    except KeyError:
        return list(range(group.size()))


class Ranks:
    """
    A torch ProcessGroup, or an object with rank, world_size and broadcast_obj(obj, src), as vLLM's
    StatelessProcessGroup. rank: this process's, in the group: dist.get_rank() would count in the
    default group, which need not be there. globally: the global number of every rank.
    """

    def __init__(self, group: Any) -> None:
        dist = sys.modules.get("torch.distributed")  # a ProcessGroup's owner has imported torch
        self._group = group
        self._dist = dist if dist is not None and isinstance(group, dist.ProcessGroup) else None
        if self._dist is not None:
            self.globally: List[int] = global_ranks(group)
            self.rank: int = group.rank()
        elif all(hasattr(group, name) for name in ("rank", "world_size", "broadcast_obj")):
            self.globally = list(range(group.world_size))
            self.rank = group.rank
        else:
            raise TypeError(
                "pg must be a torch.distributed.ProcessGroup, or have rank, world_size and "
                "broadcast_obj(obj, src), "
                f"not {type(group).__name__}"
            )

    @property
    def size(self) -> int:
        return len(self.globally)

    def gather(self, mine: Any) -> List[Any]:
        """Collective: the argument of each rank."""
        if self._dist is None:
            return [self._group.broadcast_obj(mine, src) for src in range(self.size)]
        everyone: List[Any] = [None] * self.size
        self._dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def all_or_none(
        self, make: Callable[[], _Made], tell: Callable[[_Made], Any]
    ) -> Tuple[_Made, List[Any]]:
        """Collective: the result of `make` here, and the result of `tell` on each rank. If a rank
        fails, all do: the failed rank with its error, the rest with a RuntimeError that names the
        failed rank."""
        try:
            made = make()
            told = tell(made)
        except Exception as error:
            self.gather((None, f"{type(error).__name__}: {error}"))
            raise
        everyone = self.gather((told, None))
        for number, (_, failure) in zip(self.globally, everyone):
            if failure is not None:
                raise RuntimeError(
                    f"rank {number} could not take part in making the ring: {failure}"
                )
        return made, [told for told, _ in everyone]
