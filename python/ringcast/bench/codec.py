# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding in one process: ringcast.pack and ringcast.unpack beside pickle.dumps and pickle.loads of
protocol 5, in turns. What was made is dropped at once, in the time that is measured; the garbage collector is on."""

import pickle
import statistics
import time
from itertools import repeat
from typing import Any, Callable, Dict

import ringcast
from ringcast.bench.turns import in_turns

# Each loop is written out: one more call for each round would be a good part of what is measured.


def encode(value: Any, rounds: int) -> float:
    pack = ringcast.pack
    start = time.perf_counter()
    for _ in repeat(None, rounds):
        pack(value)
    return (time.perf_counter() - start) / rounds


def decode(value: Any, rounds: int) -> float:
    unpack, frame = ringcast.unpack, ringcast.pack(value)
    start = time.perf_counter()
    for _ in repeat(None, rounds):
        unpack(frame)
    return (time.perf_counter() - start) / rounds


def both(value: Any, rounds: int) -> float:
    pack, unpack = ringcast.pack, ringcast.unpack
    start = time.perf_counter()
    for _ in repeat(None, rounds):
        unpack(pack(value))
    return (time.perf_counter() - start) / rounds


def encode_pickle(value: Any, rounds: int) -> float:
    dumps = pickle.dumps
    start = time.perf_counter()
    for _ in repeat(None, rounds):
        dumps(value, 5)
    return (time.perf_counter() - start) / rounds


def decode_pickle(value: Any, rounds: int) -> float:
    loads, data = pickle.loads, pickle.dumps(value, 5)
    start = time.perf_counter()
    for _ in repeat(None, rounds):
        loads(data)
    return (time.perf_counter() - start) / rounds


def both_pickle(value: Any, rounds: int) -> float:
    dumps, loads = pickle.dumps, pickle.loads
    start = time.perf_counter()
    for _ in repeat(None, rounds):
        loads(dumps(value, 5))
    return (time.perf_counter() - start) / rounds


LOOPS: Dict[str, Dict[str, Callable[[Any, int], float]]] = {
    "ringcast": {"encode_us": encode, "decode_us": decode, "encode_decode_us": both},
    "pickle": {"encode_us": encode_pickle, "decode_us": decode_pickle, "encode_decode_us": both_pickle},
}


def measure(value: Any, seconds: float) -> Dict[str, Any]:
    """The figures of any value, units in their names, as `--format json` has them."""

    def way(loop: Callable[[Any, int], float]) -> Callable[[int], float]:
        return lambda rounds: loop(value, rounds)

    ways = {f"{what} {name}": way(loops[what]) for what in LOOPS["ringcast"] for name, loops in LOOPS.items()}
    turns = in_turns(ways, seconds)
    found: Dict[str, Any] = {
        name: {what: statistics.median(turns[f"{what} {name}"]) * 1e6 for what in loops}
        for name, loops in LOOPS.items()
    }
    found["ratio"] = {
        what.replace("_us", ""): found["ringcast"][what] / found["pickle"][what] for what in LOOPS["ringcast"]
    }
    found["ringcast"]["bytes"] = ringcast.pack(value).nbytes
    found["pickle"]["bytes"] = len(pickle.dumps(value, 5))
    found["turns"] = len(turns["encode_us ringcast"])
    return found
