# SPDX-License-Identifier: Apache-2.0
"""A profile that is being taken."""

import contextlib
import copy
import functools
import inspect
import itertools
import os
import sys
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar

from ringcast.profile import memory, results
from ringcast.profile.intercept import Interceptor
from ringcast.profile.recorder import MOST_WAITING, Buffer, OpenRegion, Recorder, RegionRecord, row_of
from ringcast.profile.store import MOST_STEPS, Operation, Store
from ringcast.profile.totals import Thinned

Function = TypeVar("Function", bound=Callable[..., Any])

GOLDEN = 0.6180339887498949  # its multiples fall evenly into [0, 1), and in step with nothing
MEMORY_NS = 100_000_000  # the memory is read at most so often

_numbers = itertools.count()
_running: "weakref.WeakSet[Profile]" = weakref.WeakSet()


class Profile:
    """What profile() returns; see there. Its methods may be called in any thread, step() in one."""

    def __init__(
        self, dir: Optional[str], warmup: int, intercept: bool, sample: float, *, rows: int, rank: Optional[int],
        world: Optional[int], pictures: bool, merge_timeout: float, clock: Callable[[], int],
    ) -> None:  # fmt: skip
        _check(dir, warmup, sample, rows)
        self.dir = None if dir is None else os.path.abspath(os.fspath(dir))
        self._warmup, self._sample = warmup, sample
        self._rank, self._world = rank, world
        self._pictures, self._merge_timeout = pictures, merge_timeout
        self._apart: Optional[str] = None
        self._clock = clock
        self._recorder = Recorder(clock, self._overflow)
        self._interceptor = Interceptor(self._recorder) if intercept else None
        self._store, self._rows = Store(rows), rows
        self._pending: Optional[Store] = None  # of the step that has not ended
        self._lock = threading.RLock()
        self._steps = 0  # ended, warm-up and skipped ones included
        self._state = "new"
        self._began = self._since = self._folded = self._exposed = 0
        self._number, self._wall = 0, 0.0
        self._memory = _Memory()
        self._options = {"warmup": warmup, "intercept": intercept, "sample": sample, "rows": rows}
        self._spans: Any = None
        self._subscribed = False

    # ---- Life --------------------------------------------------------------------------------------------------------

    def start(self) -> "Profile":
        """Begin; `with` calls it. A profile can be started once."""
        if self._state != "new":
            raise RuntimeError("this profile has been started before: make a new one, profile(...)")
        if self.dir is not None:
            results.check_folder(self.dir)
        from ringcast import _spans

        self._spans = _spans
        self._state, self._wall, self._number = "running", time.time(), next(_numbers)
        _running.add(self)
        if self._interceptor is not None:
            self._interceptor.put_in()
        self._began = self._since = self._folded = self._clock()
        self._memory.read(self._began, self._recorder.devices)
        self._turn(True)
        return self

    def stop(self) -> Dict[str, Any]:
        """End, put everything back, write the results into `dir`; the content of comprehensive_report.json."""
        if self._state != "running":
            raise RuntimeError("this profile is not running: it was not started, or has been stopped")
        with self._lock:
            self._state = "stopped"
            _running.discard(self)
            was_on = self._recorder.on
            self._collect_last(was_on)
            self._turn(False)
            if self._interceptor is not None:
                self._interceptor.take_out()
            self._recorder.finish(self._store)
            self._memory.read_all(self._recorder.devices)
        return results.write(self._results(), self.dir, self._apart, self._pictures, self._merge_timeout)

    def save(self) -> Dict[str, Any]:
        """Write what is there so far, as stop() does but for the merging, and go on."""
        if self._state != "running":
            raise RuntimeError("this profile is not running: it was not started, or has been stopped")
        with self._lock:
            self._memory.read_all(self._recorder.devices)
            return results.write(self._results(), self.dir, self._apart, self._pictures, 0)

    def is_running(self) -> bool:
        return self._state == "running"

    def set_apart(self, name: Optional[str]) -> None:
        """Of a process without a rank: the folder within `dir`; None: `dir` itself."""
        self._apart = name

    def abandon(self) -> None:
        """In a forked child: the profile is the parent's."""
        self._state = "stopped"
        self._recorder.on = False

    def __enter__(self) -> "Profile":
        return self.start()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._state != "running":
            return  # stopped within, or the parent's
        try:
            self.stop()
        except Exception as failed:
            if kind is None:
                raise
            warnings.warn(f"the profile is not written: {failed}", RuntimeWarning, stacklevel=2)

    # ---- Steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A step ends here, and the next one begins."""
        with self._lock:
            if self._state != "running":
                return
            self._flush()
            now = self._clock()
            if self._steps < self._warmup or not self._recorder.on:
                self._pass_over()
            else:
                self._end_step(now)
            self._steps += 1
            self._recorder.devices.look()
            self._turn(self._steps < self._warmup or self._steps * GOLDEN % 1.0 < self._sample)
            self._since = self._folded = self._clock()
            self._exposed = 0

    def _pass_over(self) -> None:
        """A step of the warm-up, or one that is not in the sample."""
        self._recorder.drop()
        if self._steps < self._warmup:
            self._store, self._pending = Store(self._rows), None
        else:
            self._store.skipped += 1

    def _end_step(self, now: int) -> None:
        if self._pending is not None:
            self._store.merge(self._pending)
            self._pending = None
        exposed = self._exposed + self._recorder.collect(self._store, self._folded, self._steps, True)
        self._note_step(now - self._since, exposed, now)

    def _note_step(self, wall: int, exposed: int, now: int) -> None:
        self._memory.read(now, self._recorder.devices)
        self._store.steps.add(wall)
        self._store.exposed += exposed
        series = self._store.series.setdefault(str(self.rank()), Thinned(MOST_STEPS))
        at = (now - self._began) / 1e9
        series.offer([self._steps, at, wall, exposed, self._memory.rss, self._memory.device])

    def _overflow(self) -> None:
        """Many records, and no step's end: sum them up now, unless another thread is about it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._state != "running":
                return
            if self._steps < self._warmup and self._steps:
                self._recorder.drop()  # the warm-up is forgotten anyway
                return
            if self._pending is None:
                self._pending = Store(self._rows)
            now = self._clock()
            self._exposed += self._recorder.collect(self._pending, self._folded, self._steps, False)
            self._folded = now
        finally:
            self._lock.release()

    def _collect_last(self, was_on: bool) -> None:
        """Without a single step() the whole is the step. Else what came after the last step() belongs to none."""
        self._flush()
        now = self._clock()
        if not self._steps and was_on:
            self._end_step(now)

    # ---- A user's own ------------------------------------------------------------------------------------------------

    def region(self, name: str) -> "Region":
        """`with p.region("layers.0.attn"):`, or a decorator: what a thread does within counts to the region."""
        return Region(self, name)

    def operation(self, name: str, bytes: int = 0, communication: bool = True) -> "OwnOperation":
        """As region(), for an operation of your own. communication=False: it is computing."""
        return OwnOperation(self, name, bytes, communication)

    def metric(self, name: str, value: float) -> None:
        """A number of your own; the results have its count, sum, mean, deviation, least, most and last value."""
        number = float(value)
        with self._lock:
            if self._recorder.on:
                self._store.metric(name).add(number)

    def watch(
        self, module: Any, names: Callable[[str], bool] = lambda name: name.count(".") >= 1
    ) -> Callable[[], None]:
        """Make a region of each submodule of a torch module whose name `names` accepts; returns what undoes that."""
        handles: List[Any] = []
        for name, inner in module.named_modules():
            if name and names(name):
                handles += _hook(self, inner, name)

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    # ---- Where and what ----------------------------------------------------------------------------------------------

    def rank(self) -> int:
        """As given, or of torch.distributed, or of the environment's RANK; -1: none."""
        if self._rank is None:
            self._rank, self._world = _place_in_group(self._world)
        return -1 if self._rank is None else self._rank

    def _results(self) -> results.Results:
        rank = self.rank()
        facts = {
            "rank": rank, "world": self._world or 1, "pid": os.getpid(), "started": self._wall,
            "seconds": (self._clock() - self._began) / 1e9, "steps_seen": self._steps, "options": self._options,
            "memory": self._memory.figures(),
        }  # fmt: skip
        found = copy.copy(self._store)
        found.rows = Thinned(self._rows, [row_of(kept, rank) for kept in self._store.rows.kept])
        found.rows.every, found.rows.seen = self._store.rows.every, self._store.rows.seen
        return results.Results(facts, found)

    def _turn(self, on: bool) -> None:
        """Whether the step that begins is recorded."""
        if on and not self._subscribed:
            self._spans.subscribe(self._recorder.take_spans)
        elif not on and self._subscribed:
            self._spans.unsubscribe(self._recorder.take_spans)
        self._subscribed = self._recorder.on = on

    def _flush(self) -> None:
        if self._subscribed:
            self._spans.flush()


