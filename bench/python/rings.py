# SPDX-License-Identifier: Apache-2.0
"""What single features of a ring cost.

batch    small values in a stream to another process, by send, send_bytes and send_many: values a second, until the
         receiver has the last one
asyncio  from a send until a sleeping receiver of another process has the value: in recv(), and in arecv() under asyncio
         and uvloop
compose  a kernel writes an array, another process receives and sums it. The kernel writes into the frame
         (Writer.compose), or into an array that is then sent; the receiver copies, or reads in place (retain=True). A
         copy is counted by address: memory that the kernel has written, or that the receiver reads, and that is not the
         ring's, was copied
packed   a value sent on several rings without readers, by a send for each, or packed once
"""

import asyncio
import contextlib
import functools
import importlib
import statistics
import time
from importlib import util
from typing import Any, Callable, Dict, List, Sequence

import ringcast

from bench.python import cases
from bench.python.harness import Failed, Processes, Table, in_turns

DEADLINE = 60.0
MIB = 1 << 20


def medians(taken: Sequence[Dict[str, float]]) -> Dict[str, float]:
    return {key: statistics.median(one[key] for one in taken) for key in taken[0]}


# ---- batch -----------------------------------------------------------------------------------------------------------

BATCH = 256  # values of one call
BATCHES: Dict[str, Any] = {"bytes-16": b"x" * 16, "bytes-256": b"x" * 256, "str-16": "x" * 16, "int": 1 << 40}


def _receive(rank: int, pipe: Any, handle: str) -> None:
    with ringcast.Reader(handle) as reader:
        while True:
            in_batches, count = pipe.recv()
            while in_batches and count > 0:
                count -= len(reader.recv_many(DEADLINE))
            for _ in range(count):
                reader.recv(DEADLINE)
            pipe.send(None)


def batch(names: Sequence[str], seconds: float) -> Dict[str, Any]:
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    with ringcast.Writer(1 << 20) as writer, Processes(1, _receive, writer.handle) as processes:
        writer.wait_readers(1, DEADLINE)

        def way(call: Callable[[Any], Any], value: Any, calls: int) -> Callable[[int], float]:
            def measure(rounds: int) -> float:
                processes.tell((calls == 1, rounds * BATCH))
                start = time.perf_counter()
                for _ in range(rounds * calls):
                    call(value)
                processes.hear()
                return rounds * BATCH / (time.perf_counter() - start)

            return measure

        for name in names:
            value = BATCHES[name]
            ways = {"send": way(writer.send, value, BATCH), "send_many": way(writer.send_many, [value] * BATCH, 1)}
            if isinstance(value, bytes):
                ways["send_bytes"] = way(writer.send_bytes, value, BATCH)
            rates = {each: statistics.median(turns) for each, turns in in_turns(ways, seconds).items()}
            found["cases"][name] = {**rates, "ratio": rates["send_many"] / rates.get("send_bytes", rates["send"])}
    return found


# ---- asyncio ---------------------------------------------------------------------------------------------------------

GAP = 0.002  # seconds between two sends: many times a reader's spinning, so each receiver sleeps
FIRST = 5  # uncounted rounds: a receiver may still be starting
LOOPS = ("recv", "arecv_asyncio", "arecv_uvloop")


def _sleep(rank: int, pipe: Any, handles: List[str]) -> None:
    async def in_a_loop() -> List[int]:
        return [time.monotonic_ns() - sent async for sent in reader]

    with ringcast.Reader(handles[rank], name=LOOPS[rank]) as reader:
        if LOOPS[rank] == "recv":
            took = [time.monotonic_ns() - sent for sent in reader]
        elif LOOPS[rank] == "arecv_asyncio":
            took = asyncio.run(in_a_loop())
        else:
            loop = importlib.import_module("uvloop").new_event_loop()
            took = loop.run_until_complete(in_a_loop())
            loop.close()
        pipe.send((took, reader.stats().sleeps))


def wakeups(rounds: int) -> Dict[str, Any]:
    """slept: the share of the sends before which the receiver in recv() slept; tasks are not counted."""
    ways = LOOPS if util.find_spec("uvloop") else LOOPS[:-1]
    found: Dict[str, Any] = {"cases": {}, "left_out": {way: "needs uvloop" for way in LOOPS if way not in ways}}
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(ringcast.Writer(1 << 16)) for _ in ways]
        processes = stack.enter_context(Processes(len(ways), _sleep, [writer.handle for writer in writers]))
        for writer in writers:
            writer.wait_readers(1, DEADLINE)
        for _ in range(rounds + FIRST):
            for writer in writers:
                time.sleep(GAP)
                writer.send(time.monotonic_ns(), DEADLINE)
        for writer in writers:
            writer.close()
        for way, (took, sleeps) in zip(ways, processes.hear()):
            found["cases"][way] = {"p50_us": statistics.median(took[FIRST:]) / 1000}
            if way == "recv":
                found["cases"][way]["slept"] = min(1.0, sleeps / (rounds + FIRST))
    return found


# ---- compose ---------------------------------------------------------------------------------------------------------

SIZES = (10 * MIB, 200 * MIB)
WAYS = ("send, recv", "compose, recv", "send, retained", "compose, retained")
WARM_UP = 2  # uncounted frames of each way; the first one of a kind is copied out


