# SPDX-License-Identifier: Apache-2.0
"""Packing as far as the replaced functions can pickle."""

import pickle
import sys
from typing import Any, Dict, Optional, Tuple

import ringcast
from ringcast._ringcast import _pack_of_cpu


def pack_typed(value: Any, takes_cuda: bool, hash: Optional[str] = None) -> ringcast.PackedFrame:
    """
    As ringcast.pack(). takes_cuda: else tensors on a CUDA device are refused (TypeError), as on any
    other device.
    """
    return ringcast.pack(value, hash=hash) if takes_cuda else _pack_of_cpu(value, hash)


def pack(value: Any, takes_cuda: bool, hash: Optional[str] = None) -> ringcast.PackedFrame:
    """As pack_typed(); a value with tensors that are refused goes as a pickle as a whole, without
    hashes."""
    try:
        return pack_typed(value, takes_cuda, hash)
    except TypeError as refused:
        try:
            pickled = _Pickled(pickle.dumps(value))
        except Exception:
            raise refused from None
        return ringcast.pack(pickled)


def may_pack(tensor_dict: Dict[Any, Any]) -> bool:
    """Whether the replaced functions pickle the refused part of a dict: anything inside the values,
    but no value that is a tensor."""
    torch = sys.modules["torch"]
    return not any(
        isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "cuda")
        for value in tensor_dict.values()
    )


class _Pickled:
    """Arrives as the pickled value. A receiver without pickles refuses the frame."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Tuple[Any, ...]:
        return pickle.loads, (self._data,)
