# SPDX-License-Identifier: Apache-2.0
"""Frames that are written in place, and frames that are packed once.

compose: a kernel of NumPy or torch writes an array, another process receives and sums the array. Either the kernel
writes into the frame (Writer.compose), or into an array that is then sent; the receiver copies, or reads in place
(retain=True). A copy is counted by address: memory that the kernel has written, or that the receiver reads, and that is
not the ring's, was copied.

packed: a value is sent on several rings, by a send() for each, or packed once. Both are measured in one process, on
rings without readers.
"""

import contextlib
import functools
import importlib
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import ringcast
from ringcast.bench import cases
from ringcast.bench.harness import Failed, Processes

MIB = 1 << 20
SIZES = (10 * MIB, 200 * MIB)
WAYS = ("send, recv", "compose, recv", "send, retained", "compose, retained")
WARM_UP = 2  # uncounted frames of each way; the first one of a kind is copied out
DEADLINE = 60.0
RINGS = (1, 2, 4, 8)
PACKED = ("metadata", "scheduler-256", "tensor-dict", "features")


def is_in_ring(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if first <= address < last:
                return "memfd:ringcast" in line
    return False


# ---- compose ---------------------------------------------------------------------------------------------------------


def _of_numpy(size: int) -> Tuple[Any, Any, Callable[[Any], None]]:
    """An array, its placeholder, and the kernel that writes such an array."""
    import numpy as np

    source = np.ones(size // 4, np.float32)
    return source, ringcast.empty(source.shape, source.dtype), lambda out: np.multiply(source, 2, out=out)


def _of_torch(size: int) -> Tuple[Any, Any, Callable[[Any], None]]:
    torch = importlib.import_module("torch")
    source = torch.ones(size // 4)
    return source, ringcast.empty(source.shape, source.dtype), lambda out: torch.mul(source, 2, out=out)


KERNELS = {"numpy": _of_numpy, "torch": _of_torch}


def _address(array: Any) -> int:
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


def _receive(rank: int, pipe: Any, handles: Dict[bool, str]) -> None:
    """Answers a request, whether to retain, with the number of copies and whether the sum is right."""
    with contextlib.ExitStack() as stack:
        readers = {
            retains: stack.enter_context(ringcast.Reader(handle, retain=retains, name="reader"))
            for retains, handle in handles.items()
        }
        pipe.send(None)
        while True:
            retains = pipe.recv()
            array = readers[retains].recv(DEADLINE)["x"]
            is_right = float(array.sum()) == 2.0 * len(array)
            pipe.send((0 if is_in_ring(_address(array)) else 1, is_right))
            del array


def _once(writers: Dict[bool, ringcast.Writer], reader: Processes, kind: Any, way: str) -> Dict[str, float]:
    """One frame, from the kernel's start until the receiver has read all of it."""
    source, placeholder, kernel = kind
    retains = way.endswith("retained")
    writer, mine = writers[retains], None
    reader.tell(retains)
    if way.startswith("send"):
        mine = source * 0
    start = time.perf_counter()
    if mine is not None:
        kernel(mine)
        writer.send({"x": mine, "step": 7}, DEADLINE)
        copies_in = 1
    else:
        with writer.compose({"x": placeholder, "step": 7}, DEADLINE) as frame:
            kernel(frame["x"])
            copies_in = 0 if is_in_ring(_address(frame["x"])) else 1
    written = time.perf_counter()
    ((copies_out, is_right),) = reader.hear()
    end = time.perf_counter()
    if not is_right:
        raise Failed(f"{way}: what arrived is not what was sent")
    total, source = (end - start) * 1e6, (written - start) * 1e6
    return {"total_us": total, "source_us": source, "copies_in": copies_in, "copies_out": copies_out}


def _figures(name: str, size: int, rounds: int) -> Dict[str, Dict[str, Any]]:
    kind = KERNELS[name](size)
    taken: Dict[str, List[Dict[str, float]]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as stack:
        writers = {retains: stack.enter_context(ringcast.Writer()) for retains in (False, True)}
        handles = {retains: writer.handle for retains, writer in writers.items()}
        reader = stack.enter_context(Processes(1, _receive, handles))
        reader.hear()
        for _ in range(rounds + WARM_UP):
            for way in WAYS:
                taken[way].append(_once(writers, reader, kind, way))
    found = {
        way: {key: statistics.median(one[key] for one in its[WARM_UP:]) for key in its[0]} for way, its in taken.items()
    }
    for way, figures in found.items():
        figures["mib_copied"] = (figures["copies_in"] + figures["copies_out"]) * size / MIB
        figures["ratio"] = figures["total_us"] / found[WAYS[0]]["total_us"]
    return {f"{name}, {size // MIB} MiB: {way}": figures for way, figures in found.items()}


def compose(rounds: int) -> Dict[str, Any]:
    """Medians of `rounds` frames of each way, in turns."""
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    for name in KERNELS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found["left_out"][name] = str(error)
            continue
        for size in SIZES:
            found["cases"].update(_figures(name, size, rounds))
    return found


# ---- packed ----------------------------------------------------------------------------------------------------------


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _case(name: str, rounds: int) -> Dict[str, Dict[str, float]]:
    value, found = cases.CASES[name](), {}
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(ringcast.Writer(readers=1)) for _ in range(max(RINGS))]

        def each(count: int) -> None:
            for writer in writers[:count]:
                writer.send(value)

        def once(count: int) -> None:
            packed = ringcast.pack(value)
            for writer in writers[:count]:
                writer.send(packed)

        for count in RINGS:
            ways = functools.partial(each, count), functools.partial(once, count)
            turns = [tuple(map(_timed, ways)) for _ in range(rounds + WARM_UP)]
            sends, packs = (statistics.median(column) for column in zip(*turns[WARM_UP:]))
            rings = f"{count} ring{'s' if count > 1 else ''}"
            found[f"{name}, {rings}"] = {"send_us": sends, "pack_us": packs, "ratio": packs / sends}
    return found


def packed(rounds: int) -> Dict[str, Any]:
    """Medians of `rounds` times, in turns."""
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    for name in PACKED:
        try:
            found["cases"].update(_case(name, rounds))
        except cases.LeftOut as error:
            found["left_out"][name] = str(error)
    return found
