# SPDX-License-Identifier: Apache-2.0
"""share_hash: the ranks of a group share the hashing of features that every rank has. telling.py has the algorithm."""

import asyncio
import contextlib
import math
import time
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch.distributed as dist

from ringcast._group import gather
from ringcast.sglang import rule
from ringcast.sglang.awaiting import Awaited
from ringcast.sglang.hashes import feature_hash
from ringcast.sglang.plan import Call
from ringcast.sglang.share import is_open, refuse_inside, until_of
from ringcast.sglang.telling import CAPACITY, LOCAL, STREAM, Ranks


def share_hash(
    features: Sequence[Any],
    *,
    key: str,
    group: Any = None,
    how: str = "auto",
    compute: Callable[[Any], int] = feature_hash,
    remember: bool = False,
) -> "SharedHashes":
    """Have each feature hashed by one rank of `group`; result() returns the features and their hashes.

        shared = share_hash([item.feature for item in items], key=request.rid, group=cpu_group)
        ...                                             # other work; shared.done() says whether result() would wait
        features, hashes = shared.result()              # or await shared; hashes[0] is SGLang's hash of features[0]

    The call hashes this rank's part of the features. result() waits for the hashes of the other ranks, and hashes what
    is late (see above) here. No call hangs when a rank is late, stopped or dead.

    features: the same on all ranks, each as feature_hash() takes it. key: a name of the call, the same on all ranks
    and never used for other features, such as a request's id: the ranks take each other's hashes by it. how: "hash";
    "local": each rank for itself; "auto": as share= in RINGCAST_SGLANG of the group's first rank says, and by default
    by what this call would cost (ringcast/sglang/rule.py). compute: gives a feature's hash, below 2^64.
    remember: take the hashes of an earlier call with the same key, and keep the hashes of this call, where `compute` is
    feature_hash(). Several threads may make calls, each with its own key.

    The first call for a group is a collective. In a group on several machines, an elastic group and a group of one,
    every call is "local".
    TypeError, ValueError: invalid arguments. OSError: a file can't be read. result() raises errors of compute().
    """
    refuse_inside("share_hash")
    features = list(features)
    if how not in rule.HOW_TO_HASH:
        raise ValueError(f"how must be one of {', '.join(rule.HOW_TO_HASH)}, not {how!r}")
    if not callable(compute):
        raise TypeError(f"compute must be a function of a feature, not {type(compute).__name__}")
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, not {type(key).__name__}")
    ranks = ranks_of(group)
    if ranks is None:
        return SharedHashes(Call(features, key, compute, remember))
    return _begin(ranks, Call(features, key, compute, remember), how)


class SharedHashes(Awaited):
    """The features and hashes of one call of share_hash()."""

    def __init__(self, call: Call, ranks: Optional[Ranks] = None) -> None:
        super().__init__()
        self._call, self._ranks = call, ranks
        self._unasked = None if ranks is None else ranks.unasked
        if self._unasked is not None:
            self._unasked.add(self)

    def done(self) -> bool:
        """Whether result() would not wait. result() then computes the late hashes."""
        ranks, call = self._ranks, self._call
        waits = ranks is not None and any(ranks.until_late(call, index) > 0 for index in call.missing())
        return self._is_whole() or not waits

    def result(self, timeout: Optional[float] = None) -> Tuple[List[Any], List[int]]:
        """(features, hashes), in the order of the call. timeout: seconds; TimeoutError: the time is up, and a later
        result() can succeed. The wait has a bound anyway."""
        self._ask()
        until = until_of(timeout)
        while not self._is_whole():
            for index in self._call.missing():
                self._bring(index, until)
        return self._call.features, list(self._call.hashes)  # type: ignore[arg-type]

    def hash_at(self, index: int) -> int:
        """The hash of one feature, as soon as known."""
        self._ask()
        self._bring(index, math.inf)
        hash = self._call.hashes[index]
        assert hash is not None
        return hash

    def _ask(self) -> None:
        if self._unasked is not None:
            self._unasked.discard(self)

    def _bring(self, index: int, until: float) -> None:
        """Wait for a hash until the hash is late, then hash."""
        while self._call.hashes[index] is None:
            late = 0.0 if self._ranks is None else self._ranks.until_late(self._call, index)
            if late <= 0:
                self._hash(index)
            if self._call.hashes[index] is not None:
                break
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"rank {self._call.owners[index]} of the group has not sent a hash in time")
            assert self._ranks is not None
            self._ranks.wait(min(late, left))

    def _is_whole(self) -> bool:
        if not self._call.is_whole():
            return False
        self._ranks = None  # hashes that are kept keep no rings
        return True

    def _hash(self, index: int) -> None:
        if self._ranks is None:
            self._call.hash(index)
        else:
            self._ranks.hash_late(self._call, index)

    def _descriptors(self) -> List[int]:
        return [] if self._ranks is None else self._ranks.descriptors()

    def _patience(self) -> Optional[float]:
        missing = self._call.missing()
        if self._ranks is None:
            return 0.0
        return max(0.0, self._ranks.until_late(self._call, missing[0])) if missing else 0.0

    def __await__(self) -> Any:
        """As result(); a hash that is late is computed in a thread."""
        while not (self.done() and self._is_whole()):
            if self._patience() == 0:
                yield from self._late().__await__()
            else:
                yield from self._change().__await__()
        return self.result()

    async def _late(self) -> None:
        missing = self._call.missing()
        if missing:
            await asyncio.get_running_loop().run_in_executor(None, self._hash, missing[0])

    def __repr__(self) -> str:
        return f"<SharedHashes: {len(self._call.missing())} of {len(self._call.features)} to come>"


# ---- The ranks of a group --------------------------------------------------------------------------------------------

_known: "weakref.WeakKeyDictionary[Any, Optional[Ranks]]" = weakref.WeakKeyDictionary()


def ranks_of(group: Any) -> Optional[Ranks]:
    """The first call for a group is a collective. None: each rank for itself."""
    group = dist.group.WORLD if group is None and dist.is_available() else group
    if group is None:
        return None
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group must be a torch.distributed.ProcessGroup or None, not {type(group).__name__}")
    if group not in _known or (ranks := _known[group]) and not is_open(group, STREAM, ranks.made):
        made = gather.near_ends(group, STREAM, CAPACITY)
        _known[group] = None if made is None else Ranks(group, made)
    return _known[group]


def _begin(ranks: Ranks, call: Call, how: str) -> SharedHashes:
    ranks.take_in()
    how, tells = ranks.decide(call, how)
    shared = SharedHashes(call, ranks)
    call.shared = weakref.ref(shared)
    if how == "hash":
        ranks.expect(call)
    else:
        shared._ranks = None
    if tells:
        ranks.tell(call.name, call.digest if how == "hash" else LOCAL)
    with contextlib.suppress(Exception):  # result() hashes again, and raises the error
        ranks.hash_part(call)
    return shared
