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


def gpu_is_off() -> bool:
    """Whether tensors on a CUDA device are to go as without ringcast, as far as it depends on this process. What is
    wrong with it is told where a ring is made: nothing is raised here."""
    return os.environ.get("RINGCAST_GPU") == "0"


def gpu_pool_bytes() -> Optional[int]:
    """A ring's memory on the device: 0, none, or None, what the Writer takes."""
    text = os.environ.get("RINGCAST_GPU") or "1"
    if text not in ("0", "1"):
        raise ValueError(f"the environment's RINGCAST_GPU is {text!r}: it must be 0 or 1")
    return 0 if text == "0" else None


def on_death() -> str:
    policy = os.environ.get("RINGCAST_ON_DEATH") or "fail"
    if policy not in ("fail", "evict"):
        raise ValueError(f"the environment's RINGCAST_ON_DEATH is {policy!r}: it must be fail or evict")
    return policy
