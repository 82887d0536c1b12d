# SPDX-License-Identifier: Apache-2.0
"""Takes records in each thread, and sums them up when a step ends.

The hot path appends to a list of the thread. What costs more comes at the end of a step: which operation lies within
another (an engine's all_reduce calls torch's), in which region, and how long at least one thread was in communication.
"""

import threading
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ringcast.profile.device import Devices
from ringcast.profile.store import Operation, Region, Row, Store, key_of

# A thread with so many records does not wait for the end of the step.
MOST_WAITING = 8192

Interval = Tuple[int, int]


class RegionRecord(NamedTuple):
    start: int
    end: int
    name: str
    events: Any = None
    counts: bool = True  # False: the part of an earlier step of a region that goes on


class OpenRegion:
    """A region that a thread is in."""

    __slots__ = ("name", "start", "events")

    def __init__(self, name: str, start: int, events: Any) -> None:
        self.name, self.start, self.events = name, start, events


class Buffer:
    """What one thread recorded and nothing summed up yet."""

    def __init__(self, native: int, thread: Optional[threading.Thread]) -> None:
        self.native = native
        self.thread = weakref.ref(thread) if thread is not None else None
        self.items: List[Any] = []  # Operation and RegionRecord, in the order of their ends
        self.spans: List[Any] = []
        self.open: List[OpenRegion] = []
        self.depth = 0  # operations that this thread is in

    def is_done(self) -> bool:
        """Nothing is in it, and nothing will come."""
        thread = self.thread() if self.thread is not None else None
        return not (self.items or self.spans or self.open or (thread is not None and thread.is_alive()))


class Recorder:
    def __init__(self, clock: Callable[[], int], rank: Callable[[], int], overflow: Callable[[], None]) -> None:
        self.clock, self.rank, self.overflow = clock, rank, overflow
        self.on = False
        self.devices = Devices()
        self.lock = threading.RLock()
        self._local = threading.local()
        self._buffers: Dict[int, Buffer] = {}  # by the thread's native id

    # ---- The hot path ------------------------------------------------------------------------------------------------

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
        for span in spans:
            buffer = self._buffers.get(span.thread)
            if buffer is None:
                with self.lock:
                    buffer = self._buffers.setdefault(span.thread, Buffer(span.thread, None))
            buffer.spans.append(span)
            if len(buffer.spans) == MOST_WAITING:
                self.overflow()

    # ---- At the end of a step ----------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Forget what was recorded, but for the regions that threads are in: they begin anew."""
        now = self.clock()
        with self.lock:
            for native, buffer in list(self._buffers.items()):
                del buffer.items[:], buffer.spans[:]
                for region in buffer.open:
                    region.start, region.events = now, None
                self._forget(native, buffer)

    def collect(self, store: Store, since: int, step: int, cut: bool) -> int:
        """Sum up what was recorded; the time since then in which a thread was in communication. cut: a step ends here,
        also for the regions that go on."""
        now = self.clock()
        busy: List[Interval] = []
        with self.lock:
            for native, buffer in list(self._buffers.items()):
                if buffer.depth:
                    continue  # an operation is under way, and what lies within it must wait for it
                if cut:
                    _cut(buffer, now)
                items, spans = _take(buffer.items), _take(buffer.spans)
                if items or spans:
                    busy += self._sum_up(buffer, items, spans, store, step)
                self._forget(native, buffer)
            self.devices.settle(lambda *told: self._settled(store, *told))
        return union(busy, since, now)

    def finish(self, store: Store) -> None:
        """Wait for the device, and sum up what was left open there."""
        self.devices.finish()
        self.devices.settle(lambda *told: self._settled(store, *told))

    def _forget(self, native: int, buffer: Buffer) -> None:
        if buffer.is_done():
            del self._buffers[native]

    def _sum_up(self, buffer: Buffer, items: List[Any], spans: List[Any], store: Store, step: int) -> List[Interval]:
        if spans:
            items = operations_of(spans, buffer, store) + items
        entries = place(items, buffer.open)
        busy: List[Interval] = []
        for entry in reversed(entries):  # what lies within comes first
            if entry.parent is not None:
                entry.parent.bytes += entry.total_bytes()
        for entry in entries:
            record = entry.record
            if record.events is not None:
                self.devices.add(
                    record, entry.nested, entry.region, entry.wait_region, entry.total_bytes(), step, buffer
                )
            elif isinstance(record, RegionRecord):
                _add_region(store, record, record.end - record.start, entry.region)
                self._keep_row(store, record, record.end - record.start, 0, entry, step, buffer.native)
            else:
                self._add_operation(store, entry, step, buffer.native, busy)
        return busy

    def _add_operation(self, store: Store, entry: "Entry", step: int, thread: int, busy: List[Interval]) -> None:
        record = entry.record
        nbytes = entry.total_bytes()
        call, wait = record.call_end - record.start, record.end - record.wait_start
        _add_totals(store, record, nbytes, entry.region, entry.nested, record.end - record.start, call + wait)
        if not entry.nested:
            if record.communicates:
                busy.append((record.start, record.call_end))
                if wait:
                    busy.append((record.wait_start, record.end))
            if entry.region:
                store.region(entry.region).add_part(record.name, call)
            if entry.wait_region:
                store.region(entry.wait_region).add_part(record.name, wait)
        self._keep_row(store, record, record.end - record.start, call + wait, entry, step, thread)

    def _settled(self, store: Store, told: Any, duration: int, exposed: int) -> None:
        """A record whose time the device has measured."""
        record = told.record
        if isinstance(record, RegionRecord):
            _add_region(store, record, duration, told.region)
        else:
            _add_totals(store, record, told.bytes, told.region, told.nested, duration, exposed)
            if not told.nested and record.communicates:
                store.exposed += exposed
            if told.region and not told.nested:
                store.region(told.region).add_part(record.name, exposed)
        self._keep_row(store, record, duration, exposed, told, told.step, told.thread)

    def _keep_row(
        self, store: Store, record: Any, duration: int, exposed: int, entry: Any, step: int, thread: int
    ) -> None:
        if store.rows.wants():
            store.rows.add(row_of(record, duration, exposed, entry, (step, self.rank(), thread)))


