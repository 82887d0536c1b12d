# SPDX-License-Identifier: Apache-2.0
"""Two profiles side by side: averages, medians, counts, and the change of each average. Operations are compared within
a size range."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from ringcast.profile import analysis
from ringcast.profile.report import number
from ringcast.profile.results import Results
from ringcast.profile.store import RANGES, Totals

GATED = ("step", "operation", "region")


class Change(NamedTuple):
    what: str
    kind: str  # step, share, operation, region or memory
    unit: str
    before: Optional[float]
    after: Optional[float]
    percent: Optional[float]  # None: there is no value before or after, or the value before is 0
    counts: Any = None  # before and after
    p50: Any = None  # before and after, by the histogram
    p50_percent: Optional[float] = None


def _percent(before: Optional[float], after: Optional[float]) -> Optional[float]:
    return None if not before or after is None else 100.0 * (after - before) / before


def changes(*both: Results) -> Iterator[Change]:
    before, after = (each.store for each in both)
    yield _of_totals("a step", "step", "ms", before.steps, after.steps)
    was, now = (analysis.share(each.exposed, each.steps.total) for each in (before, after))
    yield Change("communication's share", "share", "%", was, now, _percent(was, now))
    old, new = (analysis.grouped(analysis.counted(each), lambda key: (key[0], key[2])) for each in (before, after))
    yield from _of_tables("operation", "us", old, new, lambda key: f"{key[0]}, {RANGES[key[1]]}")
    old, new = ({name: region.totals for name, region in each.regions.items()} for each in (before, after))
    yield from _of_tables("region", "ms", old, new, str)
    was, now = (analysis.memory_of(each)["rss_max"] / (1 << 20) for each in both)
    yield Change("resident memory, most", "memory", "MiB", was, now, _percent(was, now))


def _of_tables(kind: str, unit: str, old: Dict[Any, Totals], new: Dict[Any, Totals], name_of: Any) -> Iterator[Change]:
    names = {name_of(key): key for key in sorted({*old, *new})}
    for name in sorted(names, key=analysis.natural) if kind == "region" else names:
        both = (table.get(names[name], Totals()) for table in (old, new))
        yield _of_totals(name, kind, unit, *both)


def _of_totals(what: str, kind: str, unit: str, *both: Totals) -> Change:
    scale = {"us": 1e3, "ms": 1e6}[unit]
    was, now = (each.mean() / scale if each.count else None for each in both)
    p50 = [each.quantile(0.5) / scale if each.count else None for each in both]
    counts = [each.count for each in both]
    return Change(what, kind, unit, was, now, _percent(was, now), counts, p50, _percent(*p50))


def slower(found: List[Change], percent: float) -> List[Change]:
    """The steps, operations and regions with an average that grew by more than `percent`."""
    return [each for each in found if each.kind in GATED and (each.percent or 0) > percent]


TITLES = "what,avg before,avg after,change,p50 before,p50 after,change,count before,count after".split(",")


def as_text(found: List[Change], at_least: float) -> str:
    """A line for each change of at least `at_least` per cent."""
    shown = [each for each in found if each.percent is None or abs(each.percent) >= at_least]
    rows = [TITLES, *(_row(each) for each in shown if each.before or each.after)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]).rstrip() for row in rows]
    left_out = len(found) + 1 - len(rows)
    if left_out:
        lines.append(f"{left_out} more changed by less than {at_least:g} %; --all shows them")
    return "\n".join(lines)


def _row(each: Change) -> List[str]:
    def value(number_of: Optional[float]) -> str:
        return "-" if number_of is None else f"{number(number_of)} {each.unit}"

    def signed(percent: Optional[float]) -> str:
        return "-" if percent is None else f"{percent:+.1f} %"

    change = "new" if each.before is None else "gone" if each.after is None else signed(each.percent)
    row = [each.what, value(each.before), value(each.after), change]
    if each.counts is None:
        return [*row, "", "", "", "", ""]
    return [*row, *map(value, each.p50), signed(each.p50_percent), *(f"{count:,}" for count in each.counts)]
