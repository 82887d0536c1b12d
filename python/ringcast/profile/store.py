# SPDX-License-Identifier: Apache-2.0
"""
The memory of a profile: totals by operation, size range and region, bounded series, and the form in
profile.json.

All times are integers of nanoseconds, so sums of days are exact.
"""

import bisect
import math
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, TypeVar

KIB, MIB = 1 << 10, 1 << 20
# A range begins after its lower bound and includes its upper bound.
BOUNDS = [0, KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB]
RANGES = [
    "no bytes", "up to 1 KiB", "1 KiB to 16 KiB", "16 KiB to 256 KiB", "256 KiB to 1 MiB",
    "1 MiB to 16 MiB",
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
        "count", "total", "squares", "least", "most", "bytes", "moving", "exposed", "waiting",
        "told", "failed", "bins",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = self.total = self.squares = self.most = 0
        self.least = -1
        self.bytes = 0
        self.moving = (
            0  # what bandwidth is of: without the waiting for the other side, where that is known
        )
        self.exposed = 0  # a thread was held up; less than the total if work goes on meanwhile
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
        for name in (
            "count",
            "total",
            "squares",
            "bytes",
            "moving",
            "exposed",
            "waiting",
            "told",
            "failed",
        ):
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
            self.merge(
                Metric(
                    count=1, total=value, squares=value * value, least=value, most=value, last=value
                )
            )
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
            "count": self.count, "total": self.total, "avg": mean, "std": deviation,
            "min": self.least,
            "max": self.most, "last": self.last, "not_finite": self.not_finite,
        }  # fmt: skip


class Thinned:
    """
    The first and then every n-th element of a series. With `most` elements, every second one goes
    and n doubles, so the rest is spread evenly over the series.
    """

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


# ---- By operation, region and step ---------------------------------------------------------------

# Most of the totals' keys: regions with ever new names must not fill the memory of a run of days.
MOST_KEYS = 20_000
MOST_STEPS = 10_000
OTHER = "(other)"

Thing = TypeVar("Thing")

# Operation, its source (ringcast, torch, vllm, sglang, own), size range, how: "", "nested" or
# "device".
Key = Tuple[str, str, int, str]


def process_of(facts: Dict[str, Any]) -> str:
    """The name of a process in tables, pictures and JSON: its rank, or "process <pid>"."""
    return str(facts["rank"]) if facts["rank"] >= 0 else f"process {facts['pid']}"


class Operation(NamedTuple):
    """A record. An asynchronous operation holds its thread up from start to call_end, and from
    wait_start to end."""

    start: int
    end: int
    call_end: int
    wait_start: int
    name: str
    source: str
    bytes: Optional[int]  # None: the sum of the operations within
    waiting: Optional[int]  # None: not known
    on_device: bool = False
    failed: bool = False


# Of detailed_timings.csv, in seconds and bytes.
COLUMNS = (
    "timestamp", "op_type", "tensor_size", "duration", "bandwidth_gbps", "waiting", "exposed",
    "region", "step", "rank",
    "thread", "source", "nested", "device", "failed",
)  # fmt: skip


class Region:
    def __init__(self) -> None:
        self.totals = Totals()
        self.parts: Dict[str, int] = {}  # operations and inner regions: their time within
        self.inner = False  # seen within another region

    def add_part(self, name: str, ns: int) -> None:
        if ns:
            self.parts[name] = self.parts.get(name, 0) + ns


class Store:
    def __init__(self, rows: int = 0) -> None:
        self.operations: Dict[Key, Totals] = {}
        self.regions: Dict[str, Region] = {}
        self.metrics: Dict[str, Metric] = {}
        self.steps = Totals()
        self.exposed = 0  # at least one thread was in communication
        self.overlapped = 0  # none was, and asynchronous operations were under way
        self.skipped = 0
        self.rows = Thinned(rows)
        self.series: Dict[str, Thinned] = {}  # by process: step, ns, exposed ns
        self.memory: Dict[str, Thinned] = {}  # by process: seconds, resident and device memory
        self.lost = 0  # records beyond MOST_KEYS, under OTHER

    def totals(self, key: Key) -> Totals:
        found = self.operations.get(key)
        if found is None:
            if len(self.operations) >= MOST_KEYS:
                self.lost += 1
                key = (OTHER, *key[1:])
            found = self.operations.setdefault(key, Totals())
        return found

    def region(self, name: str) -> Region:
        return self._one_of(self.regions, name, Region)

    def metric(self, name: str) -> Metric:
        return self._one_of(self.metrics, name, Metric)

    def _one_of(self, table: Dict[str, Thing], name: str, make: Callable[[], Thing]) -> Thing:
        found = table.get(name)
        if found is None:
            if len(table) >= MOST_KEYS:
                self.lost += 1
                name = OTHER
            found = table.setdefault(name, make())
        return found

    def merge(self, other: "Store") -> None:
        for key, totals in other.operations.items():
            self.totals(key).merge(totals)
        for name, region in other.regions.items():
            mine = self.region(name)
            mine.totals.merge(region.totals)
            mine.inner |= region.inner
            for part, ns in region.parts.items():
                mine.add_part(part, ns)
        for name, metric in other.metrics.items():
            self.metric(name).merge(metric)
        self.steps.merge(other.steps)
        self.exposed += other.exposed
        self.overlapped += other.overlapped
        self.skipped += other.skipped
        self.lost += other.lost
        self.series.update(other.series)
        self.memory.update(other.memory)
        for row in other.rows.kept:
            self.rows.offer(row)
        self.rows.seen += other.rows.seen - len(other.rows.kept)

    def state(self) -> Dict[str, Any]:
        """All but the rows, which are the lines of detailed_timings.csv."""
        return {
            "operations": [[*key, totals.state()] for key, totals in self.operations.items()],
            "regions": {
                name: {
                    "totals": region.totals.state(),
                    "parts": region.parts,
                    "inner": region.inner,
                }
                for name, region in self.regions.items()
            },
            "metrics": {name: vars(metric) for name, metric in self.metrics.items()},
            "steps": self.steps.state(),
            "exposed": self.exposed,
            "overlapped": self.overlapped,
            "skipped": self.skipped,
            "lost": self.lost,
            "rows": {"most": self.rows.most, "every": self.rows.every, "seen": self.rows.seen},
            "series": {process: vars(each) for process, each in self.series.items()},
            "memory": {process: vars(each) for process, each in self.memory.items()},
        }

    @classmethod
    def of(cls, state: Dict[str, Any], rows: List[List[str]]) -> "Store":
        made = cls()
        for operation, source, size, how, totals in state["operations"]:
            made.operations[operation, source, int(size), how] = Totals.of(totals)
        for name, value in state["regions"].items():
            region_of = made.regions[name] = Region()
            region_of.totals = Totals.of(value["totals"])
            region_of.parts = {part: int(ns) for part, ns in value["parts"].items()}
            region_of.inner = bool(value["inner"])
        made.metrics = {name: Metric(**value) for name, value in state["metrics"].items()}
        made.steps = Totals.of(state["steps"])
        for name in "exposed", "overlapped", "skipped", "lost":
            setattr(made, name, int(state[name]))
        made.rows = Thinned(kept=rows, **state["rows"])
        made.series = {process: Thinned(**each) for process, each in state["series"].items()}
        made.memory = {process: Thinned(**each) for process, each in state["memory"].items()}
        return made
