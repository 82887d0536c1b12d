# SPDX-License-Identifier: Apache-2.0
"""
The work of a group's members in a step: for each scenario a function of the writer and one of the
readers.

Each function returns the times of the messages, in ns of the monotonic clock, which is the same in
all processes; 0 where a message doesn't count. The reader looks at the number of each message, and
at the contents of some, after the time is taken: a message that was lost, repeated or damaged ends
the step.
"""

import contextlib
import os
import pickle
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from board import LAST, STARTED, WRITTEN, Board
from payloads import NUMBER, Payload, same

clock = time.perf_counter_ns
Times = Dict[str, Any]

LEAST = 5  # messages, whatever the time
SLOW = 0.010  # seconds; a slow reader takes so long for a message
PERIODS = {"slow": 0.002, "every25": 0.025, "idle": 10.0}  # seconds between two messages
THERE = (
    0.003  # seconds from the end of a write, in which a peer's threads have delivered the message
)
HELD = 0.010  # seconds; then a reader concludes: the write waits for the read
# The fewest and the most values that a stream has in turn, if they are read later.
SPARES = (
    8,
    1000,
)
ROTATED = 4 << 20  # bytes of these values together, if this is more than the fewest
BLOCK = 10  # calls until the counting thread of "gil" stops or goes on
INTERVAL = 1e-4  # seconds of the interpreter's switch interval in "gil"


class Wrong(Exception):
    """A message was lost, repeated or damaged."""


class Run(NamedTuple):
    """One step, as seen by a member."""

    way: Any
    board: Board
    payload: Payload
    values: List[Any]  # the variants
    write: Callable[[Any], None]
    read: Callable[[], Any]
    finish: Callable[[], None]  # after each read message, when no view of the message is left
    scenario: str
    messages: int
    seconds: float  # afterwards no more messages are begun
    base: int  # added to the numbers
    rank: int
    warm: int  # the first messages of a stream, which don't count
    spares: List[
        Any
    ]  # not empty: the way reads later than in write(), and the writer sends these in turn

    def value(self, n: int) -> Any:
        """Message n, with its number. A spare is used again when all readers have read its last
        message."""
        values = self.spares or self.values
        if self.spares and n >= len(values):
            self.board.wait_readers(n - len(values) + 1, spin=False)
        value = values[n % len(values)]
        self.payload.stamp(value, self.base + n)
        return value

    def numbers(self) -> Iterator[int]:
        """Of the writer's messages. The board tells the last one before it is sent."""
        end, least = 0, self.warm + LEAST - 1
        for n in range(self.messages):
            if n == self.warm:
                end = clock() + int(self.seconds * 1e9)
            if n == self.messages - 1 or (n >= least and clock() > end):
                self.board.words[LAST] = n + 1
            yield n
            if self.board.words[LAST]:
                return

    def check(self, n: int, value: Any, contents: bool) -> None:
        number = self.payload.number(value) - self.base
        if number != n:
            raise Wrong(f"message {n} was to come, and message {number} came")
        if contents:
            sent = self.values[n % len(self.values)]
            self.payload.stamp(sent, self.base + n)
            if not same(sent, value):
                raise Wrong(
                    f"message {n} of {self.payload.name} has other contents than were written"
                )


