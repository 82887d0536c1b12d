# SPDX-License-Identifier: Apache-2.0
"""Sums of bounded size over any number of records: durations with a logarithmic histogram, and series that are thinned.

All times are integers of nanoseconds, so sums of days are exact."""

import bisect
import math
from typing import Any, Dict, Iterable, List

KIB, MIB = 1 << 10, 1 << 20
# A range begins after its lower bound and includes its upper bound.
BOUNDS = [0, KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB]
RANGES = [
    "no bytes", "up to 1 KiB", "1 KiB to 16 KiB", "16 KiB to 256 KiB", "256 KiB to 1 MiB", "1 MiB to 16 MiB",
    "16 MiB to 256 MiB", "above 256 MiB",
]  # fmt: skip


def range_of(nbytes: int) -> int:
    """The index in RANGES."""
    return bisect.bisect_left(BOUNDS, nbytes)


# A bin of a histogram: four to an octave, so a bin's middle is at most an eighth off.
def middle_of(index: int) -> float:
    bits, quarter = divmod(index, 4)
    return (4.5 + quarter) * 2 ** (bits - 3) if bits > 2 else float(index)


class Totals:
    """Sums over the durations of like records."""

    __slots__ = (
        "count", "total", "squares", "least", "most", "bytes", "moving", "exposed", "waiting", "told", "failed", "bins",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = self.total = self.squares = self.most = 0
        self.least = -1
        self.bytes = 0
        self.moving = 0  # what bandwidth is of: without the waiting for the other side, where that is known
        self.exposed = 0  # a thread, or the device's stream, was held up; less than the total if work goes on meanwhile
        self.waiting = self.told = 0  # time, and the number of records that know their waiting
        self.failed = 0
        self.bins: Dict[int, int] = {}

    def add(self, ns: int, nbytes: int = 0, moving: int = 0) -> None:
        self.count += 1
        self.total += ns
        self.squares += ns * ns
        if ns < self.least or self.least < 0:
            self.least = ns
        if ns > self.most:
            self.most = ns
        self.bytes += nbytes
        self.moving += moving
        bits = ns.bit_length()
        index = bits * 4 + (ns >> (bits - 3) & 3) if bits > 2 else ns
        self.bins[index] = self.bins.get(index, 0) + 1

    def merge(self, other: "Totals") -> None:
        if other.count and (self.least < 0 or other.least < self.least):
            self.least = other.least
        self.most = max(self.most, other.most)
        for name in ("count", "total", "squares", "bytes", "moving", "exposed", "waiting", "told", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for index, count in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + count

    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def deviation(self) -> float:
        if not self.count:
            return 0.0
        return math.sqrt(max(0, self.count * self.squares - self.total * self.total)) / self.count

    def quantile(self, share: float) -> float:
        """By the histogram, between the least and the most."""
        left = share * self.count
        for index in sorted(self.bins):
            left -= self.bins[index]
            if left <= 0:
                return min(max(middle_of(index), self.least), self.most)
        return float(self.most)

    def state(self) -> List[Any]:
        numbers = [getattr(self, name) for name in self.__slots__[:-1]]
        return [*numbers, {str(index): count for index, count in sorted(self.bins.items())}]

    @classmethod
    def of(cls, state: List[Any]) -> "Totals":
        made = cls()
        *numbers, bins = state
        for name, value in zip(cls.__slots__[:-1], numbers):
            setattr(made, name, int(value))
        made.bins = {int(index): int(count) for index, count in bins.items()}
        return made


def merged(several: Iterable[Totals]) -> Totals:
    made = Totals()
    for each in several:
        made.merge(each)
    return made


class Metric:
    """Sums over a program's own numbers."""

    def __init__(self, **state: Any) -> None:
        self.count = self.not_finite = 0  # not_finite: NaN and the like, in none of the sums
        self.total = self.squares = self.least = self.most = self.last = 0.0
        vars(self).update(state)

    def add(self, value: float) -> None:
        if abs(value) < 1e150:
            self.merge(Metric(count=1, total=value, squares=value * value, least=value, most=value, last=value))
        else:
            self.not_finite += 1

    def merge(self, other: "Metric") -> None:
        if other.count:
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most) if self.count else other.most
            self.last = other.last
        for name in ("count", "total", "squares", "not_finite"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def figures(self) -> Dict[str, float]:
        if not self.count:
            return {"count": 0, "not_finite": self.not_finite}
        mean = self.total / self.count
        deviation = math.sqrt(max(self.squares / self.count - mean * mean, 0.0))
        return {
            "count": self.count, "total": self.total, "avg": mean, "std": deviation, "min": self.least,
            "max": self.most, "last": self.last, "not_finite": self.not_finite,
        }  # fmt: skip


class Thinned:
    """The first and then every n-th element of a series. With `most` elements, every second one goes and n doubles, so
    the rest is spread evenly over the series."""

    def __init__(self, most: int, kept: Iterable[Any] = (), every: int = 1, seen: int = 0) -> None:
        self.most, self.every, self.seen = most, every, seen
        self.kept: List[Any] = list(kept)

    def offer(self, thing: Any) -> None:
        seen, self.seen = self.seen, self.seen + 1
        if seen % self.every or not self.most:
            return
        if len(self.kept) >= self.most:
            del self.kept[1::2]
            self.every *= 2
            if seen % self.every:
                return
        self.kept.append(thing)
