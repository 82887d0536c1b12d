# SPDX-License-Identifier: Apache-2.0
"""The rings of torch.distributed groups: one for each (group, stream, src), made at the first use.

The exchanges that make a ring of a broadcast are collectives of all ranks of the group; later calls
use torch.distributed only if the group spans machines. p2p.py makes the rings between two ranks. A
group's rings go with the group.
"""

import atexit
import contextlib
import operator
import os
import platform
import secrets
import sys
import warnings
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch.distributed as dist

import ringcast
from ringcast._group import config, devices, names, torch_transport
from ringcast._group.endpoint import End, Receiver, Source
from ringcast._group.ranks import Ranks, global_ranks

_SLOTS = 64
# The stream of broadcasts, which ranks receive in lock-step: the source may be only a few frames
# ahead.
BROADCAST = "broadcast"

# Group -> (stream, src) -> end, or of p2p.py: ("to" or "from", the peer) -> end. An entry goes with
# the group.
_rings: "weakref.WeakKeyDictionary[Any, Dict[Tuple[str, int], Any]]" = weakref.WeakKeyDictionary()
# (id(group), stream, src) -> the same end, for each call's look: a look into _rings makes a weak
# reference, which takes longer than all else. The entries of a group go with the group, before
# another object can have the id.
_found: Dict[Tuple[int, str, int], End] = {}
# The groups in whose exchanges a thread is: torch.distributed would mix two threads' exchanges up.
_making: Dict[Any, object] = {}
# Of new rings, as prepare() was told: what follows a rank's death.
policies: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_HAS_GROUPS = dist.is_available()


def ends(group: Any) -> Dict[Tuple[str, int], Any]:
    """This process's ends of the rings of `group`, a ProcessGroup, made so far."""
    made = _rings.get(group)
    if made is None:
        made = _rings.setdefault(group, {})  # another thread may be here too
        weakref.finalize(group, _forget, id(group)).atexit = False
        trace = sys.modules.get("ringcast.trace")
        if trace is not None:
            trace.note_rank()
    return made


def _forget(group_id: int) -> None:
    for key in list(_found):  # other threads may be adding keys
        if key[0] == group_id:
            _found.pop(key, None)


def ends_if_any(group: Any) -> Dict[Tuple[str, int], Any]:
    """The same for any argument: for None the ends of the default group."""
    group = _default_group() if group is None else group
    return (
        _rings.get(group, {})
        if dist.is_available() and isinstance(group, dist.ProcessGroup)
        else {}
    )


def close(group: Any) -> None:
    """
    Close this process's ends; frames in an outbox of p2p.py are lost. All ranks call this, with no
    call under way.
    """
    made, failure = ends_if_any(group), None
    _forget(id(_default_group() if group is None else group))
    while made:
        try:
            made.popitem()[1].close()
        except RuntimeError as error:  # another thread is in a call; go on with the next end
            failure = failure or error
    if failure is not None:
        raise failure


def _close_all() -> None:
    for group in list(_rings):
        with contextlib.suppress(RuntimeError):
            close(group)


atexit.register(_close_all)


# ---- Finding a ring, or making one ---------------------------------------------------------------


def _default_group() -> Any:
    """None: torch.distributed is not initialised."""
    return dist.group.WORLD if _HAS_GROUPS else None


def end_of(
    group: Any,
    src: int,
    metadata_group: Any = None,
    stream: str = BROADCAST,
    capacity: Optional[int] = None,
    engine: str = "torch",
) -> Optional[End]:
    """This rank's end of the ring of (group, stream, src). None: the group has one rank.

    group: a ProcessGroup, or None for the default group. stream: frames of two streams have no
    common order. capacity: of a new ring; None: as the environment says. engine: for the name of a
    new ring.
    """
    if group is None and _HAS_GROUPS:
        group = dist.group.WORLD
    if type(src) is int:
        found = _found.get((id(group), stream, src))
        if found is not None and not found.ring.closed:
            return found
    return _look(group, src, metadata_group, stream, capacity, engine)


