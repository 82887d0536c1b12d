# SPDX-License-Identifier: Apache-2.0
"""Two profiles side by side: averages, medians, counts, and the change of each average. Operations are compared within
a size range."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from ringcast.profile import analysis
from ringcast.profile.report import number
from ringcast.profile.results import Results
from ringcast.profile.totals import RANGES, Totals


GATED = ("step", "operation", "region")


class Change(NamedTuple):
    what: str
    kind: str  # step, share, operation, region or memory
    unit: str
    before: Optional[float]
    after: Optional[float]
    counts: Any = None  # before and after
    p50: Any = None  # before and after, by the histogram

    @property
    def percent(self) -> Optional[float]:
        """Relative to `before`. None: there is no value before or after, or the value before is 0."""
        return _percent(self.before, self.after)

    @property
    def p50_percent(self) -> Optional[float]:
        return _percent(*self.p50) if self.p50 is not None else None


def _percent(before: Optional[float], after: Optional[float]) -> Optional[float]:
    return None if not before or after is None else 100.0 * (after - before) / before


def changes(before: Results, after: Results) -> List[Change]:
    return [*_of_steps(before, after), *_operations(before, after), *_regions(before, after), *_memory(before, after)]


def slower(found: List[Change], percent: float) -> List[Change]:
    """The steps, operations and regions with an average that grew by more than `percent`."""
    return [each for each in found if each.kind in GATED and (each.percent or 0) > percent]


def _of_steps(before: Results, after: Results) -> Iterator[Change]:
    steps = [each.store.steps for each in (before, after)]
    yield _of_totals("a step", "step", "ms", steps)
    for label in sorted({*before.store.kinds, *after.store.kinds}):
        both = [each.store.kinds.get(label, Totals()) for each in (before, after)]
        yield _of_totals(f"a step, {label}", "step", "ms", both)
    shares = [analysis.share(each.store.exposed, each.store.steps.total) for each in (before, after)]
    yield Change("communication's share", "share", "%", shares[0], shares[1])


def _operations(before: Results, after: Results) -> Iterator[Change]:
    old, new = (
        analysis.grouped(analysis.counted(each.store), lambda key: (key[0], key[2])) for each in (before, after)
    )
    for key in sorted({*old, *new}):
        both = [each.get(key, Totals()) for each in (old, new)]
        yield _of_totals(f"{key[0]}, {RANGES[key[1]]}", "operation", "us", both)


def _regions(before: Results, after: Results) -> Iterator[Change]:
    old, new = (each.store.regions for each in (before, after))
    for name in sorted({*old, *new}, key=analysis.natural):
        both = [each[name].totals if name in each else Totals() for each in (old, new)]
        yield _of_totals(name, "region", "ms", both)


def _memory(before: Results, after: Results) -> Iterator[Change]:
    most = [analysis.memory_of(each)["rss_max"] / (1 << 20) for each in (before, after)]
    yield Change("resident memory, most", "memory", "MiB", most[0], most[1])


def _of_totals(what: str, kind: str, unit: str, both: List[Totals]) -> Change:
    nanoseconds = {"us": 1e3, "ms": 1e6}[unit]
    before, after = (each.mean() / nanoseconds if each.count else None for each in both)
    p50 = [each.quantile(0.5) / nanoseconds if each.count else None for each in both]
    return Change(what, kind, unit, before, after, [each.count for each in both], p50)


TITLES = [
    "what",
    "avg before",
    "avg after",
    "change",
    "p50 before",
    "p50 after",
    "change",
    "count before",
    "count after",
]


def as_text(found: List[Change], at_least: float) -> str:
    """A line for each change of at least `at_least` per cent."""
    shown = [each for each in found if each.percent is None or abs(each.percent) >= at_least]
    shown = [each for each in shown if each.before or each.after]
    rows = [TITLES, *map(_row, shown)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]).rstrip() for row in rows]
    left_out = len(found) - len(shown)
    if left_out:
        lines.append(f"{left_out} more changed by less than {at_least:g} %; --all shows them")
    return "\n".join(lines)


def _row(each: Change) -> List[str]:
    change = "new" if each.before is None else "gone" if each.after is None else _signed(each.percent)
    row = [each.what, _value(each.before, each.unit), _value(each.after, each.unit), change]
    if each.counts is None:
        return [*row, "", "", "", "", ""]
    p50 = [_value(value, each.unit) for value in each.p50]
    return [*row, *p50, _signed(each.p50_percent), *(f"{count:,}" for count in each.counts)]


def _value(value: Optional[float], unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}"


def _signed(percent: Optional[float]) -> str:
    return "-" if percent is None else f"{percent:+.1f} %"


def as_json(found: List[Change], failed: List[Change]) -> Dict[str, Any]:
    return {
        "changes": [{**each._asdict(), "percent": each.percent, "p50_percent": each.p50_percent} for each in found],
        "slower": [each.what for each in failed],
    }