class _Memory:
    def __init__(self) -> None:
        self.rss = self.device = self.first = self.most = self.device_most = 0
        self._read_at = -MEMORY_NS

    def read(self, now: int, devices: Any) -> None:
        if now - self._read_at < MEMORY_NS:
            return
        self._read_at = now
        self.rss = memory.of_process().get("rss", 0)
        self.device = devices.memory()
        self.first = self.first or self.rss
        self.most, self.device_most = max(self.most, self.rss), max(self.device_most, self.device)

    def read_all(self, devices: Any) -> None:
        found = memory.of_process()
        self.rss = found.get("rss", 0)
        self.most = max(self.most, self.rss)
        self.device, self.device_most = devices.memory(), max(self.device_most, devices.peak())

    def figures(self) -> Dict[str, int]:
        """Bytes. The most is that of the samples; the process's own peak may be of before the profile."""
        peak = memory.of_process().get("peak", 0)
        return {
            "rss_first": self.first, "rss_last": self.rss, "rss_max": self.most, "rss_peak_of_process": peak,
            "device_last": self.device, "device_max": self.device_most,
        }  # fmt: skip


def _check(dir: Any, warmup: int, sample: float, rows: int) -> None:
    if dir is not None and not os.fspath(dir):
        raise ValueError("dir is empty: name the folder for the results, or give None for none")
    if warmup < 0:
        raise ValueError(f"warmup is a number of steps, 0 or more, not {warmup}")
    if not 0 < sample <= 1:
        raise ValueError(f"sample is the share of the steps that are recorded, above 0 and up to 1, not {sample}")
    if rows < 0:
        raise ValueError(f"rows is the most lines of detailed_timings.csv, 0 or more, not {rows}")