def _of_numpy(size: int) -> Any:
    """An array, its placeholder, and the kernel that writes such an array."""
    import numpy as np

    source = np.ones(size // 4, np.float32)
    return source, ringcast.empty(source.shape, source.dtype), lambda out: np.multiply(source, 2, out=out)


def _of_torch(size: int) -> Any:
    torch = importlib.import_module("torch")
    source = torch.ones(size // 4)
    return source, ringcast.empty(source.shape, source.dtype), lambda out: torch.mul(source, 2, out=out)


KERNELS = {"numpy": _of_numpy, "torch": _of_torch}


def copies_of(array: Any) -> int:
    """0 if the array's memory is the ring's."""
    address = int(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if first <= address < last:
                return 0 if "memfd:ringcast" in line else 1
    return 1


def _sum(rank: int, pipe: Any, handles: Dict[bool, str]) -> None:
    """Answers a request, whether to retain, with the number of copies and whether the sum is right."""
    with contextlib.ExitStack() as stack:
        readers = {
            retains: stack.enter_context(ringcast.Reader(handle, retain=retains)) for retains, handle in handles.items()
        }
        pipe.send(None)
        while True:
            array = readers[pipe.recv()].recv(DEADLINE)["x"]
            is_right = float(array.sum()) == 2.0 * len(array)
            pipe.send((copies_of(array), is_right))
            del array


def _once(writers: Dict[bool, ringcast.Writer], reader: Processes, kind: Any, way: str) -> Dict[str, float]:
    """One frame, from the kernel's start until the receiver has read all of it."""
    source, placeholder, kernel = kind
    retains = way.endswith("retained")
    mine = source * 0 if way.startswith("send") else None
    reader.tell(retains)
    start = time.perf_counter()
    if mine is not None:
        kernel(mine)
        writers[retains].send({"x": mine, "step": 7}, DEADLINE)
        copies_in = 1
    else:
        with writers[retains].compose({"x": placeholder, "step": 7}, DEADLINE) as frame:
            kernel(frame["x"])
            copies_in = copies_of(frame["x"])
    written = time.perf_counter()
    ((copies_out, is_right),) = reader.hear()
    end = time.perf_counter()
    if not is_right:
        raise Failed(f"{way}: what arrived is not what was sent")
    total, source = (end - start) * 1e6, (written - start) * 1e6
    return {"total_us": total, "source_us": source, "copies_in": copies_in, "copies_out": copies_out}


def compose(rounds: int) -> Dict[str, Any]:
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    for name, size in [(name, size) for name in KERNELS for size in SIZES]:
        if not util.find_spec(name):
            found["left_out"][name] = "is not installed here"
            continue
        kind = KERNELS[name](size)
        taken: Dict[str, List[Dict[str, float]]] = {way: [] for way in WAYS}
        with contextlib.ExitStack() as stack:
            writers = {retains: stack.enter_context(ringcast.Writer()) for retains in (False, True)}
            handles = {retains: writer.handle for retains, writer in writers.items()}
            reader = stack.enter_context(Processes(1, _sum, handles))
            reader.hear()
            for _ in range(rounds + WARM_UP):
                for way in WAYS:
                    taken[way].append(_once(writers, reader, kind, way))
        figures: Dict[str, Any] = {way: medians(its[WARM_UP:]) for way, its in taken.items()}
        for way, its in figures.items():
            its["ratio"] = its["total_us"] / figures[WAYS[0]]["total_us"]
            found["cases"][f"{name}, {size // MIB} MiB: {way}"] = its
    return found


# ---- packed ----------------------------------------------------------------------------------------------------------

RINGS = (1, 2, 4, 8)
PACKED = ("metadata", "scheduler-256", "tensor-dict", "features")


def packed(rounds: int) -> Dict[str, Any]:
    there, left_out = cases.there(PACKED)
    found: Dict[str, Any] = {"cases": {}, "left_out": left_out}

    def each(writers: Sequence[ringcast.Writer], value: Any) -> None:
        for writer in writers:
            writer.send(value)

    def timed(call: Callable[[], None]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(ringcast.Writer(readers=1)) for _ in range(max(RINGS))]
        for name in there:
            value = cases.CASES[name]()
            for count in RINGS:
                some = writers[:count]
                ways = {
                    "send_us": functools.partial(each, some, value),
                    "pack_us": lambda some=some, value=value: each(some, ringcast.pack(value)),
                }
                turns = [{way: timed(call) for way, call in ways.items()} for _ in range(rounds + WARM_UP)]
                its = medians(turns[WARM_UP:])
                rings = f"{count} ring{'s' if count > 1 else ''}"
                found["cases"][f"{name}, {rings}"] = {**its, "ratio": its["pack_us"] / its["send_us"]}
    return found


# ---- As a table ------------------------------------------------------------------------------------------------------


def tables(found: Dict[str, Any]) -> List[Table]:
    """A column for each figure, the unit in its name."""
    keys = dict.fromkeys(key for figures in found["cases"].values() for key in figures)
    return [("case", [(key.replace("_us", ", us").replace("_", " "), key) for key in keys], found["cases"])]
