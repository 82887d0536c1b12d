# SPDX-License-Identifier: Apache-2.0
"""python -m ringcast.profile: compares, reports and merges folders of profiles."""

import argparse
import contextlib
import json
import os
import sys
from typing import List, Optional

from ringcast.profile import NoProfile, compare, current, report, results

EPILOG = """examples:
  python -m ringcast.profile report results
  python -m ringcast.profile merge results                        after a run in which rank 0 ended first
  python -m ringcast.profile compare yesterday today --fail-over 10%

exit status: 0; 1: compare --fail-over found something slower; 2: wrong arguments, or no profile in a folder
"""


def parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        prog="python -m ringcast.profile", description=__doc__, epilog=EPILOG, formatter_class=formatter
    )
    commands = made.add_subparsers(dest="command", required=True)
    one = commands.add_parser("compare", help="what changed from one profile to the other, and by how much")
    one.add_argument("before", metavar="A", help="the folder of the earlier profile")
    one.add_argument("after", metavar="B", help="the folder of the later one")
    told = "exit with 1 if a step, an operation or a region takes longer by more than so many per cent on average; "
    told += "what is new does not count"
    one.add_argument("--fail-over", metavar="PERCENT", type=percent, help=told)
    one.add_argument("--all", action="store_true", help="also what changed by less than 2 per cent")
    one.add_argument("--format", choices=["text", "json"], default="text", help="(default: %(default)s)")
    one = commands.add_parser("report", help="make reports and pictures anew from profile.json, and show the report")
    one.add_argument("dir", metavar="DIR", help="a folder with a profile.json")
    one.add_argument("--no-pictures", action="store_true", help="leave the pictures as they are")
    one = commands.add_parser("merge", help="merge the ranks' results in DIR into one, as rank 0 does at its end")
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
    found = list(compare.changes(results.load(options.before), results.load(options.after)))
    failed = compare.slower(found, options.fail_over) if options.fail_over is not None else []
    if options.format == "json":
        told = {"changes": [each._asdict() for each in found], "slower": [each.what for each in failed]}
        print(json.dumps(told, indent=2))
    else:
        print(compare.as_text(found, 0.0 if options.all else 2.0))
        for each in failed:
            print(f"slower by more than {options.fail_over:g} %: {each.what}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