def row_of(record: Any, duration: int, exposed: int, entry: Any, where: Tuple[int, int, int]) -> Row:
    step, rank, thread = where
    device = int(record.events is not None)
    if isinstance(record, RegionRecord):
        region = f"{entry.region} > {record.name}" if entry.region else record.name
        row = Row(
            record.start / 1e9, "region", 0, duration / 1e9, 0, None, 0, region, step, rank, thread, "own", 0, device, 0
        )
        return row
    nbytes = entry.bytes if record.bytes is None else record.bytes
    waiting = record.waiting
    moving = duration - (waiting or 0) if record.source == "ringcast" else duration
    return Row(
        record.start / 1e9, record.name, nbytes, duration / 1e9, nbytes / moving if moving > 0 else 0.0,
        None if waiting is None else waiting / 1e9, exposed / 1e9, entry.region, step, rank, thread, record.source,
        int(entry.nested), device, int(record.failed),
    )  # fmt: skip


def _add_region(store: Store, record: RegionRecord, duration: int, parent: str) -> None:
    region = store.region(record.name)
    if record.counts:
        region.totals.add(duration)
    else:
        region.totals.total += duration
    if parent:
        region.inner = True
        store.region(parent).add_part(record.name, duration)


def _add_totals(
    store: Store, record: Operation, nbytes: int, region: str, nested: bool, duration: int, exposed: int
) -> None:
    totals = store.totals(key_of(record, nbytes, region, nested))
    waiting = record.waiting
    moving = duration - waiting if waiting and record.source == "ringcast" else duration
    totals.add(duration, nbytes, moving)
    totals.exposed += exposed
    if waiting is not None:
        totals.waiting += min(waiting, duration)
        totals.told += 1
    totals.failed += record.failed


def _take(items: List[Any]) -> List[Any]:
    """The thread may append meanwhile, so nothing but what was taken goes."""
    count = len(items)
    taken = items[:count]
    del items[:count]
    return taken


def _cut(buffer: Buffer, now: int) -> None:
    for region in list(buffer.open):
        if region.events is None:
            buffer.items.append(RegionRecord(region.start, now, region.name, None, False))
            region.start = now


