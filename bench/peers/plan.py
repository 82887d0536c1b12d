# SPDX-License-Identifier: Apache-2.0
"""The plan of the measurements: the groups, and the steps of each group. Only a change here changes the run."""

import random
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Type

import payloads
from adapters import WAYS, find
from adapters.base import LeftOut, Way
from payloads import BYTES, OBJECTS, RECORDS, SCHEDULER, TABLES

# Also measured in larger groups, with a slow reader and at rest: an engine would choose from these ways.
BEST = ["ringcast", "zmq-push", "mp-pipe", "vllm-queue", "gloo-object", "mpi4py-bcast"]
LARGER = (4, 8)
# The ways with an engine's classes in the quick plan, where the import of vLLM by each member would take most of the
# time otherwise.
QUICK_ENGINE = [
    "ringcast", "zmq-push", "mp-pipe", "mp-shared-memory", "vllm-queue", "sglang-queue", "gloo-object", "mpi4py-bcast"
]  # fmt: skip
# Sends to each reader instead of a broadcast, beside mpi4py-bcast in the larger groups.
COMPARED = ["mpi4py-send"]
CALLED = ["records-1000-columns", "records-1000-array", "records-10000-array"]  # the tables of "call"
ONCE = "a message is read once"
WARM = 64 << 20  # bytes sent through a group before the first step, which then finds all memory present
ROOM = 4096  # bytes of a message beside the contents


class Step(NamedTuple):
    payload: str
    scenario: str
    reading: str
    messages: int
    bytes: int
    seconds: float  # afterwards no more messages are begun
    idle: float = 0.0  # seconds of "idle"
    status: str = ""  # the reason, if the step isn't run


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
    idle: float


FULL = Amount(1000, 20000, 192 << 20, 10, 0.4, 10.0)
QUICK = Amount(300, 4000, 128 << 20, 8, 0.2, 0.0)


class Wish(NamedTuple):
    """A scenario and the payloads."""

    scenario: str
    payloads: List[str]
    readings: Optional[List[str]] = None  # None: bytes for bytes; objects and typed for objects