def group_of(group: Any, src: int) -> Optional[Tuple[Any, int]]:
    """The ProcessGroup and the rank that the arguments of a broadcast mean. None: the group has one
    rank, or there is none."""
    try:
        src = operator.index(src)
    except TypeError:
        raise TypeError(
            f"src must be an int, a rank in the group, not {type(src).__name__}"
        ) from None
    group = _default_group() if group is None else group
    if group is None or not _HAS_GROUPS:
        return None
    if not isinstance(group, dist.ProcessGroup):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("this process is not in the group")
        raise TypeError(
            f"group must be a torch.distributed.ProcessGroup or None, not {type(group).__name__}"
        )
    size = group.size()
    if size == 1:
        return None
    if not 0 <= src < size:
        raise ValueError(f"src is a rank in the group, from 0 to {size - 1}, not {src}")
    if config.is_fake(group):
        raise ValueError(
            "the group's backend is torch.distributed's \"fake\", which sends nothing: its other "
            "ranks are not "
            "processes that could attach to a ring. For a dry run of one rank leave ringcast out"
        )
    return group, src


def _look(
    group: Any, src: int, metadata_group: Any, stream: str, capacity: Optional[int], engine: str
) -> Optional[End]:
    """
    end_of() for the first call of (group, stream, src), for a ring that was closed, and for invalid
    arguments.
    """
    checked = group_of(group, src)
    if checked is None:
        return None
    group, src = checked
    made = ends(group)
    ring: Optional[End] = made.get((stream, src))
    if ring is None or (ring.ring.closed and ring.lost is None):
        family, me = names.family(group, engine), object()
        if _making.setdefault(group, me) is not me:
            raise RuntimeError(
                "another thread makes a ring of the group: each is made by one thread, as by "
                "prepare()"
            )
        try:
            ring = made[stream, src] = _make_ring(
                group, src, metadata_group, capacity, stream, family
            )
        finally:
            del _making[group]
    _found[id(group), stream, src] = ring
    return ring


def _make_ring(
    group: Any,
    src: int,
    metadata_group: Any,
    capacity: Optional[int],
    stream: str,
    family: Tuple[str, str],
) -> End:
    if metadata_group is None:
        metadata_group = group
    elif global_ranks(metadata_group) != global_ranks(group):
        raise ValueError("metadata_group must have the same ranks as group, in the same order")
    making = _Making(Ranks(metadata_group), src, metadata_group, capacity, stream, family)
    try:
        return making.run()
    except BaseException:
        making.undo()
        raise