def union(intervals: List[Interval], since: int, until: int) -> int:
    """The length of what the intervals cover between the two."""
    covered, reached = 0, since
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, until)
        if end > start:
            covered += end - start
            reached = end
    return covered


# ---- Which record lies within which ----------------------------------------------------------------------------------


class Entry:
    __slots__ = ("record", "region", "wait_region", "parent", "bytes")

    def __init__(self, record: Any) -> None:
        self.record = record
        self.region = self.wait_region = ""
        self.parent: Optional[Entry] = None
        self.bytes = 0  # of the operations within

    @property
    def nested(self) -> bool:
        return self.parent is not None

    def total_bytes(self) -> int:
        own = getattr(self.record, "bytes", 0)
        return self.bytes if own is None else own


def place(items: List[Any], still_open: List[OpenRegion]) -> List[Entry]:
    """The entries of a thread's records in the order of their starts, each with its region, and its parent if it lies
    within another operation. `items` has an outer record after those within it."""
    keyed: List[Tuple[int, int, int, Any, Entry]] = []
    for index, record in enumerate(items):
        entry = Entry(record)
        keyed.append((record.start, -record.end, -index, record, entry))
        if isinstance(record, Operation) and record.wait_start < record.end:
            keyed.append((record.wait_start, -record.end, 1, None, entry))
    keyed.sort(key=lambda each: each[:3])
    # What contains, outermost first: (end, region's name or None, entry of an operation or None).
    around: List[Tuple[float, Optional[str], Optional[Entry]]] = [
        (float("inf"), region.name, None) for region in list(still_open)
    ]
    entries = []
    for start, minus_end, _, record, entry in keyed:
        while around and around[-1][0] < start:
            around.pop()
        region, parent = _around(around, -minus_end)
        if record is None:
            entry.wait_region = region
            continue
        entry.region = region
        entries.append(entry)
        if isinstance(record, RegionRecord):
            around.append((record.end, record.name, None))
            continue
        entry.parent = parent
        if record.call_end == record.end:  # one under way does not contain what the thread does meanwhile
            around.append((record.end, None, entry))
    return entries


def _around(around: List[Tuple[float, Optional[str], Optional[Entry]]], end: int) -> Tuple[str, Optional[Entry]]:
    region, parent = "", None
    for until, name, entry in reversed(around):
        if until < end:
            continue
        if name is not None and not region:
            region = name
        elif entry is not None and parent is None and entry.record.communicates:
            parent = entry
        if region and parent is not None:
            break
    return region, parent


# ---- ringcast's spans ------------------------------------------------------------------------------------------------

WHOLE = {"send": "wait_room", "recv": "wait_frame"}  # the call, and its waiting for the other side
MOST_APART = 64  # phases of a call that has not ended


def operations_of(spans: List[Any], buffer: Buffer, store: Store) -> List[Operation]:
    """An operation of each whole call. Parts of a call that has not ended go back into the buffer."""
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns, span.kind not in WHOLE))
    made: List[Operation] = []
    call: Optional[Any] = None
    parts: Dict[str, int] = {}
    apart: List[Any] = []
    for span in [*spans, None]:
        if span is None or span.kind in WHOLE:
            if call is not None:
                made.append(_operation(call, parts, store))
            call, parts = span or call, {}
        elif call is not None and span.start_ns <= call.end_ns:
            parts[span.kind] = parts.get(span.kind, 0) + span.end_ns - span.start_ns
        else:
            apart.append(span)
    for span in apart:
        # No call is around the waiting of reserve(), whose commit is a call of its own.
        if len(apart) < MOST_APART and (call is None or span.start_ns > call.end_ns):
            buffer.spans.append(span)
        elif span.kind == "wait_room":
            start, end = span.start_ns, span.end_ns
            made.append(Operation(start, end, end, end, "ringcast.reserve", "ringcast", 0, end - start))
    return made


def _operation(call: Any, parts: Dict[str, int], store: Store) -> Operation:
    name = f"ringcast.{call.kind}"
    for phase, ns in parts.items():
        store.phase(name, phase).add(ns)
    end = call.end_ns
    return Operation(call.start_ns, end, end, end, name, "ringcast", call.bytes, parts.get(WHOLE[call.kind], 0))
