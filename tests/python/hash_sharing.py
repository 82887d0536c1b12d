# SPDX-License-Identifier: Apache-2.0
"""For the tests of share_hash, on the ranks."""

import contextlib
import weakref
from typing import Any, Iterator, List

import torch
import torch.distributed as dist

import ringcast.sglang
from ringcast.sglang import feature_hash, sharing

PATIENT, IMPATIENT = 60.0, 0.001  # seconds that a wait allows a rank


_calls: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def share_hash(given: List[Any], **options: Any) -> Any:
    """By default with the number of the call in the group, or in this process, as the key."""
    group = dist.group.WORLD if dist.is_initialized() else sharing
    number = _calls[group] = _calls.get(group, 0) + 1
    return ringcast.sglang.share_hash(given, **{"key": f"call {number}", **options})


def features(count: int = 4, size: int = 5000) -> List[Any]:
    """Of a call, each its own."""
    return [torch.arange(size, dtype=torch.float32) * (index + 1) for index in range(count)]


class Hasher:
    """feature_hash, counted."""

    def __init__(self) -> None:
        self.features: List[Any] = []

    def __call__(self, feature: Any) -> int:
        self.features.append(feature)
        return feature_hash(feature)


@contextlib.contextmanager
def slack(seconds: float) -> Iterator[None]:
    before, sharing.SLACK = sharing.SLACK, seconds
    try:
        yield
    finally:
        sharing.SLACK = before


def hashes_of(shared: Any, given: List[Any]) -> List[int]:
    got, hashes = shared.result()
    assert all(one is other for one, other in zip(got, given))
    return hashes


def check(shared: Any, given: List[Any]) -> None:
    assert hashes_of(shared, given) == [feature_hash(feature) for feature in given]


def here() -> Any:
    """What this rank knows of the ranks."""
    ranks = sharing._known[dist.group.WORLD]
    assert ranks is not None
    return ranks


def everywhere(value: Any) -> List[Any]:
    told: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return told
