# SPDX-License-Identifier: Apache-2.0
"""A call of share_hash: the features, the rank that hashes each, and the known hashes."""

import hashlib
import time
from collections import Counter
from typing import Any, Callable, List, Optional, Sequence

from ringcast.sglang.cache import Cache, identity_of
from ringcast.sglang.hashes import digest_of, feature_hash, nbytes_of

# Of all calls with the usual `compute`.
remembered = Cache()


class Call:
    """The features of a call, and the hashes that are known."""

    def __init__(
        self, features: List[Any], compute: Callable[[Any], int], name: str = "", ranks: Sequence[int] = (0,)
    ) -> None:
        self.compute, self.name, self.ranks = compute, name, ranks
        self.digests: Optional[List[bytes]] = None  # by feature: the name; None: there is no plan yet
        self.owners: List[int] = []  # by feature: the rank that hashes
        self.late_at: List[float] = []
        self.shared: Callable[[], Any] = lambda: None  # the SharedHashes, while there is one
        self.take(features)

    def take(self, features: List[Any]) -> None:
        self.began = time.monotonic()
        self.features = features
        self.nbytes = [nbytes_of(feature) for feature in features]
        self.hashes: List[Optional[int]] = [None] * len(features)
        if self.compute is feature_hash:
            self.hashes = [remembered.get(feature) for feature in features]

    def names(self) -> List[bytes]:
        """Of each feature. The order tells equal ones apart."""
        seen: "Counter[bytes]" = Counter()
        named = []
        for feature in self.features:
            digest = digest_of(self.name, feature)
            seen[digest] += 1
            if seen[digest] > 1:
                digest = hashlib.blake2b(digest + bytes([seen[digest] % 256]), digest_size=8).digest()
            named.append(digest)
        return named

    def plan(self, turn: int) -> None:
        """Set the owners: the same on each rank for the same features, in whatever order."""
        self.digests = digests = self.names()
        given = dict.fromkeys(self.ranks, 0)
        self.owners = [0] * len(self.features)
        turn %= len(self.ranks)
        turns = [*self.ranks[turn:], *self.ranks[:turn]]
        for index in sorted(range(len(self.features)), key=lambda index: (-self.nbytes[index], digests[index])):
            owner = min(turns, key=given.__getitem__)
            given[owner] += self.nbytes[index]
            self.owners[index] = owner

    def missing(self) -> List[int]:
        return [index for index, hash in enumerate(self.hashes) if hash is None]

    def hash(self, index: int) -> None:
        feature = self.features[index]
        identity = identity_of(feature) if self.compute is feature_hash else None
        hash = self.compute(feature)
        remembered.put(feature, identity, hash)
        self.hashes[index] = hash
