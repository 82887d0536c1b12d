# SPDX-License-Identifier: Apache-2.0
"""What the environment says of rings among ranks. ValueError: it says what it must not."""

import contextlib
import os
from typing import Optional


def capacity() -> Optional[int]:
    """A ring's bytes. None: it is not set."""
    text = os.environ.get("RINGCAST_CAPACITY")
    if not text:
        return None
    with contextlib.suppress(ValueError):
        value = int(text)
        if value >= 1:
            return value
    what = "a whole number of bytes, such as 16777216"
    raise ValueError(f"the environment's RINGCAST_CAPACITY is {text!r}: it must be {what}")


def on_death() -> str:
    policy = os.environ.get("RINGCAST_ON_DEATH") or "fail"
    if policy not in ("fail", "evict"):
        raise ValueError(f"the environment's RINGCAST_ON_DEATH is {policy!r}: it must be fail or evict")
    return policy
