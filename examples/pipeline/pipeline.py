#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A pipeline of a small graph neural network, in four modes: sequential, in threads, in asyncio with
an executor, and in processes joined by ringcast. The figures say how much the GIL costs, and how
much processes cost.

Sixteen subgraphs go through seven stages. The stages are divided into two blocks, in two ways (plan
A and plan B), and in each plan two workers divide one block. The stages hold the GIL (pure Python)
or release the GIL (large NumPy calls). Each run starts processes of its own; the modes run in
turns. The exit status is 0 only if the results of all modes are equal. README.md explains the
figures.

  python examples/pipeline/pipeline.py                              all modes, both kinds of stages
  python examples/pipeline/pipeline.py --gil hold --mode threads,processes python
  examples/pipeline/pipeline.py --repeat 5 --picture pipeline.png python
  examples/pipeline/pipeline.py --story                      from loading in a loop to processes, in
  steps
"""

import argparse
import json
import os
import sys
from typing import Any, Dict, List

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ranks import cpu_model, exit_without

try:
    import figures
    import modes
    from graph import Settings
except ModuleNotFoundError as error:
    exit_without(error)

MODES = ("sequential", "threads", "asyncio", "processes")
STORY = {  # mode, prepare, mapping
    "sequential, loads in a loop": ("sequential", "runtime", "loop"),
    "threads, load in a loop": ("threads", "runtime", "loop"),
    "threads, preloaded, vectorised": ("threads", "preloaded", "vectorised"),
    "asyncio, preloaded, vectorised": ("asyncio", "preloaded", "vectorised"),
    "processes, preloaded, vectorised": ("processes", "preloaded", "vectorised"),
    "bare": ("bare", "preloaded", "vectorised"),
}


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Settings()
    parser.add_argument(
        "--mode", default="all", help=f"all, or some of {','.join(MODES)} (default: all)"
    )
    parser.add_argument(
        "--gil", choices=("both", "hold", "release"), default="both", help="the kind of the stages"
    )
    parser.add_argument("--prepare", choices=("runtime", "preloaded"), default=usual.prepare)
    parser.add_argument(
        "--mapping", choices=("loop", "vectorised"), default=usual.mapping, help="of the edges"
    )
    parser.add_argument(
        "--story", action="store_true", help="the steps from a loop in Python to processes"
    )
    least = {"subgraphs": 2, "edges": 1, "nodes": 1, "width": 1, "hidden": 1, "seed": 0}
    for name in least:
        default = getattr(usual, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    bare = "processes that share nothing; 0: leave them out (default: 2)"
    parser.add_argument("--bare", type=int, default=2, help=bare)
    parser.add_argument(
        "--repeat", type=int, default=1, help="turns, of which figures are medians (default: 1)"
    )
    parser.add_argument(
        "--deadline", type=float, default=usual.deadline, help="seconds for a run (default: 600)"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text: tables in Markdown"
    )
    parser.add_argument(
        "--picture", metavar="FILE", help="also the Gantt chart, .png or .svg; needs matplotlib"
    )
    options = parser.parse_args(arguments)
    for name, limit in {**least, "bare": 0, "repeat": 1, "deadline": 1e-3}.items():
        if getattr(options, name) < limit:
            parser.error(f"--{name} must be at least {limit}, not {getattr(options, name)}")
    options.modes = list(MODES) if options.mode == "all" else options.mode.split(",")
    if unknown := [mode for mode in options.modes if mode not in MODES]:
        parser.error(f"--mode takes all, or some of {', '.join(MODES)}, not {unknown[0]!r}")
    if options.picture and not options.picture.endswith((".png", ".svg")):
        parser.error(f"--picture takes a file that ends in .png or .svg, not {options.picture}")
    return options


def cases_of(options: argparse.Namespace) -> Dict[str, Any]:
    """By name: mode, prepare, mapping. The first is what speed-ups are relative to."""
    if options.story:
        cases = dict(STORY)
    else:
        names = dict.fromkeys(["sequential", *options.modes, "bare"])
        cases = {mode: (mode, options.prepare, options.mapping) for mode in names}
    if not options.bare:
        del cases["bare"]
    return cases


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Every second turn goes backwards, so that a machine with growing or falling load favours no
    mode."""
    kinds = ["hold", "release"] if options.gil == "both" else [options.gil]
    cases, cores = cases_of(options), len(os.sched_getaffinity(0))
    (parts,) = modes.ranks("measuring the stages", modes.measure, [(settings,)], settings.deadline)
    turns: Dict[str, List[figures.Turn]] = {gil: [] for gil in kinds}
    for turn in range(options.repeat):
        for gil in kinds if turn % 2 == 0 else reversed(kinds):
            found = {}
            for name in cases if turn % 2 == 0 else reversed(cases):
                mode, prepare, mapping = cases[name]
                own = settings._replace(
                    gil=gil, rounds=parts["rounds"], prepare=prepare, mapping=mapping
                )
                if sys.stderr.isatty():
                    print(f"turn {turn + 1} of {options.repeat}: {gil}, {name}", file=sys.stderr)
                found[name] = modes.run(mode, own, options.bare)
            turns[gil].append({name: found[name] for name in cases})
    told = {
        "settings": settings._asdict(),
        "machine": f"{cores} cores of {cpu_model()}",
        "repeat": options.repeat,
        "mapping_ms": parts["mapping_ms"],
        "gil": {
            gil: figures.figures(turns[gil], settings, cores, next(iter(cases))) for gil in kinds
        },
    }
    if options.format == "json":
        print(json.dumps(told, indent=1))
    else:
        print(*figures.tables(told), *figures.gantts(told, turns, settings), sep="\n\n")
        print(f"\n{told['machine']}; medians of {options.repeat} turns.")
    if options.picture:
        try:
            figures.draw(told, turns, settings, options.picture)
        except ModuleNotFoundError as error:
            raise SystemExit(
                f"no picture: {error.name} is missing: {sys.executable} -m pip install matplotlib"
            ) from None
    pairs = [(gil, pair) for gil in kinds for pair in told["gil"][gil]["unequal"]]
    for gil, (one, other) in pairs:
        print(
            f"{gil}: the results of {one} and {other} differ by more than {figures.ATOL}",
            file=sys.stderr,
        )
    return 1 if pairs else 0


def main() -> int:
    options = parse(sys.argv[1:])
    names = ("subgraphs", "edges", "nodes", "width", "hidden", "seed", "deadline")
    return run(options, Settings(**{name: getattr(options, name) for name in names}))


if __name__ == "__main__":
    sys.exit(main())
