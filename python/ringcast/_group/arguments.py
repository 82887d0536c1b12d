# SPDX-License-Identifier: Apache-2.0
"""Arguments that callers get wrong, told by name."""

import operator
from typing import Any


def whole(name: str, value: Any) -> int:
    """`value` as an int, which it must be, or what stands for one. TypeError."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r:.100}") from None
