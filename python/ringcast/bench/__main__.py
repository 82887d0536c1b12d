# SPDX-License-Identifier: Apache-2.0
"""The command line of the Python benchmarks."""

import argparse
import importlib
import json
import math
import sys
from typing import Any, Callable, Dict, List, Optional

import ringcast
from ringcast.bench import cases, codec, cold, death, dropin, exchange, gpu, report
from ringcast.bench.turns import Failed

EXAMPLES = """
EXAMPLES
  python -m ringcast.bench codec
  python -m ringcast.bench codec --case metadata --case scheduler-256 --seconds 10
  python -m ringcast.bench object --format json > object.json
  python -m ringcast.bench tensors --case features
  python -m ringcast.bench asyncio --rounds 1000
  python -m ringcast.bench death --rounds 20
  python -m ringcast.bench object --case metadata --cold
  python -m ringcast.bench dropin --vllm vllm-0.33.0 --format json
  python -m ringcast.bench dropin --case metadata --ranks 2 --cold sleep --gap 5
  python -m ringcast.bench gpu --case 16M

Times are medians, in microseconds; a ratio below 1 says that ringcast takes less than what stands beside it. Nothing
else should run meanwhile. docs/benchmarks.md tells what is measured, and how.
"""
COMMANDS = {
    "codec": "encoding and decoding in one process, beside pickle 5",
    "object": "from object to object between two processes, beside pickle 5 on the same rings",
    "tensors": "the same for what holds tensors or arrays, with GB/s",
    "death": "how soon the others know when one process is killed, under each drop-in",
    "asyncio": "waking a reader that sleeps: one that blocks, and one in an event loop",
    "gpu": "CUDA tensors of torch between two processes, beside CUDA IPC and NCCL's broadcast",
    "dropin": "what stands in for gloo's, vLLM's and SGLang's broadcasts, beside them, with 2 and 4 ranks",
}


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0, and not {text!r}")
    return value


def rounds(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1 on, and not {text!r}")
    return value


def milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"takes milliseconds, 0 to 1000, and not {text!r}")
    return value


def coldness(text: str) -> str:
    if text not in ("evict", "sleep") and (not text.isdecimal() or int(text) < 64):
        raise argparse.ArgumentTypeError(f"takes evict, sleep or a number of bytes from 64 on, and not {text!r}")
    return text


