# SPDX-License-Identifier: Apache-2.0
"""Records of each thread, summed up when a step ends.

The hot path appends to a list of the thread. What costs more comes at the end of a step: which
operation lies within another (an engine's all_reduce calls torch's), in which region, and how long
at least one thread was in communication.
"""

import contextlib
import os
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ringcast.profile.store import Operation, Store, range_of

# A thread with so many records does not wait for the end of the step.
MOST_WAITING = 8192

Interval = Tuple[int, int]
Step = List[int]  # its row in the series: number, nanoseconds, nanoseconds of communication
Where = Tuple[Step, int]  # and the thread


class RegionRecord(NamedTuple):
    start: int
    end: int
    name: str


class OpenRegion:
    """A region that a thread is in."""

    __slots__ = ("name", "start")

    def __init__(self, name: str, start: int) -> None:
        self.name, self.start = name, start


class Buffer:
    """A thread's records since the last summing up."""

    def __init__(self, native: int, thread: Optional[threading.Thread]) -> None:
        self.native = native
        self.thread = weakref.ref(thread) if thread is not None else None
        self.items: List[Any] = []  # Operation and RegionRecord, in the order of their ends
        self.spans: List[Any] = []
        self.begun: List[Any] = []  # waits of a call that had not ended
        self.open: List[OpenRegion] = []
        self.depth = 0  # operations that this thread is in

    def is_done(self) -> bool:
        """Whether the buffer is empty and the thread has ended."""
        if self.items or self.spans or self.open:
            return False
        if self.thread is None:  # known by its spans alone
            return not os.path.exists(f"/proc/self/task/{self.native}")
        thread = self.thread()
        return thread is None or not thread.is_alive()


class Recorder:
    def __init__(self, clock: Callable[[], int], overflow: Callable[[], None]) -> None:
        self.clock, self.overflow = clock, overflow
        self.on = False
        self.due = 0  # when overflow() is called at the latest, for a step that takes long
        self.device = Device()
        self.lock = threading.RLock()
        self._local = threading.local()
        self._buffers: Dict[int, Buffer] = {}  # by the thread's native id

    # ---- The hot path ----------------------------------------------------------------------------

    def buffer(self) -> Buffer:
        try:
            found: Buffer = self._local.buffer
        except AttributeError:
            native, thread = threading.get_native_id(), threading.current_thread()
            with self.lock:
                found = self._buffers.get(native) or Buffer(native, thread)
                found.thread = weakref.ref(thread)
                self._buffers[native] = found
            self._local.buffer = found
        return found

    def take_spans(self, spans: List[Any]) -> None:
        """For ringcast's spans, of any threads."""
        if not self.on:
            return
        self.buffer()  # most spans are of this thread
        for span in spans:
            buffer = self._buffers.get(span.thread)
            if buffer is None:
                with self.lock:
                    buffer = self._buffers.setdefault(span.thread, Buffer(span.thread, None))
            buffer.spans.append(span)
            if len(buffer.spans) == MOST_WAITING:
                self.overflow()
        if self.clock() > self.due:
            self.overflow()

    # ---- At the end of a step --------------------------------------------------------------------

    def drop(self) -> None:
        """Forget the records. The regions that threads are in begin anew."""
        now = self.clock()
        with self.lock:
            for native, buffer in list(self._buffers.items()):
                del buffer.items[:], buffer.spans[:]
                for region in buffer.open:
                    region.start = now
                self._forget(native, buffer)

    def sum_up(self, store: Store, step: Step, since: int, now: int) -> None:
        """Sum up what was recorded since `since` into `store` and the step's row."""
        busy: List[Interval] = []
        flights: List[Interval] = []
        for buffer, items, around in self._take_all():
            self._sum_up(place(items, around), store, (step, buffer.native), busy, flights)
        exposed = union(busy, since, now)
        store.exposed += exposed
        step[2] += exposed
        if flights:
            store.overlapped += union(busy + flights, since, now) - exposed

    def _take_all(self) -> List[Tuple[Buffer, List[Any], List[OpenRegion]]]:
        """
        Take the records out of the threads' buffers, each with the regions around all of them.
        """
        taken = []
        with self.lock:
            for native, buffer in list(self._buffers.items()):
                if buffer.depth:
                    continue  # operations within the one that is under way must wait for its end
                around = list(buffer.open)
                items, spans = _take(buffer.items), _take(buffer.spans)
                taken.append((buffer, operations_of(spans, buffer) + items, around))
                self._forget(native, buffer)
        return taken

    def _forget(self, native: int, buffer: Buffer) -> None:
        if buffer.is_done():
            del self._buffers[native]

    def _sum_up(
        self, entries: List["Entry"], store: Store, where: Where, busy: List[Interval],
        flights: List[Interval]
    ) -> None:  # fmt: skip
        for entry in reversed(entries):  # inner operations before outer ones
            if entry.parent is not None and entry.parent.record.bytes is None:
                entry.parent.bytes += entry.bytes
        for entry in entries:
            record = entry.record
            duration = record.end - record.start
            if isinstance(record, RegionRecord):
                _add_region(store, record, duration, entry.region)
                _offer_row(store, entry, duration, 0, where)
                continue
            call, wait = record.call_end - record.start, record.end - record.wait_start
            _add_totals(store, entry, duration, call + wait)
            _offer_row(store, entry, duration, call + wait, where)
            if entry.parent is not None:
                continue
            busy.append((record.start, record.call_end))
            if record.call_end < record.end:
                busy.append((record.wait_start, record.end))
                flights.append((record.start, record.end))
            if entry.region:
                store.region(entry.region).add_part(record.name, call)
            if entry.wait_region:
                store.region(entry.wait_region).add_part(record.name, wait)


