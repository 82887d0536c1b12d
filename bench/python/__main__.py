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

Times are medians; a ratio below 1 says that ringcast takes less than the way beside it. No other load should run
meanwhile. docs/benchmarks.md tells what is measured, and how.
"""
# What is measured, and the options.
COMMANDS = {
    "codec": ("encoding and decoding in one process, beside pickle 5 and other codecs", "case seconds vllm"),
    "object": (
        "from object to object between two processes, beside pickle 5 on the same rings",
        "case seconds gap cold",
    ),
    "dropin": (
        "what stands in for gloo's, vLLM's and SGLang's broadcasts, beside them",
        "case seconds gap cold ranks vllm",
    ),
    "cadence": (
        "ringcast's queue and vLLM's, which spins for 1 s or 2 ms, at an engine's cadence",
        "gap ranks seconds vllm",
    ),
    "requests": ("requests a second whose features all ranks hash", "ranks quick"),
    "death": ("how soon the other processes know when one is killed, under each drop-in", "rounds"),
    "batch": ("small values in a stream, one by one and by send_many and recv_many", "case seconds"),
    "asyncio": ("waking a reader that sleeps: one that blocks, and one in an event loop", "rounds"),
    "packed": ("a value that is packed once for several rings, beside a send for each", "rounds"),
}
CASES = {
    "codec": list(cases.CASES),
    "batch": list(rings.BATCHES),
    **{command: list(of) for command, of in dropin.COMMANDS.items()},
}
ROUNDS = {"asyncio": 300, "death": 5, "packed": 200}
RANKS = {"dropin": dropin.RANKS, "cadence": cadence.RANKS, "requests": requests.RANKS}
MODULES: Dict[str, Any] = {
    "codec": codec, **dict.fromkeys(dropin.COMMANDS, dropin), "cadence": cadence, "requests": requests
}  # fmt: skip


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError
    return value


def count(text: str) -> int:
    return int(positive(text)) or int("no count")


def coldness(text: str) -> str:
    if text not in ("evict", "sleep") and int(text) < 64:
        raise ValueError
    return text


OPTIONS: Dict[str, Dict[str, Any]] = {
    "case": {"action": "append", "dest": "cases", "metavar": "NAME", "help": "only this one; may be repeated"},
    "seconds": {"type": positive, "metavar": "S", "help": "for each case, 2 by default; cadence: for all rows, 900"},
    "gap": {
        "type": positive,
        "action": "append",
        "dest": "gaps",
        "metavar": "MS",
        "help": "milliseconds before each message. cadence: may be repeated; default: 1, 5, 20 and 50",
    },
    "cold": {
        "nargs": "?",
        "const": "evict",
        "type": coldness,
        "metavar": "HOW",
        "help": "what each process does between two messages: evict (default) reads a block of memory twice as large "
        "as the L3 cache, a number reads a block of so many bytes, sleep sleeps. Without --gap the gap is long enough",
    },
    "ranks": {"type": count, "action": "append", "metavar": "N", "help": "processes, from 2 on; may be repeated"},
    "vllm": {"metavar": "PATH", "help": "an unpacked source of vLLM; default: the installed one"},
    "rounds": {"type": count, "metavar": "N", "help": "how often each is measured"},
    "quick": {"action": "store_true", "help": "a minute: fewer rates, requests and rounds"},
}


def parser() -> argparse.ArgumentParser:
    shape = {"epilog": EXAMPLES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    made = argparse.ArgumentParser(prog="python -m bench.python", description=__doc__, **shape)  # type: ignore
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (what, options) in COMMANDS.items():
        one = commands.add_parser(command, help=what, description=f"Measures {what}.", **shape)  # type: ignore
        one.add_argument("--format", choices=["text", "json"], default="text", help="default: text")
        for name in options.split():
            chosen = {"choices": CASES[command]} if name == "case" else {}
            one.add_argument(f"--{name}", **OPTIONS[name], **chosen)
        one.set_defaults(seconds=2.0 if command != "cadence" else cadence.SECONDS, rounds=ROUNDS.get(command))
    return made


def run(options: argparse.Namespace) -> Dict[str, Any]:
    command = options.command
    facts = {"command": command, "machine": machine.machine()}
    sizes = sorted(set(getattr(options, "ranks", None) or RANKS.get(command, [2])))
    chosen = getattr(options, "cases", None) or CASES.get(command, [])
    if sizes[0] < 2:
        raise harness.Failed("--ranks takes numbers from 2 on")
    if command == "codec":
        cases.use(engine.find(options.vllm))
        return {**facts, **codec.run_all(chosen, options.seconds)}
    if command in dropin.COMMANDS:
        plan = harness.plan(options.cold, (options.gaps or [0])[-1] / 1e3, max(sizes))
        found = dropin.run(command, chosen, sizes, options.seconds, plan, getattr(options, "vllm", None))
        return {**facts, "gap_ms": plan.gap * 1e3, "cold": options.cold, **found}
    if command == "cadence":
        gaps = sorted(set(options.gaps or cadence.GAPS))
        return {**facts, "seconds": options.seconds, **cadence.run(gaps, sizes, options.seconds, options.vllm)}
    if command == "requests":
        return {**facts, **requests.run(sizes, requests.QUICK if options.quick else requests.Plan())}
    if command == "batch":
        return {**facts, **rings.batch(chosen, options.seconds)}
    measure = {"death": death.run, "asyncio": rings.wakeups, "packed": rings.packed}[command]
    return {**facts, "rounds": options.rounds, **measure(options.rounds)}


def tables_of(found: Dict[str, Any], draw: Any, name: Any = str) -> List[str]:
    """All tables of a command's figures, and why something is left out."""
    made = MODULES.get(found["command"], rings).tables(found)
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
