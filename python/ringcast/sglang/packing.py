# SPDX-License-Identifier: Apache-2.0
"""Packing that refuses nothing which SGLang's pickle would take."""

import pickle
from typing import Any, Optional, Tuple

import ringcast


def pack(value: Any, hash: Optional[str] = None) -> ringcast.PackedFrame:
    """As ringcast.pack(); a value with tensors on another device goes as a pickle as a whole, with no hashes."""
    try:
        return ringcast.pack(value, hash=hash)
    except TypeError:
        return ringcast.pack(_ByPickle(value))


class _ByPickle:
    """Arrives as what it was made of, by pickle alone; where pickles are turned off it is refused like any other."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Tuple[Any, ...]:
        return pickle.loads, (pickle.dumps(self._value),)