def spares(values: List[Any], step: Dict[str, Any]) -> List[Any]:
    """
    Copies of the variants, made before the time is taken: as many as messages may be on the way.
    """
    count: int = step["messages"]
    if step["scenario"] == "stream":
        count = min(count, max(SPARES[0], min(SPARES[1], ROTATED // max(1, step["bytes"]))))
    made = []
    for n in range(-(-count // len(values)) * len(values)):
        value = values[n % len(values)]
        raw = isinstance(value, bytes)
        made.append(bytes(memoryview(value)) if raw else pickle.loads(pickle.dumps(value, 5)))
    return made


def often(n: int) -> bool:
    """Whether the contents of a message are looked at."""
    return n < 8 or n % 64 == 0


# ---- One message at a time -----------------------------------------------------------------------


def write_in_turn(run: Run) -> Times:
    """Of "one-way" and "call": the next message starts when all readers have read the last."""
    starts, spent = [], []
    words, write = run.board.words, run.write
    for n in run.numbers():
        value = run.value(n)
        words[STARTED] = n + 1
        start = clock()
        write(value)
        spent.append(clock() - start)
        words[WRITTEN] = n + 1
        run.board.wait_readers(n + 1)
        starts.append(start)
    return {"starts": starts, "spent": spent}


def read_in_turn(run: Run) -> Times:
    """
    In "call" and "gil" the reader begins when the message is there, unless the write waits for the
    read.
    """
    ends, spent, held, n = [], [], 0, 0
    words, read = run.board.words, run.read
    after_write = run.scenario in ("call", "gil") and not run.way.collective
    while True:
        waited = after_write and not wait_written(run, n + 1)
        if after_write and not waited:
            time.sleep(THERE)
        start = clock()
        value = read()
        end = clock()
        run.check(n, value, often(n))
        del value
        run.finish()
        ends.append(end)
        spent.append(0 if waited else end - start)
        held, n = held + waited, n + 1
        last = words[LAST] == n
        run.board.done(n)
        if last:
            return {"ends": ends, "spent": spent, "held": held}


def wait_written(run: Run, count: int) -> bool:
    """Wait until the write is done; False: the write seems to wait for the read."""
    spin = run.scenario != "gil"
    run.board.wait_word(STARTED, count, spin=spin)
    return run.board.wait_word(WRITTEN, count, HELD, spin)


# ---- Many messages -------------------------------------------------------------------------------


def write_stream(run: Run) -> Times:
    write, n = run.write, 0
    start, cpu_start = clock(), time.process_time()
    for n in run.numbers():
        if 0 < n == run.warm:
            run.board.wait_readers(n, spin=False)
            start, cpu_start = clock(), time.process_time()
        write(run.value(n))
    cpu = time.process_time()
    run.board.wait_readers(n + 1, spin=False)
    return {"start": start, "cpu": cpu - cpu_start}


def read_all(run: Run) -> Times:
    """
    Of "stream", and of the scenarios with a pace. Contents: of the last message, after the time is
    taken; with a pace, of messages by often().
    """
    ends, n, cpu_start = [], 0, time.process_time()
    words, read, paced = run.board.words, run.read, run.scenario != "stream"
    slow = run.scenario == "slow" and run.rank == run.board.processes - 1
    while True:
        value = read()
        end = clock()
        run.check(n, value, (paced and often(n)) or words[LAST] == n + 1)
        del value
        run.finish()
        n += 1
        if n == run.warm:
            cpu_start = time.process_time()
        if run.spares or n <= run.warm:
            run.board.done(n)
        if paced:
            ends.append(end)
        if slow:
            time.sleep(SLOW)
        if words[LAST] == n:
            cpu = time.process_time() - cpu_start
            run.board.done(n)
            return {"ends": ends, "end": end, "count": n - run.warm, "cpu": cpu}


def write_paced(run: Run) -> Times:
    """A message every so many ms, whether or not the readers are ready."""
    starts, spent = [], []
    period, write, n, cpu_start = PERIODS[run.scenario], run.write, 0, time.process_time()
    due = time.monotonic() + period
    for n in run.numbers():
        value = run.value(n)
        time.sleep(max(0.0, due - time.monotonic()))
        start = clock()
        write(value)
        spent.append(clock() - start)
        starts.append(start)
        due += period
    cpu = time.process_time() - cpu_start
    run.board.wait_readers(n + 1, spin=False)
    return {"starts": starts, "spent": spent, "cpu": cpu}


# ---- The GIL -------------------------------------------------------------------------------------


class Counter(threading.Thread):
    """A second Python thread of the writer, which only counts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.wanted = threading.Event()
        self.start()

    def run(self) -> None:
        wanted = self.wanted
        while True:
            wanted.wait()
            while wanted._flag:  # type: ignore[attr-defined]  # a call of is_set() takes longer
                self.count += 1

    def speed(self) -> float:
        """Counts in a ns of the thread's CPU time while the main thread sleeps."""
        cpu = time.pthread_getcpuclockid(self.ident or 0)
        self.wanted.set()
        time.sleep(0.01)
        count, start = self.count, time.clock_gettime_ns(cpu)
        time.sleep(0.3)
        speed = (self.count - count) / (time.clock_gettime_ns(cpu) - start)
        self.wanted.clear()
        return speed


def write_beside(run: Run) -> Times:
    """
    Blocks of calls without and with the counting thread beside, in turn. In a call beside, either
    thread has the GIL at any time: the call has held it for its time less counts / speed. The
    reader sleeps until the write is done, where the way has room for the message, as there may be
    but two CPUs.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL)
    # Or further work of the machine counts as the GIL being held.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    counter = Counter()
    speed, write = counter.speed(), run.write
    alone, held = [], []
    for n in run.numbers():
        beside = n % (2 * BLOCK) >= BLOCK
        if n % BLOCK == 0:
            (counter.wanted.set if beside else counter.wanted.clear)()
            time.sleep(0.001)
        value = run.value(n)
        run.board.words[STARTED] = n + 1
        count, start = counter.count, clock()
        write(value)
        took = clock() - start
        (held if beside else alone).append(took - (counter.count - count) / speed * beside)
        run.board.words[WRITTEN] = n + 1
        run.board.wait_readers(n + 1, spin=False)
    counter.wanted.clear()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    sys.setswitchinterval(usual)
    return {"alone": alone, "with_gil": held}


SCENARIOS: Dict[str, Tuple[Callable[[Run], Times], Callable[[Run], Times]]] = {
    "one-way": (write_in_turn, read_in_turn),
    "call": (write_in_turn, read_in_turn),
    "stream": (write_stream, read_all),
    "slow": (write_paced, read_all),
    "every25": (write_paced, read_all),
    "idle": (write_paced, read_all),
    "gil": (write_beside, read_in_turn),
}


# ---- The calls of a way --------------------------------------------------------------------------


def calls(way: Any, reading: str, size: int) -> Tuple[Callable[[Any], None], Callable[[], Any]]:
    """The functions to write and to read a message."""
    if reading == "bytes":
        return way.write, way.read
    if reading == "objects":
        return way.write_object, way.read_object
    ends = struct.Struct(f"<Q{size - 16}xQ")
    last = size - NUMBER.size

    def write(value: List[int]) -> None:
        buffer = way.reserve(size)
        NUMBER.pack_into(buffer, 0, value[0])
        NUMBER.pack_into(buffer, last, value[1])
        del buffer
        way.commit()

    def read() -> Tuple[int, int]:
        buffer = way.read_in_place()
        if memoryview(buffer).nbytes < size:
            raise Wrong(
                f"a message of {memoryview(buffer).nbytes} bytes came, and {size} were reserved"
            )
        found: Tuple[int, int] = ends.unpack_from(buffer)
        return found

    return write, read
