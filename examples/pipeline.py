#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pipeline of a small graph neural network, in four modes: sequential, in threads, in asyncio with an executor, and
in processes joined by ringcast. The figures say how much the GIL costs, and how much processes cost.

Sixteen subgraphs go through seven stages. The stages are divided into two blocks, in two ways (plan A and plan B), and
in each plan two workers divide one block. The stages hold the GIL (pure Python) or release the GIL (large NumPy calls).
Each run starts a process; the modes run in turns. The exit status is 0 only if the results of all modes are equal.
docs/pipeline.md explains the figures.

  python examples/pipeline.py                                    all modes, both kinds of stages
  python examples/pipeline.py --gil hold --mode threads,processes
  python examples/pipeline.py --repeat 5 --picture pipeline.png --csv blocks.csv
  python examples/pipeline.py --story                            from loading in a loop to processes, in steps
"""

import argparse
import itertools
import json
import os
import sys
from typing import Any, Dict, List, Tuple

from ranks import cpu_model, exit_without

try:
    import pipeline_figures as figures
    import pipeline_measure
    import pipeline_report as report
    from pipeline_graph import Settings
    from pipeline_modes import Asyncio, Outcome, Threads, Whole, run_here
    from pipeline_processes import DONE, GRACE, Crew, Failed, run_bare, run_processes
except ModuleNotFoundError as error:
    exit_without(error)

Turns = List[Dict[str, Outcome]]

# The steps of the story: mode, prepare, mapping, and the figures published elsewhere for a similar step.
STORY = (
    ("sequential, loads in a loop", "sequential", "runtime", "loop", "29.6 s"),
    ("threads, load in a loop", "threads", "runtime", "loop", "31.7 s, 0.94 times; 84.8 % waiting for the GIL"),
    ("threads, preloaded, vectorised", "threads", "preloaded", "vectorised", "expected 10-12 s, 2.5-3 times"),
    ("asyncio, preloaded, vectorised", "asyncio", "preloaded", "vectorised", "expected 7-10 s, 3-4 times"),
    ("processes, preloaded, vectorised", "processes", "preloaded", "vectorised", "not tried: memory, communication"),
    ("bare processes, preloaded, vectorised", figures.BARE, "preloaded", "vectorised", ""),
)


def host(pipe: Any, mode: str, settings: Settings, bare: int) -> None:
    """The process of one run."""
    if mode == "parts":
        found: Any = pipeline_measure.measure(settings)
    elif mode == "processes":
        found = run_processes(settings)
    elif mode == figures.BARE:
        found = run_bare(settings, bare)
    else:
        found = run_here({"sequential": Whole, "threads": Threads, "asyncio": Asyncio}[mode], settings)
    pipe.send((DONE, found))


def run(mode: str, settings: Settings, bare: int) -> Any:
    with Crew(settings.deadline + GRACE) as crew:  # the run names the late process first
        crew.start(mode, host, mode, settings, bare)
        try:
            return crew.all([mode])[mode]
        except Failed as error:
            text = str(error)
            raise Failed(text if text.startswith(mode) else f"{mode}: {text}") from None


def in_turns(cases: List[Tuple[str, str, Settings]], options: argparse.Namespace) -> Turns:
    """Outcomes by the names of the cases, for each turn. Every second turn goes backwards, so that a machine with
    growing or falling load favours no mode."""
    turns: Turns = []
    for turn in range(options.repeat):
        found = {}
        for name, mode, settings in cases if turn % 2 == 0 else reversed(cases):
            print(f"\r{name}, turn {turn + 1} of {options.repeat} ", end="\033[K", file=options.progress, flush=True)
            found[name] = run(mode, settings, options.bare)
        turns.append({name: found[name] for name, _, _ in cases})
    print("\r", end="\033[K", file=options.progress, flush=True)
    return turns


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Settings()
    parser.add_argument("--mode", default="all", help=f"all, or some of {','.join(figures.MODES)} (default: all)")
    parser.add_argument("--gil", choices=("both", "hold", "release"), default="both", help="the kind of the stages")
    parser.add_argument("--prepare", choices=("runtime", "preloaded"), default=usual.prepare)
    parser.add_argument("--mapping", choices=("loop", "vectorised"), default=usual.mapping, help="of the edges")
    parser.add_argument("--plans", choices=("both", "a", "b"), default="both")
    parser.add_argument("--story", action="store_true", help="the steps from a loop in Python to processes")
    for name in ("subgraphs", "edges", "width", "hidden", "seed"):
        parser.add_argument(
            f"--{name}", type=int, default=getattr(usual, name), help=f"default: {getattr(usual, name)}"
        )
    parser.add_argument("--nodes", type=int, help="of a subgraph; default: in proportion to the edges, 5578 for 56235")
    parser.add_argument(
        "--bare", type=int, default=2, help="processes that share nothing; 0: leave them out (default: 2)"
    )
    parser.add_argument("--repeat", type=int, default=1, help="turns, of which figures are medians (default: 1)")
    parser.add_argument("--deadline", type=float, default=usual.deadline, help="seconds for a run (default: 600)")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--page", metavar="FILE", help="also the tables, into their places in docs/pipeline.md")
    parser.add_argument("--csv", metavar="FILE", help="also a row for each mode and block")
    parser.add_argument("--picture", metavar="FILE", help="also the Gantt chart, .png or .svg; needs matplotlib")
    options = parser.parse_args(arguments)
    least = {"subgraphs": 2, "edges": 1, "width": 1, "hidden": 1, "seed": 0, "bare": 0, "repeat": 1}
    for name, limit in least.items():
        if getattr(options, name) < limit:
            parser.error(f"--{name} must be at least {limit}, not {getattr(options, name)}")
    options.nodes = max(1, options.edges * usual.nodes // usual.edges) if options.nodes is None else options.nodes
    if options.nodes < 1:
        parser.error(f"--nodes must be at least 1, not {options.nodes}")
    if not options.deadline > 0:
        parser.error(f"--deadline must be above 0, not {options.deadline}")
    options.modes = list(figures.MODES) if options.mode == "all" else options.mode.split(",")
    if unknown := [mode for mode in options.modes if mode not in figures.MODES]:
        parser.error(f"--mode takes all, or some of {', '.join(figures.MODES)}, not {unknown[0]!r}")
    if options.picture and not options.picture.endswith((".png", ".svg")):
        parser.error(f"--picture takes a file that ends in .png or .svg, not {options.picture}")
    if options.story and (options.csv or options.picture):
        parser.error("--story has no --csv and no --picture")
    options.progress = sys.stderr if sys.stderr.isatty() else open(os.devnull, "w")
    return options


def experiment(options: argparse.Namespace, settings: Settings) -> int:
    kinds = ["hold", "release"] if options.gil == "both" else [options.gil]
    modes = list(dict.fromkeys(["sequential", *options.modes])) + [figures.BARE] * bool(options.bare)
    cases = [(f"{gil} {mode}", mode, settings._replace(gil=gil)) for gil in kinds for mode in modes]
    parts = run("parts", settings, 0)
    settings = settings._replace(rounds=parts["rounds"])
    cases = [(name, mode, case._replace(rounds=settings.rounds)) for name, mode, case in cases]
    both = in_turns(cases, options)
    turns = {gil: [{mode: turn[f"{gil} {mode}"] for mode in modes} for turn in both] for gil in kinds}
    cores = len(os.sched_getaffinity(0))
    found: Dict[str, Any] = {
        "settings": settings._asdict(),
        "machine": f"{cores} cores of {cpu_model()}",
        "repeat": options.repeat,
        "parts": parts,
        "mapping": parts["mapping"],
        "gil": {gil: figures.figures(turns[gil], settings, cores) for gil in kinds},
    }
    found["goals"] = figures.goals(found)
    show(found, turns, settings, options)
    return verdict(found["gil"])


def show(found: Dict[str, Any], turns: Dict[str, Turns], settings: Settings, options: argparse.Namespace) -> None:
    sections = report.tables(found)
    charts = report.gantts(found, turns, settings)
    if options.format == "json":
        print(json.dumps(found, indent=1))
    else:
        print(report.setting_lines(found))
        for table in itertools.chain.from_iterable(sections.values()):
            print("\n" + getattr(table, options.format)())
        if text := report.answer(found):
            print("\nWhy not processes?\n" + text)
        print("\n" + (fenced(charts) if options.format == "markdown" else charts))
    if options.page:
        texts = {name: "\n\n".join(table.markdown() for table in each) for name, each in sections.items()}
        write_page(
            options.page,
            {"run": report.setting_lines(found), **texts, "answer": report.answer(found), "gantt": fenced(charts)},
        )
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            report.write_csv(found, file)
    if options.picture:
        try:
            report.draw(found, turns, settings, options.picture)
        except ModuleNotFoundError as error:
            command = f"{sys.executable} -m pip install matplotlib"
            raise Failed(f"no picture: {error.name} is not installed: {command}") from None


def fenced(text: str) -> str:
    return f"```\n{text}\n```"


def write_page(path: str, sections: Dict[str, str]) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            page = report.fill(file.read(), sections)
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except (OSError, ValueError) as error:
        raise Failed(f"{path} is as before: {error}") from None


def verdict(kinds: Dict[str, Any]) -> int:
    wrong = {gil: each["equal"]["unequal"] for gil, each in kinds.items() if each["equal"]["unequal"]}
    for gil, pairs in wrong.items():
        for one, other in pairs:
            print(f"{gil}: the results of {one} and {other} differ by more than {figures.ATOL}", file=sys.stderr)
    return 1 if wrong else 0


def story(options: argparse.Namespace, settings: Settings) -> int:
    kinds = ["hold", "release"] if options.gil == "both" else [options.gil]
    cores = len(os.sched_getaffinity(0))
    steps = [step for step in STORY if options.bare or step[1] != figures.BARE]
    settings = settings._replace(rounds=run("parts", settings, 0)["rounds"])
    cases = [
        (f"{gil}: {name}", mode, settings._replace(gil=gil, prepare=prepare, mapping=mapping))
        for gil in kinds
        for name, mode, prepare, mapping, _ in steps
    ]
    turns = in_turns(cases, options)
    runs = {
        name: figures.median([figures.of_run(turn[name], settings, cores) for turn in turns]) for name, _, _ in cases
    }
    equal = {
        gil: [pair for turn in turns for pair in figures.compare({k: v for k, v in turn.items() if k.startswith(gil)})]
        for gil in kinds
    }
    found = {
        "settings": settings._asdict(),
        "machine": f"{cores} cores of {cpu_model()}",
        "repeat": options.repeat,
        "steps": [
            {
                "step": name,
                "published_elsewhere": published,
                **{gil: step_figures(runs, f"{gil}: {name}", f"{gil}: {steps[0][0]}") for gil in kinds},
            }
            for name, _, _, _, published in steps
        ],
        "equal": {
            gil: {"pairs": len(pairs), "unequal": [pair["pair"] for pair in pairs if not pair["equal"]]}
            for gil, pairs in equal.items()
        },
    }
    table = report.story_table(found, kinds)
    print(json.dumps(found, indent=1) if options.format == "json" else getattr(table, options.format)())
    if options.page:
        write_page(options.page, {"story": table.markdown()})
    return verdict({gil: {"equal": found["equal"][gil]} for gil in kinds})


def step_figures(runs: Dict[str, Any], name: str, first: str) -> Dict[str, float]:
    own = runs[name]
    return {
        "seconds": own["seconds"],
        "speedup": runs[first]["seconds"] / own["seconds"],
        "gil_wait_share": own["gil_wait_share"],
    }


def main() -> int:
    options = parse(sys.argv[1:])
    names = ("subgraphs", "edges", "nodes", "width", "hidden", "seed", "prepare", "mapping", "plans", "deadline")
    settings = Settings(**{name: getattr(options, name) for name in names})
    try:
        return story(options, settings) if options.story else experiment(options, settings)
    except Failed as error:
        print(f"pipeline.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