def wishes(quick: bool, way: str) -> List[Wish]:
    """Of a group of two. Written once and read often comes last: no way has to forget the message."""
    if quick:
        engine = ["scheduler-64", "scheduler-256"] if way in QUICK_ENGINE else []
        objects = ["records-10", "records-1000", "metadata", *engine[:1], "features"]
        return [
            Wish("one-way", ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", *objects]),
            Wish("call", ["bytes-64Ki", "records-1000", "records-10000", *engine[1:]]),
            Wish("stream", ["bytes-64", "bytes-64Ki"]),
            Wish("every25", ["metadata"]),
            Wish("one-way", ["bytes-64", "bytes-64Ki", "bytes-4Mi"], ["in-place"]),
            Wish("shared", ["records-1000"]),
        ]
    objects = [*RECORDS, *TABLES, "metadata", *SCHEDULER, *OBJECTS, "features"]
    called = [name for name in objects if name not in TABLES or name in CALLED]
    return [
        Wish("one-way", [*BYTES, *objects]),
        Wish("one-way", ["records-1000", "records-10000", "metadata", "scheduler-256"], ["bytes"]),
        Wish("call", ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", *called]),
        Wish("stream", ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", "metadata"]),
        Wish("cold", ["bytes-64", "bytes-64Ki", "metadata", "scheduler-256"]),
        Wish("every5", ["metadata"]),
        Wish("every25", ["metadata"]),
        Wish("one-way", BYTES, ["in-place"]),
        Wish("shared", ["records-100", "records-1000", "records-10000", "features"]),
    ]


def wishes_larger(quick: bool) -> List[Wish]:
    if quick:
        return [Wish("one-way", ["bytes-64", "metadata"])]
    return [
        Wish("one-way", ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "metadata", "scheduler-256"]),
        Wish("stream", ["bytes-4Ki", "bytes-1Mi"]),
    ]


SLOW = [Wish("slow", ["bytes-64Ki"])]
IDLE = [Wish("idle", ["metadata"])]
PACED = {"slow": 150, "every5": 200, "every25": 60, "idle": 3}  # messages


# ---- From wishes to steps --------------------------------------------------------------------------------------------


def readings(way: Type[Way], wish: Wish, payload: str) -> List[str]:
    if wish.readings is None:
        usual = ["bytes"] if payload.startswith("bytes-") else ["objects", "typed"]
    else:
        usual = wish.readings
    return [reading for reading in usual if reading in way.readings]


def messages(scenario: str, size: int, amount: Amount) -> int:
    if scenario in PACED:
        return PACED[scenario] if amount is FULL or scenario == "idle" else PACED[scenario] // 2
    most = amount.streamed if scenario == "stream" else amount.messages
    return max(amount.least, min(most, amount.bytes // max(1, size)))


def seconds(scenario: str, amount: Amount) -> float:
    return 10.0 if scenario in PACED else amount.seconds


def fits(way: Type[Way], payload: str, scenario: str) -> bool:
    """Whether the way is meant for the step at all."""
    if way.payloads is not None and not payload.startswith(way.payloads):
        return False
    return way.scenarios is None or scenario in way.scenarios


def steps_of(way: Type[Way], wish: Wish, amount: Amount, vllm: Optional[str]) -> Iterator[Step]:
    for payload in wish.payloads:
        if not fits(way, payload, wish.scenario):
            continue
        status = ""
        try:
            size = payloads.bytes_of(payload, vllm)
        except Exception as error:  # a payload of vLLM's classes or NumPy's
            size, status = 0, f"the payload can't be made: {error}"
        if wish.scenario == "shared" and not way.again:
            status = ONCE
        for reading in readings(way, wish, payload):
            idle = amount.idle if wish.scenario == "idle" else 0.0
            count = messages(wish.scenario, size, amount)
            yield Step(payload, wish.scenario, reading, count, size, seconds(wish.scenario, amount), idle, status)


def group(name: str, processes: int, wished: List[Wish], amount: Amount, vllm: Optional[str]) -> Optional[Group]:
    try:
        way = find(name)
    except LeftOut as why:
        return Group(name, processes, [], str(why))
    if way.processes is not None and processes not in way.processes:
        return None
    steps = [step for wish in wished for step in steps_of(way, wish, amount, vllm)]
    return Group(name, processes, steps) if steps else None


def groups(names: List[str], quick: bool, vllm: Optional[str] = None) -> List[Group]:
    amount = QUICK if quick else FULL
    best = [name for name in BEST if name in names]
    made = [group(name, 2, wishes(quick, name), amount, vllm) for name in names]
    if quick:
        made += [group(name, 4, wishes_larger(True), amount, vllm) for name in best[:3]]
    else:
        for processes in LARGER:
            wished = wishes_larger(False)
            made += [group(name, processes, wished, amount, vllm) for name in names if name in BEST + COMPARED]
        made += [group(name, 5, SLOW, amount, vllm) for name in best]
        made += [group(name, 2, IDLE, amount, vllm) for name in best]
    return [one for one in made if one is not None]


def in_order(made: List[Group], turn: int) -> List[Group]:
    """The groups of a round: each round in a new order, as the group before may matter. Unusable groups and groups at
    rest are measured once."""
    often = [one for one in made if turn == 0 or not (one.left_out or one.steps[0].scenario == "idle")]
    random.Random(turn // 2).shuffle(often)
    return often[::-1] if turn % 2 else often


def largest(made: Group) -> int:
    return max((step.bytes for step in made.steps), default=0) + ROOM


def warm_up(way: Type[Way], made: Group) -> Step:
    """A stream before the first step, without a row. A ring of so many bytes has then been written once."""
    taken = [step for step in made.steps if not step.status and step.reading != "in-place" and step.bytes <= 1 << 20]
    like = max(taken or [step for step in made.steps if not step.status], key=lambda step: step.bytes)
    count = max(2, min(2000, WARM // max(1, like.bytes)))
    return like._replace(scenario="stream", messages=count, seconds=1.0, idle=0.0)


def spec(made: Group, options: Dict[str, Any]) -> Dict[str, Any]:
    """The orders for group.py and the members."""
    way = find(made.way)
    run = [step for step in made.steps if not step.status]
    steps = [step._asdict() for step in ([warm_up(way, made), *run] if run else [])]
    return {
        "way": made.way, "where": "", "processes": made.processes, "largest": largest(made), "steps": steps,
        "limit": way.seconds + 10, **options,
    }  # fmt: skip


def names(only: List[str]) -> List[str]:
    return [name for name in WAYS if not only or name in only]
