# SPDX-License-Identifier: Apache-2.0
"""
The plan of the ways of Python: the groups, and the steps of each group. native.py has that of the
ways of C.
"""

import random
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Type

import payloads
from adapters import WAYS, find
from adapters.base import LeftOut, Way
from payloads import BYTES, RECORDS, SCHEDULER, TABLES

# Also measured in larger groups, with a slow reader and at rest: an engine would choose from these
# ways.
BEST = ["ringcast", "zmq-push", "mp-pipe", "vllm-queue", "gloo-object", "mpi4py-bcast"]
COMPARED = ["mpi4py-send"]  # beside mpi4py-bcast in the larger groups
LARGER = (4, 8)
HELD = ["ringcast", "zmq-push", "gloo-object", "vllm-queue", "mp-pipe", "lmdb"]  # of "gil"
# The ways with an engine's classes in the quick plan: each member imports vLLM, which takes most of
# the time.
QUICK_ENGINE = [*BEST, "mp-shared-memory", "sglang-queue"]
# Bytes sent through a group before the first step, which then finds all memory present.
WARM = 64 << 20
ROOM = 4096  # bytes of a message beside the contents


class Step(NamedTuple):
    payload: str
    scenario: str
    reading: str
    messages: int
    bytes: int
    seconds: float  # afterwards no more messages are begun


class Group(NamedTuple):
    way: str
    processes: int
    steps: List[Step]
    left_out: str = ""


class Amount(NamedTuple):
    """How much of everything."""

    messages: int  # of up to 64 KiB
    streamed: int
    bytes: int  # of the larger messages of a step, together
    least: int  # messages
    seconds: float  # of a step


FULL = Amount(1000, 20000, 192 << 20, 10, 0.4)
QUICK = Amount(300, 4000, 128 << 20, 8, 0.2)
COUNTED = {
    "slow": 150,
    "every25": 60,
    "idle": 3,
    "gil": 400,
}  # messages, where that does not depend on the size


class Wish(NamedTuple):
    """A scenario and the payloads."""

    scenario: str
    payloads: List[str]
    readings: Optional[List[str]] = None  # None: bytes for bytes, objects for objects


def wishes(quick: bool, way: str) -> List[Wish]:
    """Of a group of two."""
    if quick:
        engine = ["scheduler-64"] if way in QUICK_ENGINE else []
        objects = ["records-10", "records-1000", "metadata", *engine, "features"]
        return [
            Wish(
                "one-way",
                ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", *objects],
            ),
            Wish("call", ["records-1000", "records-10000"]),
            Wish("stream", ["bytes-64", "bytes-64Ki"]),
            Wish("every25", ["metadata"]),
            Wish("one-way", ["bytes-64", "bytes-4Mi"], ["in-place"]),
            *([Wish("gil", ["features"])] if way in HELD else []),
        ]
    objects = [*RECORDS, *TABLES, "metadata", *SCHEDULER, "features"]
    called = [*RECORDS, "records-10000-array", "metadata", *SCHEDULER, "features"]
    beforehand = ["records-1000", "records-10000", "metadata", "scheduler-256"]
    return [
        Wish("one-way", [*BYTES, *objects]),
        Wish("one-way", beforehand, ["bytes"]),
        Wish("call", ["bytes-64", "bytes-64Ki", "bytes-1Mi", *called]),
        Wish(
            "stream", ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", "metadata"]
        ),
        Wish("every25", ["metadata"]),
        Wish("one-way", BYTES, ["in-place"]),
        *([Wish("gil", ["features", "scheduler-64", "metadata"])] if way in HELD else []),
    ]


LARGER_QUICK = [Wish("one-way", ["bytes-64", "metadata"])]
LARGER_FULL = [Wish("one-way", ["bytes-64", "bytes-64Ki", "metadata", "scheduler-256"])]
SLOW = [Wish("slow", ["bytes-64Ki"])]
IDLE = [Wish("idle", ["metadata"])]


# ---- From wishes to steps ------------------------------------------------------------------------


def readings(way: Type[Way], wish: Wish, payload: str) -> List[str]:
    usual = ["bytes" if payload.startswith("bytes-") else "objects"]
    return [reading for reading in wish.readings or usual if reading in way.readings]


def messages(scenario: str, size: int, amount: Amount) -> int:
    if scenario in COUNTED:
        return COUNTED[scenario] if amount is FULL or scenario == "idle" else COUNTED[scenario] // 2
    most = amount.streamed if scenario == "stream" else amount.messages
    return max(amount.least, min(most, amount.bytes // max(1, size)))


def steps_of(way: Type[Way], wish: Wish, amount: Amount, vllm: Optional[str]) -> Iterator[Step]:
    seconds = 40.0 if wish.scenario in COUNTED else amount.seconds
    for payload in wish.payloads:
        if way.payloads is not None and not payload.startswith(way.payloads):
            continue
        size = payloads.bytes_of(payload, vllm)
        count = messages(wish.scenario, size, amount)
        for reading in readings(way, wish, payload):
            yield Step(payload, wish.scenario, reading, count, size, seconds)


def group(
    name: str, processes: int, wished: List[Wish], amount: Amount, vllm: Optional[str]
) -> Group:
    try:
        way = find(name)
    except LeftOut as why:
        return Group(name, processes, [], str(why))
    steps = [step for wish in wished for step in steps_of(way, wish, amount, vllm)]
    return Group(name, processes, steps)


def groups(names: List[str], quick: bool, vllm: Optional[str] = None) -> List[Group]:
    amount = QUICK if quick else FULL
    best = [name for name in BEST if name in names]
    made = [group(name, 2, wishes(quick, name), amount, vllm) for name in names]
    if quick:
        made += [group(name, 4, LARGER_QUICK, amount, vllm) for name in best[:3]]
    else:
        larger = [name for name in names if name in BEST + COMPARED]
        made += [
            group(name, count, LARGER_FULL, amount, vllm) for count in LARGER for name in larger
        ]
        made += [group(name, 5, SLOW, amount, vllm) for name in best]
        made += [group(name, 2, IDLE, amount, vllm) for name in best]
    return [one for one in made if one.steps or one.left_out]


def in_order(made: List[Group]) -> List[Group]:
    """Each time in a new order, as the group before may matter."""
    return random.sample(made, len(made))


def warm_up(steps: List[Step]) -> Step:
    """A stream before the first step, without a row. A ring of so many bytes has then been written
    once."""
    small = [step for step in steps if step.reading != "in-place" and step.bytes <= 1 << 20]
    like = max(small or steps, key=lambda step: step.bytes)
    count = max(2, min(2000, WARM // max(1, like.bytes)))
    return like._replace(scenario="stream", messages=count, seconds=1.0)


def spec(made: Group, **options: Any) -> Dict[str, Any]:
    """The orders for group.py and the members."""
    steps = [warm_up(made.steps), *made.steps]
    return {
        "way": made.way,
        "processes": made.processes,
        "largest": max(step.bytes for step in steps) + ROOM,
        "steps": [step._asdict() for step in steps],
        "limit": find(made.way).seconds + 10,
        **options,
    }


def names(only: List[str]) -> List[str]:
    return [name for name in WAYS if not only or name in only]
