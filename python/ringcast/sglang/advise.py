# SPDX-License-Identifier: Apache-2.0
"""Which way pays: every rank computes for itself, the ranks share the hash, or one rank shares the
whole value.

What a request costs a rank, on average, where N ranks compute at a time on C CPUs: each takes
crowd = max(1, N / C) times as long as alone.

    local    (seconds + hash × nbytes) × crowd
    hash     (seconds + hash × nbytes / N) × crowd + HAND_OVER
    share    ((seconds + hash × nbytes) × crowd + put × nbytes) / N
             + (N - 1) / N × get × nbytes + HAND_OVER

A way other than local must save at least LEAST_SAVING of the cost of local: a shared value arrives
later, by the way through the ring, and no sooner than the computing rank gets round to the call.

The first rank's facts count for all: the first rank measures the rates once, and counts the CPUs.

`advise` of the command line prints the decision as a map of this machine: size of a request ×
ranks.
"""

import argparse
import contextlib
import functools
import json
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

import ringcast
from ringcast._group.ranks import Ranks
from ringcast._options import switch

# Of the cost of "local". Two ranks can save half at most, four ranks three quarters.
LEAST_SAVING = 1 / 4
# Seconds: to wake a process, or to look several times, and Python's share.
HAND_OVER = 50e-6
_SAMPLE_BYTES = 4 << 20
_ROUNDS = 3

HOW = ("auto", "local", "share")
HOW_TO_HASH = ("auto", "local", "hash")


class Rates(NamedTuple):
    """Seconds a byte, and the CPUs of the ranks."""

    hash: Dict[str, float]
    put: float
    get: float
    cpus: int = 1 << 20


class Agreed(NamedTuple):
    """The first rank's environment and rates."""

    share_once: str
    share_hash: str
    rates: Rates


def agree(group: Any) -> Agreed:
    """Collective: all ranks must decide alike."""
    first: Any = None
    ranks = Ranks(group)
    if ranks.rank == 0:
        try:
            told = switch("RINGCAST_SGLANG")[1].get("share", "auto")
            first = ("local" if told == "local" else "auto", told, measure())
        except Exception as error:  # the other ranks wait in the exchange
            first = error
    agreed = ranks.gather(first)[0]
    if isinstance(agreed, Exception):
        raise agreed
    return Agreed(*agreed)


def measure() -> Rates:
    """A few dozen milliseconds."""
    sample = {"sample": np.zeros(_SAMPLE_BYTES, np.uint8)}
    packed = ringcast.pack(sample)
    put = _best(lambda: ringcast.pack(sample))
    hashes = {}
    for name in "sha256", "xxh3":
        with contextlib.suppress(ValueError, ringcast.Error):  # of a build without it
            hashes[name] = max(
                0.0, _best(functools.partial(ringcast.pack, sample, hash=name)) - put
            )
    return Rates(hashes, put, _best(lambda: ringcast.unpack(packed)), len(os.sched_getaffinity(0)))


def _best(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best / _SAMPLE_BYTES


def costs(
    rates: Rates, ranks: int, nbytes: int, hash: Optional[str] = "sha256", seconds: float = 0.0
) -> Dict[str, float]:  # fmt: skip
    """Seconds of a rank for a request, by each way."""
    crowd = max(1.0, ranks / rates.cpus)
    hashing = rates.hash.get(hash, 0.0) * nbytes if hash is not None else 0.0
    get = (ranks - 1) / ranks * rates.get * nbytes
    return {
        "local": (seconds + hashing) * crowd,
        "hash": (seconds + hashing / ranks) * crowd + HAND_OVER,
        "share": ((seconds + hashing) * crowd + rates.put * nbytes) / ranks + get + HAND_OVER,
    }


def best(costs: Dict[str, float], ways: Tuple[str, ...]) -> str:
    """The cheapest of `ways` if it pays, else "local"."""
    found = min(ways, key=costs.__getitem__)
    return found if costs["local"] - costs[found] >= LEAST_SAVING * costs["local"] > 0 else "local"


# ---- The map -------------------------------------------------------------------------------------

SIZES = tuple(base * 10**power for power in range(4, 9) for base in (1, 3)) + (10**9,)
RANKS = (2, 3, 4, 6, 8, 16)
WAYS = ("local", "hash", "share")
MEANING = "local: each rank for itself; hash: share_hash; share: share_once"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", type=int, action="append", metavar="BYTES", help="of a request; may be repeated"
    )
    parser.add_argument(
        "--tp", type=int, action="append", metavar="N", help="ranks; may be repeated"
    )
    seconds = (
        "what making a request's value takes beside hashing, which only share spares; default: 0"
    )
    parser.add_argument("--seconds", type=float, default=0.0, metavar="S", help=seconds)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def map_of(rates: Rates, options: argparse.Namespace) -> Dict[str, Any]:
    """A cell for each size and number of ranks."""
    cells = []
    for nbytes in sorted(set(options.size or SIZES)):
        for count in sorted(set(options.tp or RANKS)):
            cost = costs(rates, count, nbytes, "sha256", options.seconds)
            ms = {way: cost[way] * 1e3 for way in WAYS}
            cells.append({"nbytes": nbytes, "ranks": count, "way": best(cost, WAYS), "ms": ms})
    facts = {"put": rates.put * 1e9, "get": rates.get * 1e9}
    facts.update({name: value * 1e9 for name, value in rates.hash.items()})
    return {"cpus": rates.cpus, "ns_per_byte": facts, "seconds": options.seconds, "cells": cells}


def _size(nbytes: int) -> str:
    for unit, name in (10**9, "GB"), (10**6, "MB"), (10**3, "kB"):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def text(found: Dict[str, Any]) -> str:
    rows: Dict[int, List[Dict[str, Any]]] = {}
    for cell in found["cells"]:
        rows.setdefault(cell["nbytes"], []).append(cell)
    rates = ", ".join(f"{name} {value:.2f}" for name, value in found["ns_per_byte"].items())
    ranks = [cell["ranks"] for cell in next(iter(rows.values()))]
    lines = [
        f"{found['cpus']} CPUs; ns a byte: {rates}",
        f"{MEANING}. In brackets: of local's time.",
        f"{'':>9}" + "".join(f"{f'TP {count}':>14}" for count in ranks),
    ]
    for nbytes, row in rows.items():
        lines.append(f"{_size(nbytes):>9}" + "".join(f"{_word(cell):>14}" for cell in row))
    return "\n".join(lines)


def _word(cell: Dict[str, Any]) -> str:
    way, ms = cell["way"], cell["ms"]
    return "local" if way == "local" else f"{way} ({ms[way] / ms['local']:.2f})"


def run(options: argparse.Namespace) -> int:
    found = map_of(measure(), options)
    print(json.dumps(found, indent=1) if options.format == "json" else text(found))
    return 0
