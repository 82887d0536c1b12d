# SPDX-License-Identifier: Apache-2.0
"""Regions and a program's own operations: for `with`, and as decorators."""

import copy
import functools
import inspect
import threading
from typing import Any, Callable, Iterator, List, TypeVar

from ringcast.profile.recorder import MOST_WAITING, OpenRegion, RegionRecord
from ringcast.profile.store import Operation

Function = TypeVar("Function", bound=Callable[..., Any])
LONGEST = 200  # characters of a name


def checked(name: str, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{what}'s name is a str that is not empty, not {name!r}")
    return name[:LONGEST]


class _Decorator:
    """For `with`, and a decorator of functions and coroutine functions."""

    _entered: List[Any]

    def again(self) -> Any:
        made = copy.copy(self)
        made._entered = []
        return made

    def __call__(self, function: Function) -> Function:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                with self.again():
                    return await function(*args, **kwargs)

            return awaiting  # type: ignore[return-value]

        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self.again():
                return function(*args, **kwargs)

        return within  # type: ignore[return-value]


class Region(_Decorator):
    def __init__(self, profile: Any, name: str) -> None:
        self._profile, self._name = profile, checked(name, "a region")
        self._entered = []  # buffers and regions

    def __enter__(self) -> "Region":
        recorder = self._profile._recorder
        if recorder.on:
            buffer = recorder.buffer()
            region = OpenRegion(self._name, recorder.clock(), recorder.devices.event())
            buffer.open.append(region)
            self._entered.append((buffer, region))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self._entered:
            return  # entered while nothing was recorded
        buffer, region = self._entered.pop()
        recorder = self._profile._recorder
        with recorder.lock:  # a step's end may cut the region
            buffer.open.remove(region)
            if not recorder.on:
                return
            last = recorder.devices.event() if region.events is not None else None
            events = None if last is None else (region.events, last)
            buffer.items.append(RegionRecord(region.start, recorder.clock(), region.name, events, True, region.before))
        if len(buffer.items) >= MOST_WAITING and not buffer.depth:
            recorder.overflow()


class OwnOperation(_Decorator):
    def __init__(self, profile: Any, name: str, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"the bytes of {name} are 0 or more, not {nbytes}")
        self._profile, self._name, self._bytes = profile, checked(name, "an operation"), nbytes
        self._entered = []  # buffer or None, start, event

    def __enter__(self) -> "OwnOperation":
        recorder = self._profile._recorder
        buffer = recorder.buffer() if recorder.on else None
        if buffer is not None:
            buffer.depth += 1
            self._entered.append((buffer, recorder.clock(), recorder.devices.event()))
        else:
            self._entered.append((None, 0, None))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        buffer, start, first = self._entered.pop()
        if buffer is None:
            return
        recorder = self._profile._recorder
        end = recorder.clock()
        buffer.depth -= 1
        last = recorder.devices.event() if first is not None else None
        events = None if last is None else (first, last)
        record = Operation(start, end, end, end, self._name, "own", self._bytes, None, events, kind is not None)
        buffer.items.append(record)
        if (len(buffer.items) >= MOST_WAITING or end > recorder.due) and not buffer.depth:
            recorder.overflow()


def hooks(profile: Any, module: Any, name: str) -> Iterator[Any]:
    entered = threading.local()

    def before(*_: Any) -> None:
        stack = entered.__dict__.setdefault("stack", [])
        stack.append(profile.region(name).__enter__())

    def after(*_: Any) -> None:
        if entered.__dict__.get("stack"):
            entered.stack.pop().__exit__(None, None, None)

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after, always_call=True)
