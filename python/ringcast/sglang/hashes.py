# SPDX-License-Identifier: Apache-2.0
"""The hashes of features, as SGLang's and as ringcast's frames have them, without a copy where it can be had."""

import hashlib
from typing import Any, Iterator, Optional

import numpy as np
import torch

import ringcast

# A dict of more may travel as one value and is then hashed as one; and the encoder looks through a long list sooner.
_MOST_ITEMS = 64
# NumPy's long doubles go by its own pickle.
_KINDS, _LONG_DOUBLES = "biufc", "gG"
_PLAIN = (type(None), bool, int, float, str, bytes)


def feature_hash(feature: Any) -> int:
    """SGLang's hash of a feature in the CPU's memory: the first 8 bytes, big-endian, of the SHA-256 of its bytes.

    feature: a tensor, an array, bytes, or a list of tensors and arrays, nested or not, which counts as their bytes one
    after the other. Contract: SGLang's hash_feature (August 2026). TypeError: anything else; a tensor on a GPU, for
    which SGLang has another hash.
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
    """Its bytes in C order: its own memory, if they lie there so."""
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


# ---- As Frame.hashes -------------------------------------------------------------------------------------------------


def hashes_of(value: Any, hash: Optional[str]) -> Any:
    """What Frame.hashes would be of `value`, sent with this hash."""
    if hash == "sha256" and _is_simple(value):
        if isinstance(value, dict):
            return {key: found for key, item in value.items() if (found := _hashes_in(item)) not in (None, [])}
        found = _hashes_in(value)
        return None if found == [] else found
    return None if hash is None else ringcast.pack(value, hash=hash).hashes


def _is_simple(value: Any) -> bool:
    """Whether it is a tensor or array, a list of them, or a dict of such: what can be walked here as well. Of anything
    else the encoder alone knows how it travels."""
    if type(value) is dict:
        return len(value) <= _MOST_ITEMS and all(type(key) is str and _is_flat(item) for key, item in value.items())
    return _is_flat(value)


def _is_flat(item: Any) -> bool:
    if type(item) in (list, tuple):
        return len(item) <= _MOST_ITEMS and all(_is_leaf(part) for part in item)
    return _is_leaf(item)


def _is_leaf(item: Any) -> bool:
    if type(item) is torch.Tensor:
        return bool(item.device.type == "cpu" and item.layout is torch.strided and not item.is_quantized)
    if type(item) is np.ndarray:
        return item.dtype.isnative and item.dtype.kind in _KINDS and item.dtype.char not in _LONG_DOUBLES
    return type(item) in _PLAIN


def _hashes_in(item: Any) -> Any:
    if isinstance(item, (torch.Tensor, np.ndarray)):
        return feature_hash(item)
    if isinstance(item, (list, tuple)):
        return [feature_hash(part) for part in item if isinstance(part, (torch.Tensor, np.ndarray))]
    return None
