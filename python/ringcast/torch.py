# SPDX-License-Identifier: Apache-2.0
"""Broadcasts among the ranks of a torch.distributed group, through shared memory.

    from ringcast.torch import broadcast_tensor_dict
    inputs = broadcast_tensor_dict(inputs if rank == 0 else None, src=0, group=tp_group)

The functions have the contracts of vLLM's GroupCoordinator (parallel_state.py, August 2026). Each (group, src) has a
ring of its own, made when it is first used, by one exchange over the group itself; every rank of the group must take
part in that call. From then on torch.distributed is not touched. The source goes on at once; it waits only when the
slowest rank is a whole ring behind.

All ranks must make the same calls in the same order, as with every collective; a frame carries the operation and the
number of the call, and a rank that finds another one than its own raises RuntimeError. When the source can't send what
it was given, it raises what was wrong, every other rank raises ringcast.SendError with the same text, and the next call
works again. When the source closes its ring, or exits, the others get ringcast.WriterGone; when another rank dies, the
source gets ringcast.ReaderDied.

A group's rings go when it is destroyed, or by close(). In a forked child they raise ringcast.ForkedError.

None of the calls takes a timeout: a rank that is stopped, or a source that skips a call, blocks those who wait for it,
as in any collective.

Environment, looked at by the source when it makes a ring: RINGCAST_CAPACITY, its bytes (default: the Writer's);
RINGCAST_MEMORY, the kind of its memory (hugetlb, shmem-huge or pages; default: the first that can be had);
RINGCAST_SPILL_BYTES, the most memory for what is too large for the ring (0: none; default: the Writer's);
RINGCAST_ATTACH_TIMEOUT, the seconds that the other ranks have to attach (default 60). Looked at by every rank:
RINGCAST_ALLOW_PICKLE; 0 refuses what needs a pickle, on the source as what can't be sent, elsewhere by raising
ringcast.PickleRefused, after which the next call works. (The exchange of the first call is torch.distributed's own.)

RINGCAST_ON_DEATH, looked at by the source when it makes a ring: what a broadcast does when another rank has died.
"fail" (the default) raises ringcast.ReaderDied, which names the rank, and ringcast.SendError on the other ranks, at
this and all later calls; "evict" warns once, and goes on without that rank. The source looks at most every 50 ms, when
it is called; while it waits for room, the ring does.
"""

import atexit
import contextlib
import errno
import operator
import os
import platform
import time
import warnings
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, TypeVar, Union

import torch.distributed as dist

import ringcast

__all__ = ["broadcast_object", "broadcast_object_list", "broadcast_tensor_dict", "close", "rings"]

_ATTACH_TIMEOUT = 60.0
_SLOTS = 64
# How long the source goes on without looking whether the others live: a look is a system call.
_LOOK_SECONDS = 0.05
# How long it waits for room before it looks again, or gives up telling of a death: who leaves no room may be waiting
# for the dead, and never make any.
_TELL_SECONDS = 1.0
# A tag is the operation's number, then the number of the call.
_OPERATIONS = (None, "broadcast_tensor_dict", "broadcast_object", "broadcast_object_list")
_TENSOR_DICT, _OBJECT, _OBJECT_LIST = 1, 2, 3
_CALL_BITS = 24
_CALL_MASK = (1 << _CALL_BITS) - 1
# Fits the smallest of rings in UTF-8.
_ERROR_CHARACTERS = 400

_Number = TypeVar("_Number", int, float)


def broadcast_tensor_dict(
    tensor_dict: Optional[Dict[Any, Any]] = None,
    src: int = 0,
    group: Any = None,
    metadata_group: Any = None,
) -> Optional[Dict[Any, Any]]:
    """Broadcast a dict of tensors and other values from `src`, a rank in `group`.

    The source gets `tensor_dict` itself back, every other rank a new dict with the keys in the same order; what it gave
    as `tensor_dict` is not looked at. Tensors arrive equal in dtype, shape, values and requires_grad, contiguous,
    writable, and alias nothing. Values may be any object that can be pickled, with tensors in it.

    group: a ProcessGroup, or None for the default group. metadata_group: a CPU group of the same ranks, which the
    exchange of the first call takes instead of `group`.
    Without torch.distributed initialised, or in a group of one rank, the input is returned.

    TypeError: not a dict on the source, or a tensor in it that is not on the CPU. ValueError: `src` is no rank of the
    group, or this process is not in it. Others as in this module's docstring. Contract: vLLM's
    GroupCoordinator.broadcast_tensor_dict (August 2026).
    """
    ring = _ring(group, src, metadata_group)
    if ring is None:
        return tensor_dict
    if isinstance(ring, _Source):
        ring.send(tensor_dict, _TENSOR_DICT, dict)
        return tensor_dict
    received: Dict[Any, Any] = ring.receive(_TENSOR_DICT)
    return received