def _add_region(store: Store, record: RegionRecord, duration: int, parent: str) -> None:
    region = store.region(record.name)
    region.totals.add(duration)
    if parent:
        region.inner = True
        store.region(parent).add_part(record.name, duration)


def _add_totals(store: Store, entry: "Entry", duration: int, exposed: int) -> None:
    record = entry.record
    how = "nested" if entry.parent is not None else "device" if record.on_device else ""
    nbytes, waiting = entry.bytes, record.waiting
    key = record.name, record.source, range_of(nbytes), how
    totals = store.operations.get(key) or store.totals(key)
    totals.add(
        duration,
        nbytes,
        duration - waiting if waiting and record.source == "ringcast" else duration,
    )
    totals.exposed += exposed
    if waiting is not None:
        totals.waiting += min(waiting, duration)
        totals.told += 1
    if record.failed:
        totals.failed += 1


def _offer_row(store: Store, entry: "Entry", duration: int, exposed: int, where: Where) -> None:
    """
    A tuple of numbers and strings alone: Python's garbage collector stops looking at such tuples.
    """
    record, step, thread = entry.record, where[0][0], where[1]
    if isinstance(record, RegionRecord):
        name = f"{entry.region} > {record.name}" if entry.region else record.name
        store.rows.offer(
            (record.start, "region", 0, duration, None, 0, name, step, thread, "own", 0, 0, 0)
        )
        return
    flags = int(entry.parent is not None), int(record.on_device), int(record.failed)
    store.rows.offer((
        record.start, record.name, entry.bytes, duration, record.waiting, exposed, entry.region,
        step, thread,
        record.source, *flags,
    ))  # fmt: skip


def row_of(kept: Tuple[Any, ...], rank: int) -> List[Any]:
    """A line of detailed_timings.csv, from a tuple of _offer_row()."""
    start, name, nbytes, duration, waiting, exposed, region, step, thread, source, *flags = kept
    moving = duration - (waiting or 0) if source == "ringcast" else duration
    return [
        f"{start / 1e9:.9f}", name, nbytes, f"{duration / 1e9:.9f}",
        f"{nbytes / moving if moving > 0 else 0:.6g}",
        "" if waiting is None else f"{waiting / 1e9:.9f}", f"{exposed / 1e9:.9f}", region, step,
        rank, thread, source,
        *flags,
    ]  # fmt: skip


def _take(items: List[Any]) -> List[Any]:
    """Take the items out. The thread may append meanwhile, and later items stay."""
    count = len(items)
    taken = items[:count]
    del items[:count]
    return taken


def union(intervals: List[Interval], since: int, until: int) -> int:
    """The time between `since` and `until` that the intervals cover."""
    covered, reached = 0, since
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, until)
        if end > start:
            covered += end - start
            reached = end
    return covered


# ---- Which record lies within which --------------------------------------------------------------


class Entry:
    """A record and its place."""

    __slots__ = ("record", "region", "wait_region", "parent", "bytes")

    def __init__(self, record: Any, region: str, parent: "Optional[Entry]", nbytes: int) -> None:
        self.record, self.region, self.parent, self.bytes = record, region, parent, nbytes
        self.wait_region = ""


# What contains others: its end, and a region's name or an operation's entry.
Around = Tuple[float, str, Optional[Entry]]


def place(items: List[Any], still_open: List[OpenRegion]) -> List[Entry]:
    """The entries of a thread's records in the order of their starts, each with its region, and its
    parent if it lies within another operation. `items` has an outer record after those within it.
    """
    keyed: List[Tuple[int, int, int, Any]] = []
    for index, record in enumerate(items):
        if type(record) is Operation and record.wait_start < record.end:
            keyed.append((record.start, -record.call_end, -index, record))
            keyed.append((record.wait_start, -record.end, index + 1, None))
        else:
            keyed.append((record.start, -record.end, -index, record))
    keyed.sort()
    around: List[Around] = [(float("inf"), region.name, None) for region in still_open]
    entries: List[Entry] = []
    waits: Dict[int, Entry] = {}
    for start, minus_end, index, record in keyed:
        while around and around[-1][0] < start:
            around.pop()
        region, parent = _around(around, -minus_end) if around else ("", None)
        if record is None:
            waits[index - 1].wait_region = region
        elif type(record) is RegionRecord:
            entries.append(Entry(record, region, None, 0))
            around.append((record.end, record.name, None))
        else:
            if parent is not None and record.end > parent.record.end:
                parent = None  # asynchronous, and longer than the outer operation
            entry = Entry(record, region, parent, record.bytes or 0)
            entries.append(entry)
            # What a thread does between call and wait() lies in no operation.
            if record.call_end == record.end:
                around.append((record.end, "", entry))
            else:
                waits[-index] = entry
    return entries


