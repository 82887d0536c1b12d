# SPDX-License-Identifier: Apache-2.0
"""The work of a group's members in a step: for each scenario a function of the writer and a function of the readers.

Each function returns the times of the messages, in ns of the monotonic clock, which is the same in all processes; 0
where a message doesn't count. The reader looks at the number of each message, and at the contents of some messages,
after the time is taken.
"""

import pickle
import struct
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from board import LAST, STARTED, WRITTEN, Board
from payloads import NUMBER, Payload, same

clock = time.perf_counter_ns
Times = Dict[str, Any]

LEAST = 5  # messages, whatever the time
SLOW = 0.010  # seconds; a slow reader takes so long for a message
PERIODS = {"slow": 0.002, "every5": 0.005, "every25": 0.025}  # seconds between two messages
THERE = 0.003  # seconds from the end of a write, in which a peer's threads have delivered the message
HELD = 0.010  # seconds; then a reader concludes: the write waits for the read
AGAIN = 0.25  # seconds until a message of a lossy way is written once more
SPARES = (8, 1000)  # the fewest and the most values that a stream has in turn, for a way that reads them later
ROTATED = 4 << 20  # bytes of these values together, if this is more than the fewest
WALK = 32 << 20  # bytes between two messages, in the scenario "cold"
REST = 0.002  # seconds, likewise


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
    idle: float  # seconds of the scenario "idle"
    base: int  # added to the numbers
    rank: int
    warm: int  # the first messages of a stream, which don't count
    keeps: bool  # the way reads a message later than in write()
    spares: List[Any]  # then the writer sends these values in turn


def value_of(run: Run, n: int) -> Any:
    """The value of message n, with the number. A spare is used again when all readers have read its last message."""
    values = run.spares or run.values
    if run.spares and n >= len(values):
        run.board.wait_readers(n - len(values) + 1, spin=False)
    value = values[n % len(values)]
    run.payload.stamp(value, run.base + n)
    return value


