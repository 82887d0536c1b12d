# SPDX-License-Identifier: Apache-2.0
"""A running profile: its life, its steps, and what a program tells it."""

import atexit
import contextlib
import copy
import itertools
import os
import re
import sys
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from ringcast.profile import results
from ringcast.profile.intercept import Interceptor
from ringcast.profile.recorder import Recorder, checked, hooks, operation, region, row_of
from ringcast.profile.store import MOST_STEPS, Store, Thinned, process_of

GOLDEN = 0.6180339887498949  # its multiples fall evenly into [0, 1), and in step with nothing
MEMORY_NS = 100_000_000  # the memory is read at most so often
DUE_NS = 500_000_000  # a step that takes longer is summed up meanwhile

_numbers = itertools.count()
_running: "weakref.WeakSet[Profile]" = weakref.WeakSet()


class Profile:
    """A profile for `with`, or for calls of start() and stop(). The end of the profile writes the
    results. Any thread may call the methods, and a single thread step().

    dir: the folder for the results; the profile makes the folder. None: no files; stop() returns
    the results. warmup: the number of steps at the beginning that are left out. Without a call of
    step() the whole is one step. intercept: time the functions of torch.distributed, vLLM and
    SGLang, too. False: nothing is replaced; ringcast's operations, regions and your own operations
    are recorded. sample: the share of the steps that are recorded; all ranks record the same steps.
    rows: the most lines of detailed_timings.csv. With more records, every second, fourth, eighth
    ... record is kept. rank, world: of the process and the group, where neither torch.distributed
    nor the environment (RANK) has them. pictures: of a group only rank 0 makes them. merge_timeout:
    the seconds that rank 0 waits at the end for the other ranks' results; 0: rank 0 merges nothing.
    step_at: "module:function" or "module:Class.function": after each call of this function a step
    ends. clock: returns nanoseconds; ringcast's own operations are in the time of
    time.monotonic_ns.
    """

    def __init__(
        self, dir: Optional[str] = "ringcast-profile", warmup: int = 3, intercept: bool = True,
        sample: float = 1.0, *,
        rows: int = 100_000, rank: Optional[int] = None, world: Optional[int] = None,
        pictures: bool = True,
        merge_timeout: float = 30.0, step_at: Optional[str] = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:  # fmt: skip
        _check(dir, warmup, sample, rows, step_at)
        self.dir = None if dir is None else os.path.abspath(os.fspath(dir))
        self._warmup, self._sample = warmup, sample
        self._rank, self._world = rank, world
        self._pictures, self._merge_timeout = pictures, merge_timeout
        self._apart: Optional[str] = None  # the folder within `dir` of a process without a rank
        self._clock = clock
        self._recorder = Recorder(clock, self._overflow)
        self._interceptor = Interceptor(self._recorder, self.rank)
        self._intercept, self._step_at = intercept, step_at
        self._store, self._rows = Store(rows), rows
        self._pending: Optional[Store] = None  # of the step that has not ended
        self._lock = threading.RLock()
        self._steps = 0  # ended, warm-up and skipped ones included
        self._state = "new"
        self._began = self._since = self._folded = 0
        self._row = [0, 0, 0]  # of the step: its number, nanoseconds, nanoseconds of communication
        self._number, self._wall = 0, 0.0
        self._memory = _Memory(0)
        self._options = {"warmup": warmup, "intercept": intercept, "sample": sample, "rows": rows}
        self._spans: Any = None

    # ---- Life ------------------------------------------------------------------------------------

    def start(self) -> "Profile":
        """Begin, as `with` does. A profile can be started once."""
        if self._state != "new":
            raise RuntimeError("this profile has been started before: make a new one, profile(...)")
        if self.dir is not None:
            results.check_folder(self.dir)
        from ringcast import _spans

        self._spans = _spans
        self._state, self._wall, self._number = "running", time.time(), next(_numbers)
        _running.add(self)
        self.rank()
        if self._intercept:
            self._interceptor.put_in()
        if self._step_at is not None:
            self._interceptor.step_after(self._step_at, self.step)
        self._began = self._since = self._folded = self._clock()
        self._memory = _Memory(self._began)
        self._memory.read(self._began, self._recorder.device)
        self._recorder.due = self._began + DUE_NS
        self._turn(True)
        return self

    def stop(self) -> Dict[str, Any]:
        """End: put everything back and write the results. Return the content of
        comprehensive_report.json."""
        if self._state != "running":
            raise RuntimeError(
                "this profile is not running: it was not started, or has been stopped"
            )
        with self._lock:
            self._state = "stopped"
            _running.discard(self)
            try:
                self._flush()
                if not self._steps and self._recorder.on:  # without any step() the whole is one
                    self._end_step(self._clock())
            finally:
                self._turn(False)
                self._interceptor.take_out()
            self._memory.read_all(self._clock(), self._recorder.device)
        return results.write(
            self._results(), self.dir, self._apart, self._pictures, self._merge_timeout
        )

    def save(self) -> Dict[str, Any]:
        """Write the results so far, as stop() does, but merge nothing, and go on."""
        if self._state != "running":
            raise RuntimeError(
                "this profile is not running: it was not started, or has been stopped"
            )
        with self._lock:
            self._memory.read_all(self._clock(), self._recorder.device)
            return results.write(self._results(), self.dir, self._apart, self._pictures, 0)

    def is_running(self) -> bool:
        return self._state == "running"

    def abandon(self) -> None:
        """Stop without results, as in a forked child."""
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

    # ---- Steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        """A step ends here, and the next one begins."""
        with self._lock:
            if self._state != "running":
                return
            self._flush()
            if self._recorder.on:
                self._recorder.device.wait()
            now = self._clock()
            if self._steps < self._warmup or not self._recorder.on:
                self._pass_over(now)
            else:
                self._end_step(now)
            self._steps += 1
            self._recorder.device.look()
            self._turn(self._steps < self._warmup or self._steps * GOLDEN % 1.0 < self._sample)
            self._since = self._folded = self._clock()
            self._recorder.due = self._since + DUE_NS
            self._row = [self._steps, 0, 0]

    def _pass_over(self, now: int) -> None:
        """Forget a step of the warm-up, or a step outside the sample."""
        self._recorder.drop()
        if self._steps < self._warmup:
            self._store, self._pending = Store(self._rows), None
            if self._steps == self._warmup - 1:  # what the memory grows by is counted from here
                self._memory = _Memory(self._began)
                self._memory.read(now, self._recorder.device)
        else:
            self._store.skipped += 1

    def _end_step(self, now: int) -> None:
        if self._pending is not None:
            self._store.merge(self._pending)
            self._pending = None
        self.rank()  # of a group that may be gone at the end
        self._memory.read(now, self._recorder.device)
        self._recorder.sum_up(self._store, self._row, self._folded, now)
        self._row[1] = now - self._since
        self._store.steps.add(self._row[1])
        self._store.series.setdefault("", Thinned(MOST_STEPS)).offer(self._row)

    def _overflow(self) -> None:
        """Sum up records before the step ends, unless another thread does."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._state != "running":
                return
            now = self._clock()
            self._recorder.due = now + DUE_NS
            self._recorder.device.look()
            self._memory.read(now, self._recorder.device)
            if self._steps < self._warmup and self._steps:
                self._recorder.drop()  # the warm-up is forgotten anyway
                return
            if self._pending is None:
                self._pending = Store(self._rows)
            self._recorder.sum_up(self._pending, self._row, self._folded, now)
            self._folded = now
        finally:
            self._lock.release()

    # ---- A user's own ----------------------------------------------------------------------------

    def region(self, name: str) -> "contextlib._GeneratorContextManager[None]":
        """
        A named part of the program, `with p.region("layers.0.attn"):`, per thread; or a decorator.
        """
        return region(self._recorder, checked(name, "a region"))

    def operation(self, name: str, bytes: int = 0) -> "contextlib._GeneratorContextManager[None]":
        """Communication of your own, used as region()."""
        if bytes < 0:
            raise ValueError(f"the bytes of {name} are 0 or more, not {bytes}")
        return operation(self._recorder, checked(name, "an operation"), bytes)

    def metric(self, name: str, value: float) -> None:
        """Note a number of your own. The results have count, sum, mean, deviation, least, most and
        last value."""
        name, number = checked(name, "a metric"), float(value)
        with self._lock:
            if self._recorder.on:
                self._store.metric(name).add(number)

    def watch(
        self, module: Any, names: Callable[[str], bool] = lambda name: name.count(".") >= 1
    ) -> Callable[[], None]:
        """
        Make a region of each submodule of a torch module that `names` accepts by name. The result
        undoes that.
        """
        handles: List[Any] = []
        for name, inner in module.named_modules():
            if name and names(name):
                handles += hooks(self, inner, name)

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    # ---- Where and what --------------------------------------------------------------------------

    def rank(self) -> int:
        """
        The rank as given, or in torch.distributed, or of the environment's RANK; -1: none so far.
        """
        if self._rank is None:
            # RANK is that of the first process. Children inherit the variable and are no ranks.
            self._rank, self._world = _place_in_group(self._world, self._apart is None)
        return -1 if self._rank is None else self._rank

    def _results(self) -> results.Results:
        rank = self.rank()
        facts = {
            "rank": rank, "world": self._world or 1, "pid": os.getpid(), "started": self._wall,
            "seconds": (self._clock() - self._began) / 1e9, "steps_seen": self._steps,
            "options": self._options,
            "memory": self._memory.figures(),
        }  # fmt: skip
        found, rows, process = copy.copy(self._store), self._store.rows, process_of(facts)
        found.rows = Thinned(
            rows.most, [row_of(kept, rank) for kept in rows.kept], rows.every, rows.seen
        )
        found.series = dict(zip([process], self._store.series.values()))
        found.memory = {process: self._memory.series}
        return results.Results(facts, found)

    def _turn(self, on: bool) -> None:
        """Turn recording on or off for the step that begins."""
        if on and not self._recorder.on:
            self._spans.subscribe(self._recorder.take_spans)
        elif not on and self._recorder.on:
            self._spans.unsubscribe(self._recorder.take_spans)
        self._recorder.on = on

    def _flush(self) -> None:
        if self._recorder.on:
            self._spans.flush()


def memory_of_process() -> Dict[str, int]:
    """Bytes: resident now, and the most so far. Empty where /proc is not mounted."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return {}
    found = re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.M)
    return {
        {"VmRSS": "rss", "VmHWM": "peak"}[name]: int(kilobytes) << 10 for name, kilobytes in found
    }


