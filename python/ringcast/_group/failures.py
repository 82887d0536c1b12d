# SPDX-License-Identifier: Apache-2.0
"""What can't be sent: the error that is raised at the source, and the text that the others are given for it."""

import errno

import ringcast

# Fits the smallest of rings in UTF-8.
_MOST_CHARACTERS = 400
# The second row is of a device; EPIPE, at who sends, is its memory's end, and not a writer's.
_OF_VALUES = (
    *(errno.EMSGSIZE, errno.ENOMEM, errno.ENOSPC),
    *(errno.EBUSY, errno.EIO, errno.ENODEV, errno.ENOTSUP, errno.EPIPE),
)


def is_of_value(error: Exception) -> bool:
    """Whether it is what was given that can't be sent, or memory that lacks, or a device that fails; else it is the
    ring or the peer that fails, of which the others hear from these."""
    if isinstance(error, ringcast.Error) and not isinstance(error, ringcast.PickleRefused):
        return error.errno in _OF_VALUES
    return True


def name_knob(error: Exception, where: str, what: str = "ring", capacity: bool = True) -> Exception:
    """The same error; if it is one of size, with the setting that is to be changed `where`, before `what` is made.

    capacity: whether RINGCAST_CAPACITY is looked at there.
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


def told(operation: str, rank: int, error: BaseException) -> str:
    """Whatever the error is, some text, and one that can be encoded: the others wait for it."""
    try:
        why = str(error)
    except Exception:
        why = "(its text can't be had)"
    text = f"{operation} failed at the source, rank {rank}: {type(error).__name__}: {why}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
