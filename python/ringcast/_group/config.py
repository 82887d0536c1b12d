# SPDX-License-Identifier: Apache-2.0
"""Arguments, the environment, the rings that the environment asks for, and values that can't be sent: the errors of
each, and their texts."""

import errno
import math
import operator
import os
from typing import Any, Optional

import ringcast

# ---- Arguments and the environment -----------------------------------------------------------------------------------


def whole(name: str, value: Any) -> int:
    """`value` as an int, by its __index__. TypeError: it has none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r:.100}") from None


def _choice(variable: str, *choices: str) -> str:
    """What the environment says, by default the first of `choices`."""
    text = os.environ.get(variable) or choices[0]
    if text not in choices:
        raise ValueError(f"the environment's {variable} is {text!r}: it must be {' or '.join(sorted(choices))}")
    return text


def _bytes(variable: str) -> Optional[int]:
    """What the environment says. None: nothing."""
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        what = "a whole number of bytes, such as 16777216"
        raise ValueError(f"the environment's {variable} is {text!r}: it must be {what}")
    return value


def capacity() -> Optional[int]:
    """A ring's bytes. None: RINGCAST_CAPACITY is not set."""
    return _bytes("RINGCAST_CAPACITY")


def on_death() -> str:
    return _choice("RINGCAST_ON_DEATH", "fail", "evict")


def curve_is_on() -> bool:
    return _choice("RINGCAST_CURVE", "1", "0") == "1"


def gpu_is_off() -> bool:
    """Whether this process wants tensors on a CUDA device to travel as without ringcast. An invalid value is reported
    by make_writer()."""
    return os.environ.get("RINGCAST_GPU") == "0"


def most_cuda_bytes(receivers: int) -> float:
    """The most bytes of a tensor on a CUDA device that go by the ring where there is a device group, too. A single
    receiver has no gain from a collective."""
    route = _bytes("RINGCAST_GPU_ROUTE_BYTES")
    return math.inf if route is None or receivers == 1 else route / receivers


# ---- Rings -----------------------------------------------------------------------------------------------------------


def make_writer(capacity: Optional[int], readers: int, **options: Any) -> ringcast.Writer:
    """Of a ring among processes that belong together."""
    pool = 0 if _choice("RINGCAST_GPU", "1", "0") == "0" else None
    return ringcast.Writer(capacity, readers, gpu_pool_bytes=pool, wait=_wait(), **options)


def make_reader(handle: str, rank: int) -> ringcast.Reader:
    """`rank` names the reader in errors and warnings."""
    return ringcast.Reader(handle, name=name_of(rank), retain=True, wait=_wait())


def name_of(rank: int) -> str:
    return f"rank {rank}"


def _wait() -> str:
    """An engine's gaps vary by more than the default budget holds, and its own queue spins on a whole CPU. If
    RINGCAST_WAIT is set, "balanced" leaves the mode to it."""
    return "balanced" if os.environ.get("RINGCAST_WAIT") else "latency"


# ---- What can't be sent ----------------------------------------------------------------------------------------------

# Fits the smallest ring in UTF-8.
MOST_CHARACTERS = 400
# The second row is of devices; EPIPE, at the sender, is the end of a device's memory and not of a writer.
_OF_VALUES = (
    *(errno.EMSGSIZE, errno.ENOMEM, errno.ENOSPC),
    *(errno.EBUSY, errno.EIO, errno.ENODEV, errno.ENOTSUP, errno.EPIPE),
)


def is_of_value(error: Exception) -> bool:
    """Whether the value can't be sent, for its type, its size or a device's failure. If not, the ring or a peer has
    failed, and the ring itself reports that to the receivers."""
    if isinstance(error, ringcast.Error) and not isinstance(error, ringcast.PickleRefused):
        return error.errno in _OF_VALUES
    return True


def name_setting(error: Exception, where: str, what: str = "ring", capacity: bool = True) -> Exception:
    """The same error; an error of size with the setting to change `where` before `what` is made.

    capacity: whether RINGCAST_CAPACITY counts there.
    """
    if not isinstance(error, ringcast.FrameTooLarge) or error.spill_bytes is None:
        return error
    too_large = str(error).partition(":")[0]
    how = f"set RINGCAST_SPILL_BYTES {where} to at least {error.spill_bytes}"
    if capacity and error.capacity is not None:
        how += f", or RINGCAST_CAPACITY to at least {error.capacity},"
    named = ringcast.FrameTooLarge(error.errno, f"{too_large}: {how} before the {what} is made")
    named.spill_bytes, named.capacity = error.spill_bytes, error.capacity
    return named


def text_of(operation: str, rank: int, error: BaseException) -> str:
    """What the receivers are sent for an error. Any error has a text here, one that can be encoded."""
    try:
        why = str(error)
    except Exception:
        why = "(the error has no readable text)"
    text = f"{operation} failed at the source, rank {rank}: {type(error).__name__}: {why}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
