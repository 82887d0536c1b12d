# SPDX-License-Identifier: Apache-2.0
"""A call of share_hash: the features, the rank that hashes each, and the known hashes."""

import hashlib
import operator
import time
from typing import Any, Callable, List, Optional, Sequence, Set

from ringcast.sglang.cache import Cache, identity_of
from ringcast.sglang.hashes import digest_of, feature_hash, nbytes_of
from ringcast.sglang.share import computing

# Of all calls with `remember` and the usual `compute`.
remembered = Cache()


class Call:
    """The features of a call, and the hashes that are known."""

    def __init__(
        self,
        features: List[Any],
        compute: Callable[[Any], int],
        text: str = "",
        ranks: Sequence[int] = (0,),
        remember: bool = False,
    ) -> None:
        self.compute, self.text, self.ranks = compute, text, ranks
        self.remembers = remember and compute is feature_hash
        self.name = hashlib.blake2b(text.encode(), digest_size=8).digest()
        self.turn = int.from_bytes(self.name, "big")
        self.digest: Optional[bytes] = None  # of the features and the owners; None: there is no plan
        self.owners: List[int] = []  # by feature: the rank that hashes
        self.order: List[int] = []  # the features by owner: a hash is told by the place in this order
        self.due: List[float] = []  # by feature: seconds from `began` until the hash is due
        self.patience: List[float] = []  # by feature: seconds to wait for the hash when due
        self.absent: Set[int] = set()  # ranks with hashes that are not waited for
        self.shared: Callable[[], Any] = lambda: None  # the SharedHashes, while there is one
        self.take(features)

    def take(self, features: List[Any]) -> None:
        self.began = self.idle_since = time.monotonic()
        self.features = features
        self.nbytes = [nbytes_of(feature) for feature in features]
        self.hashes: List[Optional[int]] = [None] * len(features)
        if self.remembers:
            self.hashes = [remembered.get(feature) for feature in features]

    def plan(self) -> None:
        """Set the owners: each feature, from the largest on, goes to the rank with the fewest bytes so far."""
        count, turn = len(self.features), self.turn % len(self.ranks)
        turns = [*self.ranks[turn:], *self.ranks[:turn]]
        given = dict.fromkeys(turns, 0)
        self.owners = [0] * count
        for index in sorted(range(count), key=self.nbytes.__getitem__, reverse=True):
            owner = min(turns, key=given.__getitem__)
            given[owner] += self.nbytes[index]
            self.owners[index] = owner
        self.order = sorted(range(count), key=self.owners.__getitem__)
        self.digest = digest_of(self.features, self.owners)

    def places_of(self, rank: int) -> range:
        """Of a rank's part, in the order of the features."""
        first = sum(owner < rank for owner in self.owners)
        return range(first, first + self.owners.count(rank))

    def missing(self) -> List[int]:
        return [index for index, hash in enumerate(self.hashes) if hash is None]

    def hash(self, index: int) -> None:
        feature = self.features[index]
        identity = identity_of(feature) if self.remembers else None
        hash = computing(self.compute, feature)
        try:
            hash = operator.index(hash)
        except TypeError:
            raise TypeError(f"compute must return an int, not {type(hash).__name__}") from None
        remembered.put(feature, identity, hash)
        self.hashes[index] = hash