class _Making:
    """
    All ranks try to attach to the source's ring. Ranks that fail are on other machines; the first
    such rank makes the next ring, until every rank has a ring. Every error reaches all ranks, since
    all wait in the exchanges.
    """

    def __init__(
        self,
        ranks: Ranks,
        src: int,
        group: Any,
        capacity: Optional[int],
        stream: str,
        family: Tuple[str, str],
    ) -> None:
        self._exchange = ranks
        self._capacity, self._bounded = capacity, stream == BROADCAST
        self._ring_name = names.join(
            *family, ranks.globally[src], *([] if self._bounded else [stream])
        )
        self._ranks = ranks.globally
        self._me = ranks.rank  # a rank in the group, as all numbers here except in `_ranks`
        self._src = src
        self._group = group
        self._offers: List[Dict[str, Any]] = []  # of the ranks, when the source made its ring
        self._machines: List[
            List[int]
        ] = []  # the ranks on each, the leader first; the source's machine comes first
        self._writer: Optional[ringcast.Writer] = None
        self._reader: Optional[ringcast.Reader] = None

    def run(self) -> End:
        left = list(range(len(self._ranks)))
        while left:
            leader = left[0] if self._machines else self._src
            _, told = self._exchange.all_or_none(lambda: self._offer(leader), lambda mine: mine)  # noqa: B023
            for key, what in ("version", "ringcast is version"), ("src", "src is"):
                _check_same(key, what, self._ranks, told)
            self._offers = self._offers or told
            _, attached = self._exchange.all_or_none(
                lambda: self._me in left and self._attaches(told[leader]["handle"], leader),  # noqa: B023
                lambda mine: mine,
            )
            left = [rank for rank in left if rank != leader and not attached[rank]]
            self._machines.append(
                [leader] + [rank for rank in range(len(attached)) if attached[rank]]
            )
        end = self._end()
        end.is_near = len(self._machines) == 1
        end.carries_cuda = end.is_near and all(theirs["gpu"] for theirs in self._offers)
        if isinstance(end, Source):
            end.divides |= end.carries_cuda
            end.ring._takes_cuda = end.carries_cuda
        return end

    def undo(self) -> None:
        for end in self._reader, self._writer:
            if end is not None:
                end.close()

    def _offer(self, leader: int) -> Dict[str, Any]:
        """What this rank tells all ranks; the leader makes its ring first."""
        on_death = "evict"
        if self._me == self._src:
            on_death = policies.get(self._group) or config.on_death(self._group)
        if self._me == leader:
            # For a ring on another machine the source decides the policy.
            slots = max(_SLOTS, len(self._ranks) - 1)
            capacity = config.capacity() if self._capacity is None else self._capacity
            ahead = config.ahead() if self._bounded else None
            name = names.relay_of(self._ring_name) if self._machines else self._ring_name
            self._writer = config.make_writer(
                capacity, slots, on_death=on_death, ahead=ahead, name=name
            )
        return {
            "src": self._src,
            "version": ringcast.__version__,
            "machine": config.machine(),
            "host": platform.node(),
            "on_death": on_death,
            "gpu": devices.may_carry(),
            "tag": secrets.randbelow(1 << 29) * 2,
            "pid": os.getpid(),
            "handle": self._writer.handle if self._writer is not None else None,
        }

    def _attaches(self, handle: str, leader: int) -> bool:
        if self._me == leader:
            return False
        try:
            self._reader = config.make_reader(handle, self._ranks[self._me])
        except (ringcast.RingNotFound, ringcast.AccessDenied, ringcast.ProtocolError) as error:
            self._warn(leader, error)
        return self._reader is not None

    def _warn(self, leader: int, error: Exception) -> None:
        if self._offers[leader]["machine"] == self._offers[self._me]["machine"]:
            warnings.warn(
                f"rank {self._ranks[self._me]} is on the machine of rank {self._ranks[leader]}, "
                f"but can't attach to "
                f"its ring, so that broadcasts go through torch.distributed: {error}",
                RuntimeWarning,
                stacklevel=1,
            )

    def _end(self) -> End:
        rank, source = self._ranks[self._me], self._ranks[self._src]
        goes_on = self._offers[self._src]["on_death"] == "evict"
        backend, seconds = self._find_backend() if len(self._machines) > 1 else (None, 0.0)
        if self._me == self._src:
            assert self._writer is not None
            end = Source(self._writer, rank, goes_on)
            leaders = [machine[0] for machine in self._machines[1:]]
            end.links = [
                torch_transport.TorchHub(end, backend, each, self._tag(), self._name(each), seconds)
                for each in leaders
            ]
            return end
        machine = next(machine for machine in self._machines if self._me in machine)
        if self._writer is not None:
            self._reader = config.make_reader(self._writer.handle, rank)
        assert self._reader is not None
        pids = {self._ranks[each]: self._offers[each]["pid"] for each in machine}
        receiver = Receiver(self._reader, rank, source, self._ranks[machine[0]], pids)
        if self._writer is not None:
            names = self._name(self._me), self._name(self._src)
            relay = torch_transport.make_relay(
                self._writer, backend, self._src, self._tag(), *names, seconds
            )
            receiver.own(relay)
        return receiver

    def _name(self, rank: int) -> str:
        theirs = self._offers[rank]
        return f"rank {self._ranks[rank]} (pid {theirs['pid']} on {theirs['host']})"

    def _tag(self) -> int:
        tag: int = self._offers[self._src]["tag"]
        return tag

    def _find_backend(self) -> Tuple[Any, float]:
        backend = torch_transport.cpu_backend(self._group)
        if backend is None:
            parts = "; ".join(
                ", ".join(self._name(rank) for rank in machine) for machine in self._machines
            )
            raise RuntimeError(
                f"the group spans machines ({parts}), between which its backend, "
                f"{config.backend_of(self._group)}, "
                "can't carry what is in a CPU's memory: give metadata_group, a gloo group of the "
                "same ranks"
            )
        return backend, torch_transport.seconds_of(backend)


def _check_same(key: str, what: str, ranks: List[int], offers: List[Dict[str, Any]]) -> None:
    by_value: Dict[Any, List[str]] = {}
    for rank, theirs in zip(ranks, offers):
        by_value.setdefault(theirs[key], []).append(f"{rank} (pid {theirs['pid']})")
    if len(by_value) == 1:
        return
    parts = [
        f"{value} on {'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"
        for value, names in by_value.items()
    ]
    raise RuntimeError(
        f"mismatched ranks: {what} " + ", but ".join(parts) + "; it must be the same on all of them"
    )
