# SPDX-License-Identifier: Apache-2.0
"""Whether it pays that one rank computes for all: a rule that gives the same answer on every rank.

The rule weighs a rank's time, since a scheduler's one thread is scarce. The cost of a call for a rank, on average over
N ranks that compute in turn:

    every rank for itself    C                                  C = seconds + hash × nbytes
    shared                   (C + put × nbytes) / N             the rank computes and sends one call of N,
                             + (N - 1) / N × get × nbytes       takes in the rest,
                             + HAND_OVER                        and is woken, or polls

Sharing must save at least LEAST_SAVING of C: a shared value arrives later, by the way through the ring, and no sooner
than the computing rank gets round to the call. The group's first rank measures the rates, once.
"""

import contextlib
import functools
import time
from typing import Callable, Dict, NamedTuple, Optional

import numpy as np

import ringcast

# Of C. Two ranks can save half of C at most, four ranks three quarters.
LEAST_SAVING = 1 / 4
# Seconds: to wake a process, or to look several times, and Python's share.
HAND_OVER = 50e-6
_SAMPLE_BYTES = 4 << 20
_ROUNDS = 3

HOW = ("auto", "local", "share")


class Rates(NamedTuple):
    """Seconds a byte."""

    hash: Dict[str, float]
    put: float
    get: float


def measure() -> Rates:
    """A few dozen milliseconds."""
    sample = {"sample": np.zeros(_SAMPLE_BYTES, np.uint8)}
    packed = ringcast.pack(sample)
    put = _best(lambda: ringcast.pack(sample))
    hashes = {}
    for name in "sha256", "xxh3":
        with contextlib.suppress(ValueError, ringcast.Error):  # of a build without it
            hashes[name] = max(0.0, _best(functools.partial(ringcast.pack, sample, hash=name)) - put)
    return Rates(hashes, put, _best(lambda: ringcast.unpack(packed)))


def _best(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best / _SAMPLE_BYTES


def pays(rates: Rates, ranks: int, nbytes: int, hash: Optional[str], seconds: float) -> bool:
    alone = seconds + (rates.hash.get(hash, 0.0) * nbytes if hash is not None else 0.0)
    shared = (alone + rates.put * nbytes + (ranks - 1) * rates.get * nbytes) / ranks + HAND_OVER
    return alone - shared >= LEAST_SAVING * alone
