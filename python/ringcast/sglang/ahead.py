# SPDX-License-Identifier: Apache-2.0
"""share_hash in the place of SGLang's hash_feature, for the requests that a scheduler is about to
process.

SGLang's ranks receive the same list of requests, and each rank then hashes the features of one
request after the other. Before the first request is processed, share_hash begins with the features
of the whole list; hash_feature() then gives the shared hash of a feature in the list, and SGLang's
own of any other. What is hashed, and when a hash is used, is SGLang's decision as before.
"""

import contextlib
import logging
import os
import weakref
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np
import torch

from ringcast.sglang.sharing import SharedHashes, ranks_of, share_hash

# The features of the list under way, by id: the call, and the place in the call.
_begun: Dict[int, Tuple[SharedHashes, int, Any]] = {}
_lists: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()  # begun, by group


def hash_of(feature: Any, original: Callable[[Any], int]) -> int:
    """In the place of hash_feature()."""
    begun = _begun.get(id(feature))
    if begun is None:
        return original(feature)
    shared, index, _ = begun
    try:
        return shared.hash_at(index)
    except Exception:  # an error of SGLang's function is raised again
        return original(feature)


@contextlib.contextmanager
def sharing(group: Any, requests: Any, original: Callable[[Any], int]) -> Iterator[None]:
    """Around the processing of a list of requests."""
    try:
        _begin(group, requests, original)
    except Exception:  # SGLang hashes as without ringcast
        logging.getLogger("sglang.ringcast").exception(
            "The ranks don't share the hashes of these requests"
        )
    try:
        yield
    finally:
        _begun.clear()


def _begin(group: Any, requests: Any, original: Callable[[Any], int]) -> None:
    if group is None or group.size() == 1 or _skips():
        return
    with_items = [request for request in requests or () if list(_items_of(request))]
    if not with_items:
        return
    # A key for each list, the same on ranks in step. Before anything can fail on one rank alone the
    # list is counted, and the first call makes the rings, on all ranks.
    number = _lists[group] = _lists.get(group, 0) + 1
    ranks_of(group)
    key = f"{number} {' '.join(str(getattr(request, 'rid', None)) for request in with_items)}"
    features = [feature for request in with_items for feature in _features_of(request)]
    if not features:
        return
    shared = share_hash(features, group=group, key=key, compute=original)
    for index, feature in enumerate(features):
        _begun[id(feature)] = (shared, index, feature)


def _skips() -> bool:
    """Whether SGLang hashes no feature, or moves each to the GPU before."""
    told = os.environ.get("SGLANG_MM_SKIP_COMPUTE_HASH", "0").lower() not in (
        "",
        "0",
        "false",
        "no",
        "off",
    )
    return told or os.environ.get("SGLANG_MM_BUFFER_SIZE_MB", "0") not in ("", "0")


def _items_of(request: Any) -> Iterator[Any]:
    """Of a request, or of a batch of requests."""
    for each in getattr(request, "batch", None) or (request,):
        yield from getattr(getattr(each, "mm_inputs", None), "mm_items", None) or ()


def _features_of(request: Any) -> Iterator[Any]:
    """What SGLang is going to hash."""
    for item in _items_of(request):
        if item.pad_value is None and item.hash is None and item.is_valid():
            feature = item.precomputed_embeddings if item.feature is None else item.feature
            if _is_on_cpu(feature):
                yield feature


def _is_on_cpu(feature: Any) -> bool:
    if isinstance(feature, torch.Tensor):
        return bool(feature.device.type == "cpu")
    if isinstance(feature, list):
        return bool(feature) and all(
            isinstance(part, torch.Tensor) and _is_on_cpu(part) for part in feature
        )
    return isinstance(feature, np.ndarray)