def spares(values: List[Any], step: Dict[str, Any]) -> List[Any]:
    """Copies of the variants, made before the time is taken: as many as messages may be on the way."""
    count: int = step["messages"]
    if step["scenario"] == "stream":
        count = min(count, max(SPARES[0], min(SPARES[1], ROTATED // max(1, step["bytes"]))))
    made = []
    for n in range(-(-count // len(values)) * len(values)):
        value = values[n % len(values)]
        made.append(bytes(memoryview(value)) if isinstance(value, bytes) else pickle.loads(pickle.dumps(value, 5)))
    return made


def numbers(run: Run) -> Iterator[int]:
    """The numbers of the writer's messages. The board tells readers the last number before the last message is sent."""
    end, least = 0, run.warm + LEAST - 1
    for n in range(run.messages):
        if n == run.warm:
            end = clock() + int(run.seconds * 1e9)
        if n == run.messages - 1 or (n >= least and clock() > end):
            run.board.words[LAST] = n + 1
        yield n
        if run.board.words[LAST]:
            return


def check(run: Run, n: int, value: Any, contents: bool) -> int:
    """How many messages were lost before the value; -1 if the message is old. `n` is the expected number."""
    number = run.payload.number(value) - run.base
    lost = number - n
    if lost and run.way.lossless:
        raise Wrong(f"message {n} was to come, and message {number} came")
    if lost < 0:
        return -1
    if contents:
        sent = run.values[number % len(run.values)]
        run.payload.stamp(sent, run.base + number)
        if not same(sent, value):
            raise Wrong(f"message {number} of {run.payload.name} has other contents than were written")
    return lost


def often(n: int) -> bool:
    """Whether the contents of a message are looked at."""
    return n < 8 or n % 64 == 0


# ---- One message at a time ------------------------------------------------------------------------------------------


def settle(run: Run, n: int, value: Any, spin: bool = True) -> bool:
    """Wait until all readers have read message n. If a lossy way has lost the message: write again, return False."""
    if run.way.lossless:
        return run.board.wait_readers(n + 1, spin=spin)
    first = True
    while not run.board.wait_readers(n + 1, AGAIN, spin):
        first = False
        run.write(value)
    return first


def write_in_turn(run: Run) -> Times:
    """Of "one-way", "call" and "cold": the next message starts when all readers have read the last."""
    starts, spent = [], []
    words, write, walk = run.board.words, run.write, walker(run)
    for n in numbers(run):
        value = value_of(run, n)
        walk(REST)
        words[STARTED] = n + 1
        start = clock()
        write(value)
        took = clock() - start
        words[WRITTEN] = n + 1
        counts = settle(run, n, value)
        starts.append(start if counts else 0)
        spent.append(took)
    return {"starts": starts, "spent": spent}


def read_in_turn(run: Run) -> Times:
    ends, spent, held, lost, n = [], [], 0, 0, 0
    words, read, walk = run.board.words, run.read, walker(run)
    after_write = run.scenario == "call" and not run.way.collective
    while True:
        waited = after_write and not wait_written(run.board, n + 1)
        if after_write and not waited:
            time.sleep(THERE)
        start = clock()
        value = read()
        end = clock()
        missed = check(run, n, value, often(n))
        del value
        run.finish()
        if missed < 0:
            continue
        ends += [0] * missed + [end]
        spent += [0] * missed + [0 if waited else end - start]
        held, lost, n = held + waited, lost + missed, n + missed + 1
        walk(0)
        last = words[LAST] == n
        run.board.done(n)
        if last:
            return {"ends": ends, "spent": spent, "held": held, "lost": lost}


def wait_written(board: Board, count: int) -> bool:
    """Wait until the write is done; False: the write seems to wait for the read."""
    board.wait_word(STARTED, count)
    return board.wait_word(WRITTEN, count, HELD)


def walker(run: Run) -> Callable[[float], None]:
    """In "cold": walks over more memory than the nearer caches hold, then sleeps; else nothing."""
    if run.scenario != "cold":
        return lambda rest: None
    import numpy as np

    block = np.ones(WALK // 8, np.int64)[::8]

    def walk(rest: float) -> None:
        block.sum()
        if rest:
            time.sleep(rest)

    return walk


# ---- Many messages ---------------------------------------------------------------------------------------------------


def write_stream(run: Run) -> Times:
    write, n, value = run.write, 0, None
    start, cpu_start = clock(), time.process_time()
    for n in numbers(run):
        if 0 < n == run.warm:
            settle(run, n - 1, value, spin=False)
            start, cpu_start = clock(), time.process_time()
        value = value_of(run, n)
        write(value)
    cpu = time.process_time()
    settle(run, n, value, spin=False)
    return {"start": start, "cpu_start": cpu_start, "cpu_end": cpu}


def read_all(run: Run) -> Times:
    """Of "stream", and of the scenarios with a pace. Contents: of the last message, after the time is taken; with a
    pace, of messages by often()."""
    ends, lost, n, cpu_start = [], 0, 0, time.process_time()
    words, read, paced = run.board.words, run.read, run.scenario != "stream"
    slow = run.scenario == "slow" and run.rank == run.board.processes - 1
    while True:
        value = read()
        end = clock()
        missed = check(run, n, value, (paced and often(n)) or words[LAST] == n + 1)
        del value
        run.finish()
        if missed < 0:
            continue
        lost, n = lost + missed, n + missed + 1
        if n == run.warm:
            lost, cpu_start = 0, time.process_time()
        if run.keeps or n <= run.warm:
            run.board.done(n)
        if paced:
            ends += [0] * missed + [end]
        if slow:
            time.sleep(SLOW)
        if words[LAST] == n:
            cpu = time.process_time()
            run.board.done(n)
            cpus = {"cpu_start": cpu_start, "cpu_end": cpu}
            return {"ends": ends, "end": end, "lost": lost, "count": n - run.warm, **cpus}


def write_paced(run: Run) -> Times:
    """A message every so many ms, whether or not the readers are ready."""
    starts, spent = [], []
    period, write, n, value = PERIODS[run.scenario], run.write, 0, None
    due = time.monotonic() + period
    for n in numbers(run):
        value = value_of(run, n)
        time.sleep(max(0.0, due - time.monotonic()))
        start = clock()
        write(value)
        spent.append(clock() - start)
        starts.append(start)
        due += period
    cpu = time.process_time()
    settle(run, n, value, spin=False)
    return {"starts": starts, "spent": spent, "cpu_end": cpu}


# ---- Seldom, and again ----------------------------------------------------------------------------------------------


def write_seldom(run: Run) -> Times:
    """Nothing for a long time, then one message. The CPU time counts the silence only."""
    starts, spent, cpu = [], [], 0.0
    for n in numbers(run._replace(seconds=float(1 << 30))):
        value = value_of(run, n)
        before = time.process_time()
        time.sleep(run.idle)
        cpu += time.process_time() - before
        start = clock()
        run.write(value)
        spent.append(clock() - start)
        counts = settle(run, n, value, spin=False)
        starts.append(start if counts else 0)
    return {"starts": starts, "spent": spent, "cpu": cpu}


def read_seldom(run: Run) -> Times:
    before = time.process_time()
    return {**read_in_turn(run), "cpu": time.process_time() - before}


def write_once(run: Run) -> Times:
    """One message, read again and again by the readers."""
    run.write(value_of(run, 0))
    cpu = time.process_time()
    run.board.words[WRITTEN] = 1
    run.board.wait_readers(1, spin=False)
    return {"cpu_end": cpu}


def read_often(run: Run) -> Times:
    run.board.wait_word(WRITTEN, 1)
    spent: List[int] = []
    read, end = run.way.read_again, clock() + int(run.seconds * 1e9)
    run.way.take()
    while len(spent) < run.messages and (len(spent) < LEAST or clock() < end):
        start = clock()
        value = read()
        spent.append(clock() - start)
        check(run, 0, value, often(len(spent)))
        del value
    run.board.done(1)
    return {"spent": spent}


SCENARIOS: Dict[str, Tuple[Callable[[Run], Times], Callable[[Run], Times]]] = {
    "one-way": (write_in_turn, read_in_turn),
    "call": (write_in_turn, read_in_turn),
    "cold": (write_in_turn, read_in_turn),
    "stream": (write_stream, read_all),
    "slow": (write_paced, read_all),
    "every5": (write_paced, read_all),
    "every25": (write_paced, read_all),
    "idle": (write_seldom, read_seldom),
    "shared": (write_once, read_often),
}


# ---- The calls of a way ----------------------------------------------------------------------------------------------


def calls(way: Any, reading: str, size: int) -> Tuple[Callable[[Any], None], Callable[[], Any]]:
    """The functions to write and to read a message."""
    if reading == "bytes":
        return way.write, way.read
    if reading == "objects":
        return way.write_object, way.read_object
    if reading == "typed":
        return way.write_typed, way.read_typed
    ends = struct.Struct(f"<Q{size - 16}xQ")
    first, last = NUMBER, size - NUMBER.size

    def write(value: List[int]) -> None:
        buffer = way.reserve(size)
        first.pack_into(buffer, 0, value[0])
        first.pack_into(buffer, last, value[1])
        del buffer
        way.commit()

    def read() -> Tuple[int, int]:
        buffer = way.read_in_place()
        if memoryview(buffer).nbytes < size:
            raise Wrong(f"a message of {memoryview(buffer).nbytes} bytes came, and {size} were reserved")
        found: Tuple[int, int] = ends.unpack_from(buffer)
        return found

    return write, read
