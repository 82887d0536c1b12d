# SPDX-License-Identifier: Apache-2.0
"""A call of share_hash: the features, the rank that hashes each, and the known hashes."""

import hashlib
import operator
import time
from collections import OrderedDict
from typing import Any, Callable, List, Optional, Set, Tuple

from ringcast.sglang.hashes import digest_of, feature_hash, nbytes_of
from ringcast.sglang.share import computing

# Of the latest calls with `remember` and the usual `compute`: by key and digest.
_remembered: "OrderedDict[Tuple[str, bytes], List[Optional[int]]]" = OrderedDict()
_MOST_REMEMBERED = 1024


class Call:
    """The features of a call, and the hashes that are known."""

    def __init__(self, features: List[Any], key: str, compute: Callable[[Any], int], remember: bool = False) -> None:
        self.began = self.idle_since = time.monotonic()
        self.features, self.compute = features, compute
        self.nbytes = [nbytes_of(feature) for feature in features]
        self.name = hashlib.blake2b(key.encode(), digest_size=8).digest()
        self.digest = digest_of(features)
        self.owners: List[int] = []  # by feature: the rank that hashes; empty: there is no plan
        self.order: List[int] = []  # the features by owner: a hash is told by the place in this order
        self.due: List[float] = []  # by feature: seconds from `began` until the hash is due
        self.patience: List[float] = []  # by feature: seconds to wait for the hash when due
        self.absent: Set[int] = set()  # ranks with hashes that are not waited for
        self.shared: Callable[[], Any] = lambda: None  # the SharedHashes, while there is one
        self._memory = (key, self.digest) if remember and compute is feature_hash else None
        known = None if self._memory is None else _remembered.get(self._memory)
        self.hashes: List[Optional[int]] = [None] * len(features) if known is None else known.copy()

    def plan(self, size: int) -> None:
        """Set the owners: each feature, from the largest on, goes to the rank with the fewest bytes so far."""
        turn = int.from_bytes(self.name, "big") % size
        given = dict.fromkeys([*range(turn, size), *range(turn)], 0)
        self.owners = [0] * len(self.features)
        for index in sorted(range(len(self.features)), key=self.nbytes.__getitem__, reverse=True):
            owner = min(given, key=given.__getitem__)
            given[owner] += self.nbytes[index]
            self.owners[index] = owner
        self.order = sorted(range(len(self.features)), key=self.owners.__getitem__)

    def places_of(self, rank: int) -> range:
        """Of a rank's part, in the order of the features."""
        first = sum(owner < rank for owner in self.owners)
        return range(first, first + self.owners.count(rank))

    def missing(self) -> List[int]:
        return [index for index, hash in enumerate(self.hashes) if hash is None]

    def hash(self, index: int) -> None:
        hash = computing(self.compute, self.features[index])
        try:
            self.hashes[index] = operator.index(hash)
        except TypeError:
            raise TypeError(f"compute must return an int, not {type(hash).__name__}") from None

    def is_whole(self) -> bool:
        """Whether all hashes are known; they are then remembered, if asked."""
        if self.missing():
            return False
        if self._memory is not None:
            _remembered[self._memory] = self.hashes.copy()
            if len(_remembered) > _MOST_REMEMBERED:
                _remembered.popitem(last=False)
        return True