class _Memory:
    def __init__(self, began: int) -> None:
        self.rss = self.device = self.first = self.most = self.device_most = 0
        self.series = Thinned(MOST_STEPS)
        self._began, self._read_at = began, began - MEMORY_NS

    def read(self, now: int, device: Any) -> None:
        if now - self._read_at < MEMORY_NS:
            return
        self._read_at = now
        self.rss, self.device = memory_of_process().get("rss", 0), device.memory()
        self.first = self.first or self.rss
        self.most, self.device_most = max(self.most, self.rss), max(self.device_most, self.device)
        self.series.offer([(now - self._began) / 1e9, self.rss, self.device])

    def read_all(self, now: int, device: Any) -> None:
        self._read_at = now - MEMORY_NS
        self.read(now, device)
        self.device_most = max(self.device_most, device.peak())

    def figures(self) -> Dict[str, int]:
        """In bytes. rss_max is the most among the samples; the process's own peak may be older than
        the profile."""
        peak = memory_of_process().get("peak", 0)
        return {
            "rss_first": self.first, "rss_last": self.rss, "rss_max": self.most,
            "rss_peak_of_process": peak,
            "device_last": self.device, "device_max": self.device_most,
        }  # fmt: skip


def _check(dir: Any, warmup: int, sample: float, rows: int, step_at: Optional[str]) -> None:
    if dir is not None and not os.fspath(dir):
        raise ValueError("dir is empty: name the folder for the results, or give None for none")
    if warmup < 0:
        raise ValueError(f"warmup is a number of steps, 0 or more, not {warmup}")
    if not 0 < sample <= 1:
        raise ValueError(
            f"sample is the share of the steps that are recorded, above 0 and up to 1, not {sample}"
        )
    if rows < 0:
        raise ValueError(f"rows is the most lines of detailed_timings.csv, 0 or more, not {rows}")
    if step_at is not None and not re.fullmatch(r"[\w.]+:[\w.]+", step_at):
        raise ValueError(f"step_at is module:function or module:Class.function, not {step_at!r}")