def _around(around: List[Around], end: int) -> Tuple[str, Optional[Entry]]:
    """The innermost region, and operation, that end no earlier than `end`."""
    region, parent = "", None
    for until, name, entry in reversed(around):
        if until < end:
            continue
        if name:
            region = region or name
        elif parent is None:
            parent = entry
        if region and parent is not None:
            break
    return region, parent


# ---- ringcast's spans ----------------------------------------------------------------------------

CALLS, WAITS = ("send", "recv"), ("wait_room", "wait_frame")  # and the waiting for the other side
MOST_APART = 64  # waits of a call that has not ended


def operations_of(spans: List[Any], buffer: Buffer) -> List[Operation]:
    """An operation for each whole call. The buffer keeps the waiting of a call under way."""
    made: List[Operation] = []
    waits: List[Any] = []
    for span in buffer.begun + spans:
        if span.kind in WAITS:
            waits.append(span)
        elif span.kind in CALLS:
            start, end = span.start_ns, span.end_ns
            within = [wait for wait in waits if wait.start_ns >= start]
            made += _of_reserve([wait for wait in waits if wait.start_ns < start])
            waits.clear()
            waiting = sum(wait.end_ns - wait.start_ns for wait in within)
            name = f"ringcast.{span.kind}"
            made.append(Operation(start, end, end, end, name, "ringcast", span.bytes, waiting))
    made += _of_reserve(waits[:-MOST_APART])
    buffer.begun = waits[-MOST_APART:]
    return made


def _of_reserve(waits: List[Any]) -> List[Operation]:
    """The waiting of reserve(), with no call around; the commit is a call of its own."""
    made = []
    for wait in waits:
        if wait.kind == "wait_room":
            start, end = wait.start_ns, wait.end_ns
            made.append(
                Operation(start, end, end, end, "ringcast.reserve", "ringcast", 0, end - start)
            )
    return made


# ---- Regions and a program's own operations, for `with` -----------------------------------------

LONGEST = 200  # characters of a name


def checked(name: str, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{what}'s name is a str that is not empty, not {name!r}")
    return name[:LONGEST]


@contextlib.contextmanager
def region(recorder: Recorder, name: str) -> Iterator[None]:
    if not recorder.on:
        yield
        return
    buffer = recorder.buffer()
    recorder.device.wait()
    opened = OpenRegion(name, recorder.clock())
    buffer.open.append(opened)
    try:
        yield
    finally:
        if recorder.on:
            recorder.device.wait()
        with recorder.lock:  # a step may end in another thread
            buffer.open.remove(opened)
            if recorder.on:
                buffer.items.append(RegionRecord(opened.start, recorder.clock(), name))
        if len(buffer.items) >= MOST_WAITING and not buffer.depth:
            recorder.overflow()


@contextlib.contextmanager
def operation(recorder: Recorder, name: str, nbytes: int) -> Iterator[None]:
    if not recorder.on:
        yield
        return
    buffer = recorder.buffer()
    buffer.depth += 1
    on_device = recorder.device.wait()
    start, failed = recorder.clock(), True
    try:
        yield
        failed = False
    finally:
        if on_device:
            recorder.device.wait()
        end = recorder.clock()
        buffer.depth -= 1
        times = start, end, end, end
        buffer.items.append(Operation(*times, name, "own", nbytes, None, on_device, failed))
        if (len(buffer.items) >= MOST_WAITING or end > recorder.due) and not buffer.depth:
            recorder.overflow()


def hooks(profile: Any, module: Any, name: str) -> Iterator[Any]:
    entered = threading.local()

    def before(*_: Any) -> None:
        found = profile.region(name)
        found.__enter__()
        entered.__dict__.setdefault("stack", []).append(found)

    def after(*_: Any) -> None:
        if entered.__dict__.get("stack"):
            entered.stack.pop().__exit__(None, None, None)

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after, always_call=True)


# ---- A CUDA device -------------------------------------------------------------------------------


class Device:
    """What is done on a CUDA device is timed by waiting for the device before and after."""

    def __init__(self) -> None:
        self.cuda: Any = None  # torch.cuda, once it is initialised

    def look(self) -> None:
        """See whether the process uses CUDA by now. A profile never initialises CUDA."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if self.cuda is None and cuda is not None and cuda.is_initialized() and cuda.is_available():
            self.cuda = cuda

    def wait(self) -> bool:
        """For the current stream. False: there is no device, or a graph is being captured."""
        if self.cuda is None or self.cuda.is_current_stream_capturing():
            return False
        self.cuda.current_stream().synchronize()
        return True

    def memory(self) -> int:
        return int(self.cuda.memory_allocated()) if self.cuda is not None else 0

    def peak(self) -> int:
        return int(self.cuda.max_memory_allocated()) if self.cuda is not None else 0
