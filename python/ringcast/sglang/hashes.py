# SPDX-License-Identifier: Apache-2.0
"""SGLang's hash of a feature, without a copy where the memory allows; what is told of a feature without hashing it."""

import ctypes
import hashlib
import os
from typing import Any, Iterable, Iterator

import numpy as np
import torch

_BLOCK = 1 << 20


def feature_hash(feature: Any) -> int:
    """SGLang's hash of a feature in the CPU's memory: the first 8 bytes, big-endian, of the SHA-256 of the bytes.

    feature: a tensor, an array, bytes, a path (the bytes of the file), or a list of these, nested or not: the bytes of
    the list are the bytes of the items in order. Contract: SGLang's hash_feature (August 2026), which takes no path.
    TypeError: any other type; a tensor on a GPU, for which SGLang has another hash. OSError: the file can't be read.
    """
    hasher = hashlib.sha256()
    for part in _parts(feature):
        if isinstance(part, os.PathLike):
            with open(part, "rb") as file:
                while block := file.read(_BLOCK):
                    hasher.update(block)
        else:
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
        return _memory_of(flat.view(torch.uint8))
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    if isinstance(part, (bytes, bytearray, memoryview)):
        return part
    raise TypeError(f"feature_hash takes tensors, arrays and bytes, and lists of them, not {type(part).__name__}")


def _memory_of(flat: torch.Tensor) -> Any:
    """As numpy(), which would forbid torch to resize the tensor's storage."""
    if not flat.nbytes:
        return b""
    memory = (ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr())
    memory.owner = flat
    return memory


# ---- Without hashing -------------------------------------------------------------------------------------------------


def nbytes_of(feature: Any) -> int:
    """Bytes that feature_hash() reads. TypeError: as feature_hash()."""
    return sum(_nbytes_of(part) for part in _parts(feature))


def _nbytes_of(part: Any) -> int:
    if isinstance(part, os.PathLike):
        return os.stat(part).st_size
    if isinstance(part, np.ndarray) or isinstance(part, torch.Tensor) and part.device.type == "cpu":
        return part.nbytes
    return memoryview(_bytes_of(part)).nbytes


def digest_of(features: Iterable[Any]) -> bytes:
    """8 bytes that are equal on all ranks for features of the same types, shapes and sizes in the same order. The
    content does not count."""
    hasher = hashlib.blake2b(digest_size=8)
    for feature in features:
        for part in _parts(feature):
            hasher.update(f"{_nbytes_of(part)} {_form_of(part)},".encode())
        hasher.update(b";")
    return hasher.digest()


def _form_of(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return str(part.dtype), tuple(part.shape)
    if isinstance(part, np.ndarray):
        return part.dtype.str, part.shape
    return "file" if isinstance(part, os.PathLike) else "bytes"