def in_group() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _place_in_group(
    world: Optional[int], by_environment: bool
) -> Tuple[Optional[int], Optional[int]]:
    if in_group():
        dist = sys.modules["torch.distributed"]
        return dist.get_rank(), dist.get_world_size()
    if by_environment and "RANK" in os.environ:
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ["RANK"]), world or int(os.environ["WORLD_SIZE"])
    return None, world


def current() -> Optional[Profile]:
    """The running profile that was started last, or None."""
    return max(_running, key=lambda profile: profile._number, default=None)


def _after_fork() -> None:
    for profile in list(_running):
        profile.abandon()


os.register_at_fork(after_in_child=_after_fork)


# ---- RINGCAST_PROFILE ----------------------------------------------------------------------------
# RINGCAST_PROFILE=dir: a profile of the whole process, written at its end.
# dir,step=module:Class.function: a step ends after each call of this function. first=pid is the
# first process, which adds this for its children.
#
# A rank of a group writes into dir/rank<r>. The first process without a rank writes into dir
# itself, its children into dir/process<pid>; a child that recorded nothing writes nothing. A
# problem is a warning: the program goes on.

VARIABLE = "RINGCAST_PROFILE"
_profile: Optional[Profile] = None
_folder = ""
_options: Dict[str, str] = {}


