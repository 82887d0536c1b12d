# SPDX-License-Identifier: Apache-2.0
"""The payloads. Each message carries a number, by which the reader finds lost, repeated or mixed
messages.

A payload has a few variants of the value, the same in every process: the reader knows what must
arrive.
"""

import ctypes
import functools
import pickle
import random
import struct
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

# bench.python: the messages of our own measurements.
sys.path.append(str(Path(__file__).resolve().parents[2]))

NUMBER = struct.Struct("<Q")  # in front of bytes
# Where the contents of bytes begin; the last byte is the closing 0.
CONTENTS = bytes.__basicsize__ - 1
UNITS = {"Ki": 10, "Mi": 20}
LARGE = 1 << 20  # bytes; from here on there are 2 variants, below 4
BYTES = [f"bytes-{size}" for size in "64 1Ki 4Ki 64Ki 1Mi 4Mi 16Mi 64Mi".split()]
RECORDS = [f"records-{count}" for count in (10, 100, 1000, 10000)]
TABLES = [f"records-{count}-{kind}" for count in (1000, 10000) for kind in ("columns", "array")]
SCHEDULER = ["scheduler-1", "scheduler-64", "scheduler-256"]


class Payload(NamedTuple):
    name: str
    make: Callable[[int], Any]  # the value of a variant
    stamp: Callable[[Any, int], None]  # writes the number of the message into a value
    number: Callable[[Any], int]  # of a received value


def size_of(label: str) -> int:
    """The number for a label such as 64Ki."""
    for unit, shift in UNITS.items():
        if label.endswith(unit):
            return int(label[: -len(unit)]) << shift
    return int(label)


def at(name: str, make: Callable[[int], Any], *path: Any) -> Payload:
    """A payload with the number at value[path[0]][path[1]]..."""

    def holder(value: Any) -> Any:
        for key in path[:-1]:
            value = value[key]
        return value

    def stamp(value: Any, number: int) -> None:
        holder(value)[path[-1]] = number

    return Payload(name, make, stamp, lambda received: int(holder(received)[path[-1]]))


def in_front(name: str, make: Callable[[int], bytes]) -> Payload:
    """
    A payload of bytes, the first 8 of which are the number. The stamp goes where no program should
    write: some peers take bytes and nothing else, and a new object for each message would cost
    every way a copy. Only make() and the harness have the object, and no code has asked for its
    hash.
    """

    def stamp(value: bytes, number: int) -> None:
        ctypes.memmove(id(value) + CONTENTS, NUMBER.pack(number), NUMBER.size)

    return Payload(name, make, stamp, lambda received: int(NUMBER.unpack_from(received)[0]))


# ---- Sent ----------------------------------------------------------------------------------------


def cases() -> Any:
    """The messages of ringcast's own measurements."""
    from bench.python import cases

    return cases


@functools.lru_cache(None)
def use_vllm(vllm: Optional[str]) -> None:
    """vLLM's own classes, of the source in the folder or of the installed package; or stand-ins."""
    from bench.python import engine

    cases().use(engine.find(vllm))


def noise(size: int, k: int) -> bytes:
    part = random.Random(k).randbytes(min(size, 1 << 16))
    return (part * (size // len(part) + 1))[:size]


def records(count: int, k: int) -> Dict[str, Any]:
    value: Dict[str, Any] = cases().records(count)
    for record in value.values():
        record["float"] += k
    return value


def columns(count: int, k: int) -> Dict[str, Any]:
    """The records as an array for each field."""
    import numpy as np

    rows = list(records(count, k).values())
    return {field: np.array([row[field] for row in rows]) for field in rows[0]}


def structured(count: int, k: int) -> Any:
    """The records as a structured array."""
    import numpy as np

    of = columns(count, k)
    array = np.zeros(count, [(field, column.dtype) for field, column in of.items()])
    for field, column in of.items():
        array[field] = column
    return array


def metadata(k: int) -> Dict[str, Any]:
    value: Dict[str, Any] = cases().metadata()
    value["temperature"] += k
    return value


def features(k: int) -> Dict[str, Any]:
    import numpy as np

    return {"n": 0, "features": np.random.default_rng(k).standard_normal((1280, 2048), np.float32)}


def scheduler(name: str) -> Payload:
    def make(k: int) -> Any:
        value = cases().CASES[name]()
        value.num_common_prefix_blocks[0] = k
        return value

    def stamp(value: Any, number: int) -> None:
        value.total_num_scheduled_tokens = number

    return Payload(name, make, stamp, lambda received: int(received.total_num_scheduled_tokens))


def find(name: str, vllm: Optional[str] = None) -> Payload:
    """The payload of a name, as objects; beforehand() makes pickled payloads."""
    kind, _, rest = name.partition("-")
    if kind == "bytes":
        return in_front(name, lambda k: noise(size_of(rest), k))
    if kind == "records":
        count, _, form = rest.partition("-")
        make = {"": records, "columns": columns, "array": structured}[form]
        place = ("value", 0) if form else ("key_0", "value")
        return at(name, functools.partial(make, int(count)), *place)
    if kind == "scheduler":
        use_vllm(vllm)
        return scheduler(name)
    if kind == "metadata":
        return at(name, metadata, "counts", 0)
    return at(name, features, "n")


def beforehand(payload: Payload) -> Payload:
    """The same, pickled beforehand, as bytes with the number in front."""
    return in_front(payload.name, lambda k: bytes(NUMBER.size) + pickle.dumps(payload.make(k), 5))


def in_place(name: str) -> Payload:
    """Only the number, in the first and the last 8 bytes of the message."""

    def stamp(value: List[int], number: int) -> None:
        value[:] = [number, number]

    return Payload(name, lambda k: [0, 0], stamp, lambda received: int(received[0]))


def variants(name: str) -> int:
    large = name == "features" or (name.startswith("bytes-") and size_of(name[6:]) >= LARGE)
    return 2 if large else 4


@functools.lru_cache(None)
def bytes_of(name: str, vllm: Optional[str] = None) -> int:
    """The size of one message: of the bytes, or of the object's pickle."""
    if name.startswith("bytes-"):
        return size_of(name[6:])
    payload = find(name, vllm)
    value = payload.make(0)
    payload.stamp(value, 1 << 20)
    return len(pickle.dumps(value, 5))


# ---- Received ------------------------------------------------------------------------------------


def same(sent: Any, received: Any) -> bool:
    """Whether a received value equals the sent value. Any bytes-like object does for bytes."""
    if isinstance(sent, bytes):
        return bytes(received) == sent
    if isinstance(sent, list):
        return list(received) == sent
    return bool(cases().same(sent, received))
