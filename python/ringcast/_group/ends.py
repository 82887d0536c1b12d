# SPDX-License-Identifier: Apache-2.0
"""The two ends of a ring among the ranks of a group: each frame carries the operation and the number of the call, so
that ranks which don't make the same calls hear of it."""

import contextlib
import errno
import time
import warnings
from typing import Any, NoReturn, Optional, Union

import ringcast

# How long the source goes on without looking whether the others live: a look is a system call.
LOOK_SECONDS = 0.05
# How long it waits for room before it looks again, or gives up telling of a death: who leaves no room may be waiting
# for the dead, and never make any.
_TELL_SECONDS = 1.0
# A tag is the operation's number, then the number of the call.
_OPERATIONS = (
    None,
    "broadcast_tensor_dict",
    "broadcast_object",
    "broadcast_object_list",
    "broadcast_pyobj",
    "share_once",
    "broadcast",
)
TENSOR_DICT, OBJECT, OBJECT_LIST, PYOBJ, SHARE, TENSOR = range(1, 7)
_CALL_BITS = 24
_CALL_MASK = (1 << _CALL_BITS) - 1
# Fits the smallest of rings in UTF-8.
_ERROR_CHARACTERS = 400


class Source:
    """The end of the rank that sends."""

    def __init__(self, writer: ringcast.Writer, rank: int, goes_on: bool) -> None:
        self.end = writer
        self._rank = rank
        self._call = 0
        self._goes_on = goes_on
        self._next_look = 0.0

    def send(self, value: Any, operation: int, kind: type = object) -> None:
        tag = operation << _CALL_BITS | self._call
        if time.monotonic() >= self._next_look:
            self._look(operation, tag)
        try:
            if not isinstance(value, kind):
                raise TypeError(f"the source must give a {kind.__name__}, not {type(value).__name__}")
            self.end.send(value, tag=tag)
        except ringcast.ReaderDied:
            self._look(operation, tag)
            raise
        except ringcast.FrameTooLarge as error:
            named = self._name_knob(error)
            self._tell(named, operation, tag)
            raise named from None
        except ringcast.Error as error:
            # Of spill memory, or of what was given; the ring goes on.
            if error.errno in (errno.ENOMEM, errno.ENOSPC) or isinstance(error, ringcast.PickleRefused):
                self._tell(error, operation, tag)
            raise  # else it is the ring that fails, and the others hear of that from the ring
        except Exception as error:
            self._tell(error, operation, tag)
            raise
        self._call = (self._call + 1) & _CALL_MASK

    def _look(self, operation: int, tag: int) -> None:
        """Whether the other ranks live. After a failure the next call looks again."""
        while (lost := self.end.check()) is not None:
            who = f"{lost.name} (pid {lost.pid}) "
            who += "has died" if lost.state == "dead" else "lives, but has written into the ring what it must not"
            if self._goes_on:
                warnings.warn(f"{who}: the broadcasts go on without it", RuntimeWarning, stacklevel=4)
                continue
            error = ringcast.ReaderDied(
                errno.EOWNERDEAD, f"{who}: make a new group without it. (RINGCAST_ON_DEATH=evict would go on.)"
            )
            with contextlib.suppress(TimeoutError, ringcast.Error):  # it may hold the ring back already
                self._tell(error, operation, tag, _TELL_SECONDS)
            raise error
        self._next_look = time.monotonic() + LOOK_SECONDS

    def _name_knob(self, error: ringcast.FrameTooLarge) -> ringcast.FrameTooLarge:
        """The same error, with the setting that is to be changed here."""
        if error.spill_bytes is None:
            return error
        what = str(error).partition(":")[0]
        how = f"set RINGCAST_SPILL_BYTES on rank {self._rank} to at least {error.spill_bytes}"
        if error.capacity is not None:
            how += f", or RINGCAST_CAPACITY to at least {error.capacity},"
        named = ringcast.FrameTooLarge(error.errno, f"{what}: {how} before the ring is made")
        named.spill_bytes, named.capacity = error.spill_bytes, error.capacity
        return named

    def _tell(self, error: Exception, operation: int, tag: int, timeout: Optional[float] = None) -> None:
        """Give the others, who wait for this call, the error instead."""
        text = f"{_OPERATIONS[operation]} failed at the source, rank {self._rank}: {type(error).__name__}: {error}"
        if len(text) > _ERROR_CHARACTERS:
            text = text[: _ERROR_CHARACTERS - 3] + "..."
        self.end.send_error(text, timeout, tag=tag)
        self._call = (self._call + 1) & _CALL_MASK


class Receiver:
    """The end of a rank that receives."""

    def __init__(self, reader: ringcast.Reader, rank: int, source: int) -> None:
        self.end = reader
        self.source = source
        self._rank = rank
        self._call: Optional[int] = 0  # None: the last one failed before or after its frame was taken, who knows

    def receive(self, operation: int) -> Any:
        expected, self._call = self._call, None
        try:
            value, tag = self.end.recv_tagged()
        except (ringcast.SendError, ringcast.PickleRefused):
            self._call = None if expected is None else (expected + 1) & _CALL_MASK
            raise
        except ringcast.WriterGone:
            self.end.close()  # the next use makes a new ring
            raise
        call = tag & _CALL_MASK
        self._call = (call + 1) & _CALL_MASK
        if tag >> _CALL_BITS != operation or call != (call if expected is None else expected):
            self._raise_mismatch(operation, expected, tag)
        return value

    def _raise_mismatch(self, operation: int, expected: Optional[int], tag: int) -> NoReturn:
        number = tag >> _CALL_BITS
        theirs = _OPERATIONS[number] if 0 < number < len(_OPERATIONS) else f"something else (tag {tag:#x})"
        mine = _OPERATIONS[operation]
        raise RuntimeError(
            f"mismatched ranks: call {tag & _CALL_MASK} of the source, rank {self.source}, was {theirs}; here, on rank "
            f"{self._rank}, call {'?' if expected is None else expected} is {mine}: all ranks must make the same calls "
            "in the same order"
        )


End = Union[Source, Receiver]