def broadcast_object(obj: Optional[Any] = None, src: int = 0, group: Any = None) -> Any:
    """Broadcast any object that can be pickled from `src`, a rank in `group`; return it on every rank.

    The source gets `obj` itself back, every other rank an equal object of its own. Arguments and errors as
    broadcast_tensor_dict. Contract: vLLM's GroupCoordinator.broadcast_object (August 2026).
    """
    ring = _ring(group, src)
    if ring is None:
        return obj
    if isinstance(ring, _Source):
        ring.send(obj, _OBJECT)
        return obj
    return ring.receive(_OBJECT)


def broadcast_object_list(obj_list: List[Any], src: int = 0, group: Any = None) -> List[Any]:
    """Broadcast the elements of a list from `src`, a rank in `group`; fill `obj_list` with them in place and return it.

    ValueError: the list is not as long as the source's; it stays as it was, and the next call works. TypeError: not a
    list. Arguments and other errors as broadcast_tensor_dict. Contract: vLLM's GroupCoordinator.broadcast_object_list
    (August 2026).
    """
    ring = _ring(group, src)
    if ring is None:
        return obj_list
    if isinstance(ring, _Source):
        ring.send(obj_list, _OBJECT_LIST, list)
        return obj_list
    received = ring.receive(_OBJECT_LIST)  # whatever is wrong with obj_list: this call's frame is this call's
    if not isinstance(obj_list, list):
        raise TypeError(f"broadcast_object_list needs a list to fill, not {type(obj_list).__name__}")
    if len(obj_list) != len(received):
        raise ValueError(
            f"the source, rank {ring.source}, broadcast a list of {len(received)}, but the list to be filled here has "
            f"{len(obj_list)}: give one of the same length"
        )
    obj_list[:] = received
    return obj_list


def close(group: Any = None) -> None:
    """Close this process's rings of `group` (None: the default group); the next use makes new ones.

    Call it on all ranks of the group. What the source has sent is still received by those who have not closed.
    """
    ends = _ends(group)
    for ring in ends.values():
        ring.end.close()
    ends.clear()


def rings(group: Any = None) -> Dict[int, Union[ringcast.Writer, ringcast.Reader]]:
    """This process's end of each ring of `group` made so far, by src: to look at (memory, lag, readers), not to use."""
    return {src: ring.end for src, ring in _ends(group).items()}


# ---- The two ends of a ring ------------------------------------------------------------------------------------------


class _Source:
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
        self._next_look = time.monotonic() + _LOOK_SECONDS

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


class _Receiver:
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


_End = Union[_Source, _Receiver]

# Group -> src -> end. A group's entry goes with the group.
_rings: "weakref.WeakKeyDictionary[Any, Dict[int, _End]]" = weakref.WeakKeyDictionary()


def _ends(group: Any) -> Dict[int, _End]:
    group = _default_group() if group is None else group
    return _rings.get(group, {}) if dist.is_available() and isinstance(group, dist.ProcessGroup) else {}


def _close_all() -> None:
    for ends in list(_rings.values()):
        for ring in ends.values():
            ring.end.close()


atexit.register(_close_all)


# ---- Finding it, or making it ----------------------------------------------------------------------------------------


def _default_group() -> Any:
    """None: there is none."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _ring(group: Any, src: int, metadata_group: Any = None) -> Optional[_End]:
    """This rank's end of the ring of (group, src). None: there is nobody to broadcast to."""
    try:
        src = operator.index(src)
    except TypeError:
        raise TypeError(f"src must be an int, a rank in the group, not {type(src).__name__}") from None
    default = _default_group()
    if default is None:
        return None
    if group is None:
        group = default
    elif not isinstance(group, dist.ProcessGroup):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"this process, rank {dist.get_rank()}, is not in the group")
        raise TypeError(f"group must be a torch.distributed.ProcessGroup or None, not {type(group).__name__}")
    ends = _rings.get(group)
    ring = ends.get(src) if ends else None
    if ring is not None and not ring.end.closed:
        return ring
    size = group.size()
    if size == 1:
        return None
    if not 0 <= src < size:
        raise ValueError(f"src is a rank in the group, from 0 to {size - 1}, not {src}")
    ring = _make_ring(group, src, metadata_group)
    _rings.setdefault(group, {})[src] = ring
    return ring


