# SPDX-License-Identifier: Apache-2.0
"""Hashes of features that have been hashed before: the same tensor object, or the same file. Only share_hash(...,
remember=True) asks here, since not every change can be seen.

A tensor is known by object (a weak reference), address, version counter, shape, strides and dtype. torch counts each
change in place in the version counter, through any view. Writes that pass torch by are not counted, so a tensor is
remembered only while torch alone can write: torch marks the storage of a tensor that NumPy, a buffer or another process
also sees as not resizable, and such a tensor is hashed anew each time. So are arrays and bytearrays, which count
nothing. What nothing marks or counts: receiving into the tensor by torch.distributed, writes to its untyped_storage(),
`tensor.data`, `torch.Tensor.set_()` of another tensor to its storage, DLPack, a raw address. After such a change give a
clone.

A file is known by path, device, inode, size, and times of modification and change. A file that has changed within
_SETTLED seconds is not remembered: a second change in the same tick of the clock would look the same. Writes through
a shared mapping may leave the times as they are.
"""

import os
import time
import weakref
from collections import OrderedDict
from typing import Any, Optional, Tuple

import torch

_MOST = 1024
_SETTLED = 2.0


def identity_of(feature: Any) -> Optional[Tuple[Any, ...]]:
    """Equal for the same content. None: unknown, as after a change nothing here would differ."""
    if isinstance(feature, torch.Tensor):
        return _identity_of_tensor(feature)
    if isinstance(feature, os.PathLike):
        return _identity_of_file(feature)
    return None


def _identity_of_tensor(tensor: torch.Tensor) -> Optional[Tuple[Any, ...]]:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_inference():
        return None
    if not tensor.untyped_storage().resizable():
        return None
    return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg()


def _identity_of_file(path: "os.PathLike[Any]") -> Optional[Tuple[Any, ...]]:
    facts = os.stat(path)
    if time.time() - max(facts.st_mtime, facts.st_ctime) < _SETTLED:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


class Cache:
    """The latest _MOST hashes."""

    def __init__(self) -> None:
        self._known: "OrderedDict[Any, Tuple[Any, Any, int]]" = OrderedDict()

    def get(self, feature: Any) -> Optional[int]:
        found = self._known.get(_key_of(feature))
        if found is None or found[0] is not None and found[0]() is not feature:
            return None
        if found[1] != identity_of(feature):
            return None
        return found[2]

    def put(self, feature: Any, identity: Optional[Tuple[Any, ...]], hash: int) -> None:
        """identity: identity_of(feature), from before the hashing. Nothing is kept if the feature has changed since."""
        if identity is None or identity != identity_of(feature):
            return
        key = _key_of(feature)
        alive = weakref.ref(feature, lambda _: self._known.pop(key, None)) if isinstance(key, int) else None
        self._known[key] = (alive, identity, hash)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)


def _key_of(feature: Any) -> Any:
    return os.path.abspath(feature) if isinstance(feature, os.PathLike) else id(feature)
