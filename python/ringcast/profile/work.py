# SPDX-License-Identifier: Apache-2.0
"""The handle of an asynchronous operation, which ends when wait() returns."""

import sys
from typing import Any, Optional, Tuple

from ringcast.profile.store import Operation

_class: Optional[Any] = None


def timed_work_class() -> Optional[Any]:
    """A subclass of torch.distributed.Work; None: torch is not loaded, or has no torch.distributed."""
    global _class
    if _class is None:
        base = getattr(sys.modules.get("torch.distributed"), "Work", None)
        if base is not None:
            names = {name: value for name, value in vars(_TimedWork).items() if name not in ("__dict__", "__weakref__")}
            _class = type("TimedWork", (base,), names)
    return _class


class _TimedWork:
    """Passes every call on to torch's own handle."""

    def __init__(self, work: Any, recorder: Any, told: Tuple[int, int, str, str, Optional[int]], first: Any) -> None:
        type(self).__base__.__init__(self)  # type: ignore[misc]
        self._work, self._recorder, self._first = work, recorder, first
        self._told: Optional[Tuple[int, int, str, str, Optional[int]]] = told

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if self._told is None or not recorder.on:
            return self._work.wait(*args, **kwargs)
        devices = recorder.devices
        before = devices.event() if self._first is not None else None
        start = recorder.clock()
        failed = True
        try:
            result = self._work.wait(*args, **kwargs)
            failed = False
            return result
        finally:
            end = recorder.clock()
            last = devices.event() if before is not None else None
            self._note(start, end, None if last is None else (self._first, before, last), failed)

    def _note(self, wait_start: int, end: int, events: Any, failed: bool = False) -> None:
        told, self._told = self._told, None
        if told is not None:
            start, call_end, name, source, nbytes = told
            waiting = end - wait_start if events is None else None
            record = Operation(start, end, call_end, wait_start, name, source, nbytes, waiting, events, failed)
            self._recorder.buffer().items.append(record)

    def __del__(self) -> None:
        # Nobody waited: of what is known, the call.
        told = self._told
        if told is not None and self._recorder.on:
            self._note(told[1], told[1], None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _forwarded(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    method.__name__ = name
    return method


# What the base class has, so that __getattr__ is never asked.
for _name in (
    "is_completed", "is_success", "exception", "source_rank", "result", "synchronize", "get_future",
    "get_future_result", "block_current_stream", "boxed", "_get_duration", "_get_op_type",
):  # fmt: skip
    setattr(_TimedWork, _name, _forwarded(_name))
