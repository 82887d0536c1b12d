# SPDX-License-Identifier: Apache-2.0
"""SGLang's hash of a feature, without a copy where the memory allows."""

import hashlib
from typing import Any, Iterator

import numpy as np
import torch


def feature_hash(feature: Any) -> int:
    """SGLang's hash of a feature in the CPU's memory: the first 8 bytes, big-endian, of the SHA-256 of the bytes.

    feature: a tensor, an array, bytes, or a list of tensors and arrays, nested or not: the bytes of the list are the
    bytes of the items in order. Contract: SGLang's hash_feature (August 2026). TypeError: any other type; a tensor on a
    GPU, for which SGLang has another hash.
    """
    hasher = hashlib.sha256()
    for part in _parts(feature):
        hasher.update(_bytes_of(part))
    return int.from_bytes(hasher.digest()[:8], "big")


def _parts(feature: Any) -> Iterator[Any]:
    if isinstance(feature, list):
        for item in feature:
            yield from _parts(item)
    else:
        yield feature


def _bytes_of(part: Any) -> Any:
    """The bytes in C order, without a copy if the memory has that order."""
    if isinstance(part, torch.Tensor):
        if part.device.type != "cpu":
            raise TypeError(f"feature_hash takes a feature in the CPU's memory, not on {part.device}: copy it, .cpu()")
        flat = part.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    if isinstance(part, (bytes, bytearray, memoryview)):
        return part
    raise TypeError(f"feature_hash takes tensors, arrays and bytes, and lists of them, not {type(part).__name__}")
