# SPDX-License-Identifier: Apache-2.0
"""A value of every rank for every rank of a group: a barrier, an all-gather, a small all-reduce.

Each rank has a small ring to the other ranks, made at the group's first call here, and sends before
receiving. No circle of waits can form: a rank waits only for ranks with fewer calls. A call ends
with the group's timeout, as torch.distributed's does, and the error names the missing ranks.
torch.distributed keeps groups on several machines, where the relays would cost more than a
collective, and elastic groups: the backend goes on without the dead.
"""

import time
import weakref
from typing import Any, Callable, List, Optional, Tuple

import torch.distributed as dist

import ringcast
from ringcast._group import config
from ringcast._group.endpoint import (
    BARRIER,
    CALL_BITS,
    GATHER,
    REDUCE,
    End,
    Receiver,
    Source,
    is_before,
    is_of_one_call,
    operation_of,
)
from ringcast._group.packing import pack
from ringcast._group.rings import end_of
from ringcast._group.torch_transport import cpu_backend, seconds_of

STREAM = "gather"
# Of each rank's ring. Larger values go by spill memory.
_CAPACITY = 256 << 10
# Seconds of a wait that asks for no timeout.
_FIRST = 0.05

# Groups on several machines.
_of_torch: "weakref.WeakSet[Any]" = weakref.WeakSet()


def is_of_ranks_here(group: Any) -> bool:
    """
    Whether `group` is a ProcessGroup of several ranks for the CPU's memory, and not an elastic one.
    """
    if not isinstance(group, dist.ProcessGroup) or group.size() == 1:
        return False
    return cpu_backend(group) is not None and not config.is_elastic(group)


def barrier(group: Any) -> bool:
    """Return when all ranks have called. False: left to torch.distributed."""
    return _exchange(group, None, BARRIER) is not None


def all_gather(group: Any, value: Any) -> Optional[List[Any]]:
    """The values by rank, with a copy of the own value. None: left to torch.distributed."""
    return _exchange(group, value, GATHER)


def tensors(group: Any, tensor: Any) -> Optional[List[Any]]:
    """
    The same for an all-reduce of a small tensor in the CPU's memory, with the own tensor itself.
    """
    return _exchange(group, tensor, REDUCE)


def _exchange(group: Any, value: Any, operation: int) -> Optional[List[Any]]:
    group = dist.group.WORLD if group is None else group
    ends = near_ends(group, STREAM, _CAPACITY)
    if ends is None:
        return None
    wait, missing = _Wait(group), []
    source = next(end for end in ends if isinstance(end, Source))
    call = source.call
    value, failure = _sent(source, value, operation, wait)
    everyone = []
    for end in ends:
        if isinstance(end, Receiver):
            try:
                everyone.append(_received(end, operation, call, wait))
            except _Missing:
                missing.append(end.describe_source())
            except Exception as error:
                if not is_of_one_call(error, end):
                    raise
                failure = failure or error  # take all frames of the call
        else:
            everyone.append(value)
    if failure is not None:
        raise failure
    if missing:
        have = "has" if len(missing) == 1 else "have"
        raise TimeoutError(
            f"{operation_of(operation << CALL_BITS)}: {', '.join(missing)} {have} not come within "
            f"{wait.seconds:.4g} s, the group's timeout: look at the process, or make the group "
            f"with a longer timeout"
        )
    return everyone


class _Missing(Exception):
    """A rank has not come in time."""


class _Wait:
    """The wait of a call. Only a long wait asks for the group's timeout, which takes as long as a
    message."""

    def __init__(self, group: Any) -> None:
        self._group, self._began = group, time.monotonic()
        self.seconds: Optional[float] = None  # the timeout

    def left(self) -> float:
        return (
            _FIRST
            if self.seconds is None
            else max(0.0, self._began + self.seconds - time.monotonic())
        )

    def over(self) -> bool:
        if self.seconds is None:
            self.seconds = seconds_of(cpu_backend(self._group))
        return self.left() == 0


def _received(end: Receiver, operation: int, call: int, wait: _Wait) -> Any:
    """The value of this call. Calls that were interrupted may have left frames of theirs, which are
    dropped."""

    def take() -> Tuple[Any, int]:
        while True:
            try:
                value, tag = end.ring.recv_tagged(wait.left())
            except TimeoutError as error:
                if not config.is_ours(error):
                    raise
                if wait.over():
                    raise _Missing from None
                continue
            if tag >> CALL_BITS not in (BARRIER, GATHER, REDUCE) or not is_before(tag, call):
                return value, tag

    end.number(call)
    return end.receive(operation, take)


def _sent(end: Source, value: Any, operation: int, wait: _Wait) -> Tuple[Any, Optional[Exception]]:
    """Send the own value. Returns the own result, or the error of a value that can't be sent: the
    other ranks have its text."""
    packed = value
    try:
        if operation == GATHER:
            packed = pack(value, end.carries_cuda)
    except Exception as error:
        failure = error
        try:
            _in_time(wait, lambda left: end.refuse(failure, operation, left))
        except ringcast.Error:  # the ring has failed
            raise failure from None
        return None, failure
    try:
        _in_time(wait, lambda left: end.send(packed, operation, timeout=left))
    except Exception as error:
        if not config.is_of_value(error, end.refused):
            raise
        return None, error
    if operation != GATHER:
        return value, None
    try:
        return ringcast.unpack(packed), None
    except Exception as error:
        return None, error


def _in_time(wait: _Wait, send: Callable[[float], None]) -> None:
    """TimeoutError: the ring has no room."""
    while True:
        try:
            return send(wait.left())
        except TimeoutError as error:
            if wait.over() or not config.is_ours(error):
                raise


def near_ends(group: Any, stream: str, capacity: int) -> Optional[List[End]]:
    """
    This rank's ends of the rings, by source; the first call for a stream is a collective. None: not
    for ranks on several machines, one rank, or an elastic group.
    """
    group = dist.group.WORLD if group is None else group
    if not is_of_ranks_here(group) or group in _of_torch:
        return None
    found = []
    for src in range(group.size()):
        # Nothing else gathers.
        end = end_of(group, src, stream=stream, capacity=capacity, engine="sglang")
        assert end is not None
        if not end.is_near:
            _of_torch.add(group)
            end.close()
            return None
        found.append(end)
    return found
