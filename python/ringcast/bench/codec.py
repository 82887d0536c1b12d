# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding in one process: ringcast.pack and ringcast.unpack beside pickle.dumps and pickle.loads of
protocol 5, in turns. Each result is dropped at once, in the time that is measured; the garbage collector is on."""

import gc
import pickle
import statistics
import timeit
from functools import partial
from typing import Any, Callable, Dict, Sequence

import ringcast
from ringcast.bench import cases, report
from ringcast.bench.harness import in_turns

# timeit compiles the statement into its loop: one more call for each round would be a good part of the figures.
CODECS = {"ringcast": ("pack({})", "unpack({})"), "pickle": ("dumps({}, 5)", "loads({})")}
NAMES = {"pack": ringcast.pack, "unpack": ringcast.unpack, "dumps": pickle.dumps, "loads": pickle.loads, "gc": gc}
WHAT = ("encode_us", "decode_us", "encode_decode_us")


def run(codec: str, what: str, value: Any, rounds: int) -> float:
    """Seconds for each round."""
    encode, decode = CODECS[codec]
    encode = encode.format("value")
    setup, statement = {
        "encode_us": ("pass", encode),
        "decode_us": (f"frame = {encode}", decode.format("frame")),
        "encode_decode_us": ("pass", decode.format(encode)),
    }[what]
    return timeit.timeit(statement, f"gc.enable(); {setup}", number=rounds, globals={**NAMES, "value": value}) / rounds


def measure(value: Any, seconds: float) -> Dict[str, Any]:
    """The figures of any value, units in their names, as `--format json` has them."""
    ways: Dict[str, Callable[[int], float]] = {
        f"{what} {codec}": partial(run, codec, what, value) for what in WHAT for codec in CODECS
    }
    turns = in_turns(ways, seconds)
    found: Dict[str, Any] = {
        codec: {what: statistics.median(turns[f"{what} {codec}"]) * 1e6 for what in WHAT} for codec in CODECS
    }
    found["ratio"] = {what[:-3]: found["ringcast"][what] / found["pickle"][what] for what in WHAT}
    found["ringcast"]["bytes"] = ringcast.pack(value).nbytes
    found["pickle"]["bytes"] = len(pickle.dumps(value, 5))
    return found


def run_all(chosen: Sequence[str], seconds: float) -> Dict[str, Any]:
    """The figures of each case, and why some are left out."""
    there, left_out = cases.there(chosen)
    found = {}
    for name in there:
        report.say(f"codec {name}")
        found[name] = measure(cases.CASES[name](), seconds)
    return {"cases": found, "left_out": left_out}