def _place_in_group(world: Optional[int]) -> Tuple[Optional[int], Optional[int]]:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["RANK"]), world or int(os.environ["WORLD_SIZE"])
    return None, world


# ---- Regions and operations ------------------------------------------------------------------------------------------


class _Decorator:
    """Something for `with` that may also decorate a function, coroutine functions too. Each use begins anew."""

    def again(self) -> Any:
        raise NotImplementedError

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
    def __init__(self, profile: Profile, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a region's name is a str that is not empty, not {name!r}")
        self._profile, self._name = profile, name
        self._entered: List[Tuple[Buffer, OpenRegion]] = []

    def again(self) -> "Region":
        return Region(self._profile, self._name)

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
    def __init__(self, profile: Profile, name: str, nbytes: int, communication: bool) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"an operation's name is a str that is not empty, not {name!r}")
        if nbytes < 0:
            raise ValueError(f"the bytes of {name} are 0 or more, not {nbytes}")
        self._profile, self._name, self._bytes, self._communication = profile, name, nbytes, communication
        self._entered: List[Tuple[Optional[Buffer], int, Any]] = []

    def again(self) -> "OwnOperation":
        return OwnOperation(self._profile, self._name, self._bytes, self._communication)

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
        name, failed = self._name, kind is not None
        buffer.items.append(
            Operation(start, end, end, end, name, "own", self._bytes, None, events, failed, self._communication)
        )


def _hook(profile: Profile, module: Any, name: str) -> Iterator[Any]:
    entered = threading.local()

    def before(*_: Any) -> None:
        stack = entered.__dict__.setdefault("stack", [])
        stack.append(profile.region(name).__enter__())

    def after(*_: Any) -> None:
        if entered.__dict__.get("stack"):
            entered.stack.pop().__exit__(None, None, None)

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after, always_call=True)


def current() -> Optional[Profile]:
    """The profile that is running; of several the one that was started last. None: there is none."""
    return max(_running, key=lambda profile: profile._number, default=None)


def _after_fork() -> None:
    for profile in list(_running):
        profile.abandon()


os.register_at_fork(after_in_child=_after_fork)
