# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding in one process: ringcast.pack and ringcast.unpack beside pickle.dumps and
pickle.loads of protocol 5, and beside msgspec's MessagePack, ormsgpack and pyfory, in turns. Each
result is dropped at once, in the time that is measured; the garbage collector is on.

A codec is left out of a case that it can't carry: what it decodes is not equal to the value, or of
other types. msgspec decodes a dataclass by its annotations.
"""

import contextlib
import dataclasses
import functools
import gc
import importlib
import pickle
import statistics
import time
import timeit
from functools import partial
from importlib import util
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import ringcast

from bench.python import cases, harness
from bench.python.harness import Plan, Rest, Table, in_turns


class Codec(NamedTuple):
    """
    timeit compiles the statements into its loop: one more call a round would be a good part of the
    figures.
    """

    encode: str
    decode: str
    functions: Callable[[Any], Dict[str, Any]]  # of a value to the names in the statements


def _msgspec(value: Any) -> Dict[str, Any]:
    msgpack = importlib.import_module("msgspec.msgpack")
    kind = type(value) if dataclasses.is_dataclass(value) else Any
    return {"encode": msgpack.Encoder().encode, "decode": msgpack.Decoder(kind).decode}


def _ormsgpack(value: Any) -> Dict[str, Any]:
    ormsgpack = importlib.import_module("ormsgpack")
    return {
        "packb": ormsgpack.packb,
        "unpackb": ormsgpack.unpackb,
        "options": ormsgpack.OPT_SERIALIZE_NUMPY,
    }


@functools.lru_cache(None)
def _fory() -> Any:
    return importlib.import_module("pyfory").Fory(xlang=False, ref=True, strict=False)


CODECS = {
    "ringcast": Codec(
        "pack({})", "unpack({})", lambda _: {"pack": ringcast.pack, "unpack": ringcast.unpack}
    ),
    "pickle": Codec(
        "dumps({}, 5)", "loads({})", lambda _: {"dumps": pickle.dumps, "loads": pickle.loads}
    ),
    "msgspec": Codec("encode({})", "decode({})", _msgspec),
    "ormsgpack": Codec("packb({}, None, options)", "unpackb({})", _ormsgpack),
    "pyfory": Codec(
        "serialize({})",
        "deserialize({})",
        lambda _: {"serialize": _fory().serialize, "deserialize": _fory().deserialize},
    ),
}
CODECS_COLD = ("ringcast", "pickle")
OTHERS = ("msgspec", "ormsgpack", "pyfory")
WHAT = ("encode_us", "decode_us", "encode_decode_us")


def run(codec: str, what: str, value: Any, rounds: int, rest: Optional[Rest] = None) -> float:
    """Seconds for each round; with `rest`, which is called before each, the median of them."""
    of = CODECS[codec]
    encode = of.encode.format("value")
    names = {**of.functions(value), "gc": gc, "value": value}
    if what == "decode_us":
        names["frame"] = eval(encode, names)
    statement = {
        "encode_us": encode,
        "decode_us": of.decode.format("frame"),
        "encode_decode_us": of.decode.format(encode),
    }[what]
    if rest is None:
        return timeit.Timer(statement, "gc.enable()", globals=names).timeit(rounds) / rounds
    # After a rest a call of a function is little.
    call, spent = (
        eval(f"lambda: {statement}", names),
        [],
    )
    for _ in range(rounds):
        rest()
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def carries(codec: str, value: Any) -> bool:
    """Whether the codec is here and gives the value back, equal and of the same type."""
    of = CODECS[codec]
    if codec in ("ringcast", "pickle"):
        return True
    with contextlib.suppress(Exception):  # each codec raises what it likes
        names = {**of.functions(value), "value": value}
        return cases.same(eval(of.decode.format(of.encode.format("value")), names), value)
    return False


def times(
    there: Sequence[str], value: Any, seconds: float, rest: Optional[Rest] = None
) -> Dict[str, Any]:
    """The medians of some codecs, units in their names, and ringcast's ratios to pickle's."""
    ways: Dict[str, Callable[[int], float]] = {
        f"{what} {codec}": partial(run, codec, what, value, rest=rest)
        for what in WHAT
        for codec in there
    }
    turns = in_turns(ways, seconds)
    found: Dict[str, Any] = {
        codec: {what: statistics.median(turns[f"{what} {codec}"]) * 1e6 for what in WHAT}
        for codec in there
    }
    found["ratio"] = {what[:-3]: found["ringcast"][what] / found["pickle"][what] for what in WHAT}
    return found


def measure(value: Any, seconds: float) -> Dict[str, Any]:
    """The figures of any value, as `--format json` has them; None for a codec that can't carry the
    value."""
    there = [codec for codec in CODECS if carries(codec, value)]
    found = {**dict.fromkeys(CODECS), **times(there, value, seconds)}
    for codec in there:
        names = {**CODECS[codec].functions(value), "value": value}
        frame = eval(CODECS[codec].encode.format("value"), names)
        found[codec]["bytes"] = frame.nbytes if codec == "ringcast" else len(frame)
    return found


def rests() -> Dict[str, Rest]:
    """What comes before a cold call."""
    return {
        "asleep": Rest(Plan(harness.SLEEP, sleep=True), source=True),
        "evicted": Rest(Plan(walk=harness.block_bytes()), source=True),
    }


# ---- All cases -----------------------------------------------------------------------------------


def run_all(chosen: Sequence[str], seconds: float) -> Dict[str, Any]:
    """The figures of each case, and why some are left out."""
    there, left_out = cases.there(chosen)
    found: Dict[str, Any] = {}
    for name in there:
        harness.say(f"codec {name}")
        value = cases.CASES[name]()
        cold = {how: times(CODECS_COLD, value, seconds / 2, rest) for how, rest in rests().items()}
        found[name] = {"classes": cases.classes_of(name), **measure(value, seconds), **cold}
    for codec in OTHERS:
        if util.find_spec(codec) is None:
            left_out[codec] = "is not installed here"
    return {"cases": found, "left_out": left_out}


BOTH = "encode_decode"


def tables(found: Dict[str, Any]) -> List[Table]:
    """ "-" for what a codec can't carry."""
    none = dict.fromkeys((*WHAT, "bytes"), "-")
    rows = {
        name: {key: none if of is None else of for key, of in case.items()}
        for name, case in found["cases"].items()
    }
    pair = [
        (f"{what}, us {codec}", f"{codec}.{key}")
        for what, key in (("encode", WHAT[0]), ("decode", WHAT[1]), ("both", WHAT[2]))
        for codec in CODECS_COLD
    ]
    others = [(codec, f"{codec}.{BOTH}_us") for codec in OTHERS]
    cold = [
        (f"{title}{unit}", f"{how}.{path}")
        for title, how in (("asleep", "asleep"), ("evicted", "evicted"))
        for unit, path in (
            (", us ringcast", f"ringcast.{BOTH}_us"),
            (" pickle", f"pickle.{BOTH}_us"),
            (" ratio", f"ratio.{BOTH}"),
        )
    ]
    return [
        ("case", [*pair, ("ratio", f"ratio.{BOTH}"), *others], rows),
        ("cold, both", cold, rows),
        ("bytes", [*((codec, f"{codec}.bytes") for codec in CODECS), ("classes", "classes")], rows),
    ]
