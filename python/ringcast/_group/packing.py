# SPDX-License-Identifier: Apache-2.0
"""Packing that refuses nothing which the pickle of those that are stood in for would take."""

import pickle
import sys
from typing import Any, Dict, Optional, Tuple

import ringcast


def pack(value: Any, hash: Optional[str] = None) -> ringcast.PackedFrame:
    """As ringcast.pack(); a value with tensors on a device that is no CUDA one goes as a pickle as a whole, with no
    hashes."""
    try:
        return ringcast.pack(value, hash=hash)
    except TypeError as refused:
        try:
            pickled = _Pickled(pickle.dumps(value))
        except Exception:
            raise refused from None
        return ringcast.pack(pickled)


def may_pack(tensor_dict: Dict[Any, Any]) -> bool:
    """Whether the original functions pickle what the dict was refused for: anything inside its values, but no tensor
    that is a value itself."""
    torch = sys.modules["torch"]
    return not any(
        isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "cuda") for value in tensor_dict.values()
    )


class _Pickled:
    """Arrives as what it was made of, by pickle alone; where pickles are turned off it is refused like any other."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Tuple[Any, ...]:
        return pickle.loads, (self._data,)
