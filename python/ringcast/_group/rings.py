# SPDX-License-Identifier: Apache-2.0
"""The rings of torch.distributed groups: one for each (group, stream, src), made when it is first used.

The exchange that makes one is a collective of all ranks of the group; from then on torch.distributed is not touched.
A group's rings go when it is destroyed.
"""

import atexit
import contextlib
import operator
import os
import platform
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

import torch.distributed as dist

import ringcast
from ringcast._group.ends import End, Receiver, Source

_ATTACH_TIMEOUT = 60.0
_SLOTS = 64

_Number = TypeVar("_Number", int, float)

# Group -> (stream, src) -> end. A group's entry goes with the group.
_rings: "weakref.WeakKeyDictionary[Any, Dict[Tuple[str, int], End]]" = weakref.WeakKeyDictionary()


def ends(group: Any) -> Dict[Tuple[str, int], End]:
    """This process's ends of the rings of `group` made so far, by (stream, src)."""
    group = _default_group() if group is None else group
    return _rings.get(group, {}) if dist.is_available() and isinstance(group, dist.ProcessGroup) else {}


def close(group: Any) -> None:
    of_group = ends(group)
    for ring in of_group.values():
        ring.close()
    of_group.clear()


def _close_all() -> None:
    for of_group in list(_rings.values()):
        for ring in of_group.values():
            ring.close()


atexit.register(_close_all)


# ---- Finding it, or making it ----------------------------------------------------------------------------------------


def _default_group() -> Any:
    """None: there is none."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def end_of(group: Any, src: int, metadata_group: Any = None, stream: str = "broadcast") -> Optional[End]:
    """This rank's end of the ring of (group, stream, src). None: there is nobody to broadcast to.

    group: a ProcessGroup, or None for the default one. stream: what is sent on one is in no order with another's.
    """
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
    made = _rings.get(group)
    ring = made.get((stream, src)) if made else None
    if ring is not None and (not ring.end.closed or ring.lost is not None):
        return ring
    size = group.size()
    if size == 1:
        return None
    if not 0 <= src < size:
        raise ValueError(f"src is a rank in the group, from 0 to {size - 1}, not {src}")
    ring = _make_ring(group, src, metadata_group)
    _rings.setdefault(group, {})[stream, src] = ring
    return ring


def _make_ring(group: Any, src: int, metadata_group: Any) -> End:
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
    reader = ringcast.Reader(everyone[src]["handle"], name=_reader_name(rank))
    return Receiver(reader, rank, ranks[src], {each: theirs["pid"] for each, theirs in zip(ranks, everyone)})


def _make_source(ranks: List[int], src: int, metadata_group: Any) -> Source:
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
    return Source(writer, ranks[src], on_death == "evict")


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
