# SPDX-License-Identifier: Apache-2.0
"""python -m ringcast.profile: compares, reports and merges folders of profiles."""

import argparse
import contextlib
import json
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from ringcast.profile import NoProfile, analysis, current, report, results
from ringcast.profile.results import Results
from ringcast.profile.store import RANGES, Totals

EPILOG = """examples:
  python -m ringcast.profile report results
  python -m ringcast.profile merge results                 after a run in which rank 0 ended first
  python -m ringcast.profile compare yesterday today --fail-over 10%

exit status: 0; 1: compare --fail-over found something slower; 2: wrong arguments, or no profile
in a folder
"""


def parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        prog="python -m ringcast.profile",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=formatter,
    )
    commands = made.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "compare", help="what changed from one profile to the other, and by how much"
    )
    one.add_argument("before", metavar="A", help="the folder of the earlier profile")
    one.add_argument("after", metavar="B", help="the folder of the later one")
    told = (
        "exit with 1 if a step, an operation or a region takes longer by more than so many per "
        "cent on average; "
    )
    told += "what is new does not count"
    one.add_argument("--fail-over", metavar="PERCENT", type=percent, help=told)
    one.add_argument("--all", action="store_true", help="also what changed by less than 2 per cent")
    one.add_argument(
        "--format", choices=["text", "json"], default="text", help="(default: %(default)s)"
    )
    one = commands.add_parser(
        "report", help="make reports and pictures anew from profile.json, and show the report"
    )
    one.add_argument("dir", metavar="DIR", help="a folder with a profile.json")
    one.add_argument("--no-pictures", action="store_true", help="leave the pictures as they are")
    one = commands.add_parser(
        "merge", help="merge the ranks' results in DIR into one, as rank 0 does at its end"
    )
    one.add_argument("dir", metavar="DIR", help="a folder with folders rank0, rank1, ...")
    one.add_argument("--no-pictures", action="store_true", help="make no pictures")
    return made


def percent(text: str) -> float:
    with contextlib.suppress(ValueError):
        value = float(text.rstrip("%"))
        if value >= 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number of per cent, such as 10 or 10%")


def main(arguments: Optional[List[str]] = None) -> int:
    options = parser().parse_args(arguments)
    running = current()
    if running is not None:
        running.abandon()  # RINGCAST_PROFILE is set, and this command is not what is to be profiled
    try:
        if options.command == "compare":
            return _compare(options)
        is_report = options.command == "report"
        found = results.load(options.dir) if is_report else results.merge_folder(options.dir)
        told = results.write_folder(found, options.dir, not options.no_pictures)
    except (NoProfile, OSError) as error:
        print(f"ringcast.profile: {error}", file=sys.stderr)
        return 2
    print(report.text(told) if is_report else f"merged: {len(found.ranks)} ranks, {options.dir}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    found = list(changes(results.load(options.before), results.load(options.after)))
    failed = slower(found, options.fail_over) if options.fail_over is not None else []
    if options.format == "json":
        told = {
            "changes": [each._asdict() for each in found],
            "slower": [each.what for each in failed],
        }
        print(json.dumps(told, indent=2))
    else:
        print(as_text(found, 0.0 if options.all else 2.0))
        for each in failed:
            print(f"slower by more than {options.fail_over:g} %: {each.what}")
    return 1 if failed else 0


# ---- Two profiles side by side ------------------------------------------------------------------
# Averages, medians, counts, and the change of each average. Operations are compared within a size
# range.

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
    old, new = (
        analysis.grouped(analysis.counted(each), lambda key: (key[0], key[2]))
        for each in (before, after)
    )
    yield from _of_tables("operation", "us", old, new, lambda key: f"{key[0]}, {RANGES[key[1]]}")
    old, new = (
        {name: region.totals for name, region in each.regions.items()} for each in (before, after)
    )
    yield from _of_tables("region", "ms", old, new, str)
    was, now = (analysis.memory_of(each)["rss_max"] / (1 << 20) for each in both)
    yield Change("resident memory, most", "memory", "MiB", was, now, _percent(was, now))


def _of_tables(
    kind: str, unit: str, old: Dict[Any, Totals], new: Dict[Any, Totals], name_of: Any
) -> Iterator[Change]:
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


TITLES = (
    "what,avg before,avg after,change,p50 before,p50 after,change,count before,count after".split(
        ","
    )
)


def as_text(found: List[Change], at_least: float) -> str:
    """A line for each change of at least `at_least` per cent."""
    shown = [each for each in found if each.percent is None or abs(each.percent) >= at_least]
    rows = [TITLES, *(_row(each) for each in shown if each.before or each.after)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]).rstrip()
        for row in rows
    ]
    left_out = len(found) + 1 - len(rows)
    if left_out:
        lines.append(f"{left_out} more changed by less than {at_least:g} %; --all shows them")
    return "\n".join(lines)


def _row(each: Change) -> List[str]:
    def value(number_of: Optional[float]) -> str:
        return "-" if number_of is None else f"{report.number(number_of)} {each.unit}"

    def signed(percent: Optional[float]) -> str:
        return "-" if percent is None else f"{percent:+.1f} %"

    change = (
        "new" if each.before is None else "gone" if each.after is None else signed(each.percent)
    )
    row = [each.what, value(each.before), value(each.after), change]
    if each.counts is None:
        return [*row, "", "", "", "", ""]
    return [
        *row,
        *map(value, each.p50),
        signed(each.p50_percent),
        *(f"{count:,}" for count in each.counts),
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