def _make_ring(group: Any, src: int, metadata_group: Any) -> _End:
    ranks = dist.get_process_group_ranks(group)
    if metadata_group is None:
        metadata_group = group
    elif dist.get_process_group_ranks(metadata_group) != ranks:
        raise ValueError("metadata_group must have the same ranks as group, in the same order")
    if group.rank() == src:
        return _make_source(ranks, src, metadata_group)
    everyone = _exchange(ranks, src, metadata_group)
    if everyone[src]["error"]:
        raise RuntimeError(f"the source, rank {ranks[src]}, could not make the ring: {everyone[src]['error']}")
    rank = dist.get_rank()
    return _Receiver(ringcast.Reader(everyone[src]["handle"], name=_reader_name(rank)), rank, ranks[src])


def _make_source(ranks: List[int], src: int, metadata_group: Any) -> _Source:
    """Whatever goes wrong before the exchange is told in it: the others wait there."""
    writer = failure = None
    on_death = "fail"
    try:
        timeout = _from_environment("RINGCAST_ATTACH_TIMEOUT", float, 0, "seconds, 0 or more, such as 60")
        timeout = _ATTACH_TIMEOUT if timeout is None else timeout
        capacity = _from_environment("RINGCAST_CAPACITY", int, 1, "a whole number of bytes, such as 16777216")
        on_death = os.environ.get("RINGCAST_ON_DEATH") or "fail"
        if on_death not in ("fail", "evict"):
            raise ValueError(f"the environment's RINGCAST_ON_DEATH is {on_death!r}: it must be fail or evict")
        writer = ringcast.Writer(capacity, max(_SLOTS, len(ranks) - 1), on_death=on_death)
    except Exception as error:
        failure = error
    try:
        _exchange(ranks, src, metadata_group, writer, failure)
        if failure is not None:
            raise failure
        assert writer is not None
        _wait_readers(writer, [rank for rank in ranks if rank != ranks[src]], timeout)
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    return _Source(writer, ranks[src], on_death == "evict")


def _from_environment(name: str, convert: Callable[[str], _Number], least: int, what: str) -> Optional[_Number]:
    """None: it is not set."""
    text = os.environ.get(name)
    if not text:
        return None
    with contextlib.suppress(ValueError):
        value = convert(text)
        if value >= least:  # nor is it NaN
            return value
    raise ValueError(f"the environment's {name} is {text!r}: it must be {what}")


def _exchange(
    ranks: List[int],
    src: int,
    group: Any,
    writer: Optional[ringcast.Writer] = None,
    failure: Optional[Exception] = None,
) -> List[Dict[str, Any]]:
    """Tell all ranks what this one is about, hear the same of them, and see that it fits together; all see the same."""
    mine = {
        "src": src,
        "version": ringcast.__version__,
        "machine": _machine(),
        "pid": os.getpid(),
        "handle": writer.handle if writer is not None else None,
        "error": f"{type(failure).__name__}: {failure}" if failure is not None else None,
    }
    everyone: List[Any] = [None] * len(ranks)
    dist.all_gather_object(everyone, mine, group=group)
    for key, what in ("version", "ringcast is version"), ("src", "src is"), ("machine", "the machine (its boot id) is"):
        _check_same(key, what, ranks, everyone)
    return everyone


def _machine() -> str:
    """The boot id: machines may share a name, and containers of one machine have names of their own."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


def _check_same(key: str, what: str, ranks: List[int], everyone: List[Dict[str, Any]]) -> None:
    by_value: Dict[Any, List[str]] = {}
    for rank, theirs in zip(ranks, everyone):
        by_value.setdefault(theirs[key], []).append(f"{rank} (pid {theirs['pid']})")
    if len(by_value) == 1:
        return
    parts = [
        f"{value} on {'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}" for value, names in by_value.items()
    ]
    raise RuntimeError(f"mismatched ranks: {what} " + ", but ".join(parts) + "; it must be the same on all of them")


def _reader_name(rank: int) -> str:
    return f"rank {rank}"


def _wait_readers(writer: ringcast.Writer, ranks: List[int], timeout: Optional[float]) -> None:
    try:
        writer.wait_readers(len(ranks), timeout)
    except TimeoutError:
        came = {reader.name for reader in writer.readers() if reader.state == "active"}
        missing = [name for name in map(_reader_name, ranks) if name not in came]
        raise TimeoutError(
            f"{len(ranks) - len(missing)} of {len(ranks)} ranks attached to the ring within {timeout} s; missing: "
            f"{', '.join(missing)}. What kept them is in their own output"
        ) from None