def ranks(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 2 <= value <= 64:
        raise argparse.ArgumentTypeError(f"takes a number of ranks, 2 to 64, and not {text!r}")
    return value


def names(command: str) -> List[str]:
    if command == "dropin":
        return list(dropin.CASES)
    if command == "gpu":
        return list(gpu.CASES)
    return cases.WITH_TENSORS if command == "tensors" else list(cases.CASES)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m ringcast.bench",
        description="What ringcast does with Python objects, beside pickle, measured.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, what in COMMANDS.items():
        one = commands.add_parser(
            command, help=what, description=f"Measures {what}.", epilog=EXAMPLES, formatter_class=made.formatter_class
        )
        one.add_argument("--format", choices=["text", "json"], default="text", help="default: text")
        if command == "asyncio":
            one.add_argument("--rounds", type=rounds, default=300, metavar="N", help="wake-ups of each; default: 300")
            continue
        if command == "death":
            one.add_argument("--rounds", type=rounds, default=5, metavar="N", help="kills of each; default: 5")
            continue
        one.add_argument(
            "--case",
            action="append",
            dest="cases",
            metavar="NAME",
            choices=names(command),
            help=f"only this one; may be repeated. {', '.join(names(command))}",
        )
        one.add_argument("--seconds", type=seconds, default=2.0, metavar="S", help="for each case; default: 2")
        if command in ("dropin", "object", "tensors"):
            add_rest(one)
        if command == "dropin":
            add_dropin(one)
    return made


def add_rest(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--gap", type=milliseconds, default=0.0, metavar="MS", help="milliseconds before each message; default: 0"
    )
    one.add_argument(
        "--cold",
        nargs="?",
        const="evict",
        type=coldness,
        metavar="HOW",
        help="what each process does between two messages: evict (default) reads a block of memory twice as large as "
        "the L3 cache, a number reads a block of so many bytes, sleep sleeps. The gap is then long enough for that, if "
        "no other is given",
    )


def add_dropin(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--ranks",
        action="append",
        type=ranks,
        metavar="N",
        help="processes, the source among them; may be repeated. Default: 2 and 4",
    )
    one.add_argument("--vllm", metavar="PATH", help="an unpacked source of vLLM; default: the installed one")


def measure(options: argparse.Namespace, one: Callable[[str, Any, float], Dict[str, Any]]) -> Dict[str, Any]:
    """The figures of each case, and why some are left out."""
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    for name in options.cases or names(options.command):
        try:
            value = cases.CASES[name]()
        except cases.LeftOut as why:
            found["left_out"][name] = str(why)
            continue
        report.say(f"{options.command} {name}")
        found["cases"][name] = one(name, value, options.seconds)
    if not found["cases"]:
        sys.exit("ringcast.bench: nothing was measured: " + "; ".join(f"{k} {v}" for k, v in found["left_out"].items()))
    return found


def run(options: argparse.Namespace) -> Dict[str, Any]:
    facts = {"command": options.command, "machine": report.machine()}
    if options.command == "asyncio":
        try:
            wakeup = importlib.import_module("ringcast.bench.wakeup")
        except ModuleNotFoundError as error:
            sys.exit(f"ringcast.bench: asyncio can't be measured by this installation: {error}")
        return {**facts, "rounds": options.rounds, **wakeup.run(options.rounds)}
    if options.command == "death":
        return {**facts, "rounds": options.rounds, **death.run(options.rounds)}
    facts["seconds_per_case"] = options.seconds
    facts["garbage_collector"] = "on"
    sizes = sorted(set(getattr(options, "ranks", None) or dropin.RANKS))
    plan = cold.Plan()
    if hasattr(options, "cold"):
        plan = cold.plan(options.cold, options.gap / 1e3, max(sizes) if options.command == "dropin" else 2)
        facts["gap_ms"], facts["cold"] = plan.gap * 1e3, options.cold
    if options.command == "codec":
        return {**facts, **measure(options, lambda name, value, seconds: codec.measure(value, seconds))}
    if options.command == "dropin":
        chosen = options.cases or names("dropin")
        return {**facts, **dropin.run(chosen, sizes, options.seconds, plan, options.vllm)}
    if options.command == "gpu":
        return {**facts, **gpu.run(options.cases or names("gpu"), options.seconds)}
    with exchange.Pair(plan) as pair:
        return {**facts, "processes": pair.facts(), **measure(options, pair.measure)}


def rest(found: Dict[str, Any]) -> str:
    how = {None: "", "evict": ", caches evicted", "sleep": ", all asleep in it"}.get(found["cold"], ", caches cold")
    return f"\nWith a gap of {found['gap_ms']:g} ms before each{how}." if found["gap_ms"] else ""


def shown(options: argparse.Namespace, found: Dict[str, Any]) -> str:
    if options.format == "json":
        return json.dumps(found, indent=1)
    if options.command == "asyncio":
        return "\n".join(report.flat({key: value for key, value in found.items() if key != "command"}))
    if options.command == "death":
        return death.text(found)
    if options.command == "codec":
        return report.text(found, report.CODEC, "One process, the garbage collector on; ratio: of both, to pickle's.")
    if options.command == "dropin":
        note = "From the call at the source until the last has it; ratio: of p50, ringcast's to this one's."
        note += rest(found)
        return report.text({**found, "cases": dropin.rows(found["cases"])}, report.DROPIN, note)
    if options.command == "gpu":
        if "skipped" in found:
            return f"skipped: {found['skipped']}"
        note = f"One way between two processes on {found['device']}, until the receiver's device has a copy of its own."
        return report.text({**found, "cases": gpu.rows(found["cases"])}, gpu.COLUMNS, note)
    processes = found["processes"]
    pinned = "a CPU each" if None not in processes["cpus"] else "one CPU for both"
    spin = f"waits spin for {processes['spin_s'] * 1e3:.0f} ms" if processes["spin_s"] else "waits spin as they see fit"
    columns = report.TENSORS if options.command == "tensors" else report.OBJECT
    ratios = "\nRatio: of p50, to pickle's" + (", then to pickle alone" if options.command == "object" else "")
    note = f"One way between two processes, {pinned}, {spin}; a ring of {processes['ring_bytes'] >> 20} MiB.{ratios}."
    note += rest(found)
    return report.text(found, columns, note)


def main(arguments: Optional[List[str]] = None) -> None:
    options = parser().parse_args(arguments)
    try:
        found = run(options)
    except (ringcast.Error, Failed) as error:
        sys.exit(f"ringcast.bench: {error}")
    print(shown(options, found))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
