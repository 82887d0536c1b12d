# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m bench.python, from the root of the sources."""

import argparse
import json
import sys
from typing import Any, Dict, List, Optional

import ringcast

from bench import machine, tables
from bench.python import cadence, cases, codec, death, dropin, engine, harness, requests, rings

EXAMPLES = """
EXAMPLES
  python -m bench.python codec --case metadata --case scheduler-256 --seconds 10
  python -m bench.python codec --vllm vllm-0.33.0
  python -m bench.python object --cold --format json
  python -m bench.python dropin --case metadata --ranks 2 --cold sleep --gap 5
  python -m bench.python cadence --gap 5 --ranks 2 --seconds 30
  python -m bench.python requests --quick --ranks 4

Times are medians; a ratio below 1 says that ringcast takes less than the way beside it. No other
load should run meanwhile. docs/benchmarks.md tells what is measured, and how.
"""
# What is measured, the options, and defaults of the options.
COMMANDS: Dict[str, Any] = {
    "codec": ("encoding and decoding in one process, beside other codecs", "case seconds vllm", {}),
    "object": ("objects by a ring, beside pickle 5 by the same ring", "case seconds gap cold", {}),
    "dropin": (
        "what stands in for gloo's, vLLM's and SGLang's broadcasts, beside them",
        "case seconds gap cold ranks vllm",
        {"ranks": dropin.RANKS},
    ),
    "cadence": (
        "ringcast's queue and vLLM's, which spins for 1 s or 2 ms, at an engine's cadence",
        "gap ranks seconds vllm",
        {"gap": cadence.GAPS, "ranks": cadence.RANKS, "seconds": cadence.SECONDS},
    ),
    "requests": (
        "requests a second whose features all ranks hash",
        "ranks quick",
        {"ranks": requests.RANKS},
    ),
    "death": ("how soon the others know when a process is killed", "rounds", {"rounds": 5}),
    "batch": ("small values in a stream, one by one and in batches", "case seconds", {}),
    "asyncio": ("waking a reader that blocks, or is in an event loop", "rounds", {"rounds": 300}),
}
CASES = {"codec": cases.CASES, "batch": rings.BATCHES, **dropin.COMMANDS}
OPTIONS: Dict[str, Dict[str, Any]] = {
    "case": {"action": "append", "metavar": "NAME", "help": "only this one; may be repeated"},
    "seconds": {
        "type": float,
        "metavar": "S",
        "help": "for each case (2); cadence: all rows (900)",
    },
    "gap": {
        "type": float,
        "action": "append",
        "metavar": "MS",
        "help": "milliseconds before each message; cadence: may be repeated (1, 5, 20 and 50)",
    },
    "cold": {
        "nargs": "?",
        "const": "evict",
        "choices": ["evict", "sleep"],
        "help": "between two messages each process reads a block of memory twice as large as the "
        "L3 cache (evict, the default), or sleeps. Without --gap the gap is long enough",
    },
    "ranks": {
        "type": int,
        "choices": range(2, 65),
        "action": "append",
        "metavar": "N",
        "help": "processes, from 2 on; may be repeated",
    },
    "vllm": {"metavar": "PATH", "help": "an unpacked source of vLLM; default: the installed one"},
    "rounds": {"type": int, "metavar": "N", "help": "how often each is measured"},
    "quick": {"action": "store_true", "help": "a minute: fewer rates, requests and rounds"},
}


def parser() -> argparse.ArgumentParser:
    shape: Any = {"epilog": EXAMPLES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    made = argparse.ArgumentParser(prog="python -m bench.python", description=__doc__, **shape)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (what, options, defaults) in COMMANDS.items():
        one = commands.add_parser(command, help=what, description=f"Measures {what}.", **shape)
        one.add_argument("--format", choices=["text", "json"], default="text", help="default: text")
        for name in options.split():
            chosen = {"choices": list(CASES[command])} if name == "case" else {}
            one.add_argument(f"--{name}", **OPTIONS[name], **chosen)
        # None until an option is given: argparse would append to a default.
        one.set_defaults(
            defaults={"seconds": 2.0, "case": list(CASES.get(command, [])), **defaults}
        )
    return made


def run(given: argparse.Namespace) -> Dict[str, Any]:
    chosen = {key: value for key, value in vars(given).items() if value is not None}
    of = argparse.Namespace(**{"vllm": None, "gap": [], "cold": None, **given.defaults, **chosen})
    facts: Dict[str, Any] = {"command": of.command, "machine": machine.machine()}
    if of.command == "codec":
        cases.use(engine.find(of.vllm))
        return {**facts, **codec.run_all(of.case, of.seconds)}
    if of.command in dropin.COMMANDS:
        sizes = sorted(getattr(of, "ranks", [2]))
        plan = harness.plan(of.cold, (of.gap or [0])[-1] / 1e3, max(sizes))
        found = dropin.run(of.command, of.case, sizes, of.seconds, plan, of.vllm)
        return {**facts, "gap_ms": plan.gap * 1e3, "cold": of.cold, **found}
    if of.command == "cadence":
        found = cadence.run(sorted(of.gap), sorted(of.ranks), of.seconds, of.vllm)
        return {**facts, "seconds": of.seconds, **found}
    if of.command == "requests":
        plan_of = requests.QUICK if of.quick else requests.Plan()
        return {**facts, **requests.run(sorted(of.ranks), plan_of)}
    if of.command == "batch":
        return {**facts, **rings.batch(of.case, of.seconds)}
    measure = {"death": death.run, "asyncio": rings.wakeups}[of.command]
    return {**facts, "rounds": of.rounds, **measure(of.rounds)}


def tables_of(found: Dict[str, Any], draw: Any, name: Any = str) -> List[str]:
    """All tables of a command's figures, and why something is left out."""
    modules: Dict[str, Any] = {
        "codec": codec,
        "object": dropin,
        "dropin": dropin,
        "cadence": cadence,
        "requests": requests,
    }
    made = modules.get(found["command"], rings).tables(found)
    texts = [tables.table_of(label, columns, rows, name, draw) for label, columns, rows in made]
    return [*texts, *(f"{name} is left out: {why}" for name, why in found["left_out"].items())]


def main(arguments: Optional[List[str]] = None) -> None:
    options = parser().parse_args(arguments)
    try:
        found = run(options)
    except (ringcast.Error, cases.LeftOut, harness.Failed) as error:
        sys.exit(f"bench: {error}")
    if options.format == "json":
        print(json.dumps(found, indent=1))
    else:
        print(machine.told(found["machine"]), *tables_of(found, tables.text), sep="\n\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