def start_as_asked() -> None:
    global _folder, _options
    folder, *options = os.environ[VARIABLE].split(",")
    _options = dict(each.partition("=")[::2] for each in options)
    unknown = [
        name for name, value in _options.items() if name not in ("step", "first") or not value
    ]
    if unknown or not folder:
        text = (
            f"{VARIABLE}={os.environ[VARIABLE]}: there is no profile: "
            f"{unknown[0] if unknown else 'the folder'!r} is "
        )
        warnings.warn(
            text + "unknown or empty; it takes DIR,step=MODULE:FUNCTION",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    _folder = os.path.abspath(folder)
    if "first" not in _options:
        os.environ[VARIABLE] = ",".join([folder, *options, f"first={os.getpid()}"])
    _begin(_options.get("first", str(os.getpid())) == str(os.getpid()))
    atexit.register(_stop)
    os.register_at_fork(after_in_child=lambda: _begin(False, -1 if in_group() else None))
    from multiprocessing import util

    # multiprocessing ends children without atexit, and drops the parent's finalizers in children.
    util.register_after_fork(
        sys.modules[__name__], lambda _: util.Finalize(None, _stop, exitpriority=10)
    )


def _begin(is_first: bool, rank: Optional[int] = None) -> None:
    """rank: -1 in a child that has inherited its parent's group, and is no rank of the group."""
    global _profile
    _profile = None
    try:
        made = Profile(_folder, rank=rank, step_at=_options.get("step"))
        made._apart = None if is_first else f"process{os.getpid()}"
        _profile = made.start()
    except Exception as error:
        warnings.warn(
            f"RINGCAST_PROFILE={_folder}: there is no profile: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def _stop() -> None:
    global _profile
    ended, _profile = _profile, None
    if ended is None or not ended.is_running():
        return
    try:
        ended.stop()
    except Exception as error:
        warnings.warn(
            f"RINGCAST_PROFILE={_folder}: the profile is not written: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
