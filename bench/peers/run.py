# SPDX-License-Identifier: Apache-2.0
"""Measures all peers, and ringcast, with one harness, and writes results.json and results.csv.

    run.py                          the whole matrix
    run.py --quick                  a small part of the matrix, for a look
    run.py --only zmq-push c-pipe   only the named ways

A way that can't be had here, fails or hangs has a row with the reason as the status. The results
are written anew after each group: a stopped run keeps the results so far.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.path.append(str(ROOT))

import figures  # noqa: E402
import plan  # noqa: E402
from adapters import WAYS, find  # noqa: E402
from adapters.base import LeftOut, Way  # noqa: E402
from figures import Row  # noqa: E402
from group import run_group  # noqa: E402
from native import Native  # noqa: E402

from bench.machine import machine  # noqa: E402

ALL = "all"  # the payload, scenario and reading of the row of an unusable way
CPUS = len(os.sched_getaffinity(0))


# ---- The run's facts -----------------------------------------------------------------------------


def facts(options: argparse.Namespace) -> Dict[str, Any]:
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": git.stdout.strip() or None,
        **machine(),
        "quick": options.quick,
        "rounds": options.rounds,
        "seconds": 0.0,
        "whole": False,
    }


# ---- Rows of the Python ways ---------------------------------------------------------------------


def way_row(name: str, processes: int, version: str = "") -> Row:
    """The way's part of a row."""
    try:
        way = find(name)
    except LeftOut:
        way = Way
    return figures.blank(
        peer=name, family=way.family or name, language="python", version=version or None,
        processes=processes, collective=way.collective, copying=way.copying, floor=False,
        oversubscribed=processes > CPUS, in_process=False, note=way.note,
    )  # fmt: skip


def rows_of(group: plan.Group, options: argparse.Namespace) -> List[Row]:
    why, version = group.left_out, ""
    if not why:
        told = {"vllm": options.vllm, "sglang": options.sglang, "spin": group.processes <= CPUS}
        outcome = run_group(plan.spec(group, **told))
        why, version = outcome.left_out, outcome.version
    row = way_row(group.way, group.processes, version)
    if why:
        return [{**row, "payload": ALL, "scenario": ALL, "reading": ALL, "status": why}]
    rows = []
    for step, result in zip(group.steps, outcome.results[1:]):  # the first one is the warm-up
        scenario = "in-place" if step.reading == "in-place" else step.scenario
        made = {**row, **step._asdict(), "scenario": scenario, "status": result.status}
        made["serialiser"] = find(group.way).serialiser if step.reading == "objects" else "none"
        if result.status == "ok":
            made.update(figures.of_step(step._asdict(), result.members))
            made["note"] = "; ".join(filter(None, (made["note"], row["note"])))
        rows.append(made)
    return rows


# ---- The run -------------------------------------------------------------------------------------


def jobs(options: argparse.Namespace) -> Iterator[Tuple[str, Callable[[], List[Row]]]]:
    """In order: the text of the progress line, and the function that gives the rows."""
    groups = plan.groups(plan.names(options.only), options.quick, options.vllm)
    native = None
    if options.native:
        native = Native(options.native)
    elif not options.only:
        yield "the ways of C", lambda: [no_native()]
    for _ in range(options.rounds):
        for group in plan.in_order(groups):
            yield f"{group.way}, {group.processes} processes", partial(rows_of, group, options)
        if native:
            yield from native.jobs(options.quick, options.only)


def no_native() -> Row:
    why = "not built: build/peers/native.log has the compiler's words"
    return figures.blank(
        peer="c-*",
        family="c",
        language="c",
        payload=ALL,
        scenario=ALL,
        reading=ALL,
        processes=2,
        status=why,
    )


def write_results(folder: Path, meta: Dict[str, Any], rows: List[Row]) -> Path:
    """results.json and results.csv, whole at any moment."""
    part = folder / ".results.json"
    part.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    os.replace(part, folder / "results.json")
    figures.write_csv(folder / ".results.csv", rows)
    os.replace(folder / ".results.csv", folder / "results.csv")
    return folder / "results.json"


def run(options: argparse.Namespace) -> Path:
    meta, since = facts(options), time.monotonic()
    rows: List[Row] = []
    todo = list(jobs(options))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    for count, (what, work) in enumerate(todo, 1):
        took = int(time.monotonic() - since)
        print(
            f"peers: {count}/{len(todo)}  {what}  {took // 60}:{took % 60:02}",
            file=sys.stderr,
            flush=True,
        )
        rows += work()
        meta.update(seconds=round(time.monotonic() - since, 1), whole=count == len(todo))
        path = write_results(options.out, meta, figures.merge(rows))
    return path


def options_of(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part, in minutes")
    parser.add_argument(
        "--rounds", type=int, default=1, help="of everything: medians of N runs (1)"
    )
    parser.add_argument(
        "--only", action="extend", nargs="+", default=[], metavar="WAY", help="only these ways"
    )
    parser.add_argument(
        "--vllm", metavar="FOLDER", help="vLLM's source, for its queue and its messages"
    )
    parser.add_argument("--sglang", metavar="FOLDER", help="SGLang's source, for its queue")
    parser.add_argument("--native", metavar="PROGRAM", help="the program of the C ways")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="(default: build/peers; with --only build/peers/only)",
    )
    options = parser.parse_args(arguments)
    options.out = options.out or ROOT / "build" / "peers" / ("only" if options.only else "")
    for name in ("vllm", "sglang", "native"):
        value = getattr(options, name)
        if value:
            setattr(options, name, str(Path(value).resolve()))
    unknown = [] if options.native else [name for name in options.only if name not in WAYS]
    if unknown:
        parser.error(f"no way is named {', '.join(unknown)}; the ways are: {', '.join(WAYS)}")
    return options


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the group, as Ctrl-C does
    try:
        print(run(options_of()))
    except KeyboardInterrupt:
        print("\npeers: stopped; the groups so far are in results.json", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
