# SPDX-License-Identifier: Apache-2.0
"""The command line of the Python benchmarks."""

import argparse
import importlib
import json
import sys
from typing import Any, Callable, Dict, List, Optional

import ringcast

try:
    from ringcast.bench import batch, cadence, cases, codec, death, dropin, engine, frames, harness, report, requests
except ModuleNotFoundError as error:
    sys.exit(f"ringcast.bench needs {error.name}: python -m pip install {error.name}")

EXAMPLES = """
EXAMPLES
  python -m ringcast.bench codec
  python -m ringcast.bench codec --case metadata --case scheduler-256 --seconds 10
  python -m ringcast.bench codec --vllm vllm-0.33.0
  python -m ringcast.bench object --format json > object.json
  python -m ringcast.bench tensors --case features
  python -m ringcast.bench batch --case bytes-16
  python -m ringcast.bench asyncio --rounds 1000
  python -m ringcast.bench death --rounds 20
  python -m ringcast.bench object --case metadata --cold
  python -m ringcast.bench dropin --vllm vllm-0.33.0 --format json
  python -m ringcast.bench dropin --case metadata --ranks 2 --cold sleep --gap 5
  python -m ringcast.bench cadence --vllm vllm-0.33.0
  python -m ringcast.bench cadence --gap 5 --ranks 2 --seconds 30
  python -m ringcast.bench compose
  python -m ringcast.bench packed --rounds 1000
  python -m ringcast.bench requests
  python -m ringcast.bench requests --quick --ranks 4
  python -m ringcast.bench requests --ranks 2 --megabytes 1 --requests 20 --offered 1 --offered 1.6

Times are medians, in microseconds; a ratio below 1 says that ringcast takes less than the way beside it. No other load
should run meanwhile. docs/benchmarks.md tells what is measured, and how.
"""
COMMANDS = {
    "codec": "encoding and decoding in one process, beside pickle 5 and other codecs",
    "object": "from object to object between two processes, beside pickle 5 on the same rings",
    "tensors": "the same for what holds tensors or arrays, with GB/s",
    "batch": "small values in a stream, one by one and by send_many and recv_many",
    "death": "how soon the other processes know when one process is killed, under each drop-in",
    "asyncio": "waking a reader that sleeps: one that blocks, and one in an event loop",
    "dropin": "what stands in for gloo's, vLLM's and SGLang's broadcasts, beside them, with 2 and 4 ranks",
    "compose": "arrays that a kernel writes into the frame, beside send and recv: times, and the copies counted",
    "packed": "a value that is packed once for several rings, beside a send for each",
    "cadence": "ringcast's queue and vLLM's, which spins for 1 s or 2 ms, at an engine's cadence",
    "requests": "requests a second whose features all ranks hash: each for itself, gloo, SGLang's drop-in, share_hash",
}
CASES = {
    "codec": list(cases.CASES),
    "batch": list(batch.CASES),
    **{command: list(of) for command, of in dropin.COMMANDS.items()},
}
ROUNDED = {"asyncio": (300, "wake-ups"), "death": (5, "kills"), "compose": (10, "frames"), "packed": (200, "turns")}


# ---- Options ---------------------------------------------------------------------------------------------------------


def takes(what: str, kind: Callable[[str], Any], least: float, most: float) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"takes {what}, and not {text!r}")
        return value

    return parse


def coldness(text: str) -> str:
    if text not in ("evict", "sleep") and (not text.isdecimal() or int(text) < 64):
        raise argparse.ArgumentTypeError(f"takes evict, sleep or a number of bytes from 64 on, and not {text!r}")
    return text


SECONDS = takes("seconds, more than 0", float, 1e-9, 1e9)
ROUNDS = takes("a whole number from 1 on", int, 1, 1e9)
MILLISECONDS = takes("milliseconds, 0 to 1000", float, 0, 1000)
STEPS = takes("milliseconds, 0.01 to 1000", float, 0.01, 1000)
MEGABYTES = takes("megabytes, 0.001 to 1000", float, 0.001, 1000)
MULTIPLE = takes("a factor, 0.01 to 100", float, 0.01, 100)
PROCESSES = "processes, the source among them; may be repeated. Default: "
SOURCE = "an unpacked source of vLLM; default: the installed one"
RANKS = takes("a number of ranks, 2 to 64", int, 2, 64)
COLD = (
    "what each process does between two messages: evict (default) reads a block of memory twice as large as the L3 "
    "cache, a number reads a block of so many bytes, sleep sleeps. Without --gap the gap is long enough for that"
)


def parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    about = "What ringcast does with Python objects, beside pickle, measured."
    made = argparse.ArgumentParser(
        prog="python -m ringcast.bench", description=about, epilog=EXAMPLES, formatter_class=formatter
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, what in COMMANDS.items():
        add = commands.add_parser(
            command, help=what, description=f"Measures {what}.", epilog=EXAMPLES, formatter_class=formatter
        ).add_argument
        add("--format", choices=["text", "json"], default="text", help="default: text")
        if command == "cadence":
            gaps = "milliseconds from a message to the next; may be repeated. Default: 1, 5, 20 and 50"
            add("--gap", type=STEPS, action="append", dest="gaps", metavar="MS", help=gaps)
            add("--ranks", action="append", type=RANKS, metavar="N", help=f"{PROCESSES}2, 3 and 5")
            total = f"for all rows together; default: {cadence.SECONDS:g}"
            add("--seconds", type=SECONDS, default=cadence.SECONDS, metavar="S", help=total)
            add("--vllm", metavar="PATH", help=SOURCE)
            continue
        if command == "requests":
            add("--ranks", action="append", type=RANKS, metavar="N", help="may be repeated. Default: 2 and 4")
            of = f"of features of a request; default: {requests.Plan().megabytes:g}"
            add("--megabytes", type=MEGABYTES, default=requests.Plan().megabytes, metavar="MB", help=of)
            at_a_rate = f"in each round; default: {requests.Plan().requests}"
            add("--requests", type=ROUNDS, metavar="N", help=at_a_rate)
            add("--rounds", type=ROUNDS, metavar="N", help=f"default: {requests.Plan().rounds}")
            multiple = "offered rates, in multiples of what each for itself reaches; may be repeated. Default: " + (
                ", ".join(f"{each:g}" for each in requests.Plan().offered)
            )
            add("--offered", type=MULTIPLE, action="append", metavar="X", help=multiple)
            add("--quick", action="store_true", help="a minute: fewer rates, requests and rounds, where none are given")
            continue
        if command not in CASES:
            rounds, of = ROUNDED[command]
            add("--rounds", type=ROUNDS, default=rounds, metavar="N", help=f"{of} of each; default: {rounds}")
            continue
        only = f"only this one; may be repeated. {', '.join(CASES[command])}"
        add("--case", action="append", dest="cases", metavar="NAME", choices=CASES[command], help=only)
        add("--seconds", type=SECONDS, default=2.0, metavar="S", help="for each case; default: 2")
        if command in dropin.COMMANDS:
            before = "milliseconds before each message; default: 0"
            add("--gap", type=MILLISECONDS, default=0.0, metavar="MS", help=before)
            add("--cold", nargs="?", const="evict", type=coldness, metavar="HOW", help=COLD)
        if command == "dropin":
            add("--ranks", action="append", type=RANKS, metavar="N", help=f"{PROCESSES}2 and 4")
        if command in ("codec", "dropin"):
            add("--vllm", metavar="PATH", help=SOURCE)
    return made


# ---- Measuring -------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> Dict[str, Any]:
    command = options.command
    facts = {"command": command, "machine": report.machine()}
    if command == "asyncio":
        try:
            wakeup = importlib.import_module("ringcast.bench.wakeup")
        except ModuleNotFoundError as error:
            sys.exit(f"ringcast.bench: asyncio can't be measured by this installation: {error}")
        return {**facts, "rounds": options.rounds, **wakeup.run(options.rounds)}
    if command in ("death", "compose", "packed"):
        measure = {"death": death.run, "compose": frames.compose, "packed": frames.packed}[command]
        return {**facts, "rounds": options.rounds, **measure(options.rounds)}
    if command == "cadence":
        gaps, sizes = (
            sorted(set(given or usual))
            for given, usual in ((options.gaps, cadence.GAPS), (options.ranks, cadence.RANKS))
        )
        return {**facts, "seconds": options.seconds, **cadence.run(gaps, sizes, options.seconds, options.vllm)}
    if command == "requests":
        if not report.version("torch"):
            raise harness.Failed("requests needs torch, which is not installed here: pip install torch")
        sizes = sorted(set(options.ranks or requests.RANKS))
        usual = requests.QUICK if options.quick else requests.Plan()
        offered = sorted(set(options.offered or usual.offered))
        given = options.megabytes, options.requests or usual.requests, options.rounds or usual.rounds, offered
        return {**facts, **requests.run(sizes, requests.Plan(*given))}
    facts.update(seconds_per_case=options.seconds, garbage_collector="on")
    chosen = options.cases or CASES[command]
    if command == "codec":
        cases.use(engine.find(options.vllm))
        return {**facts, **codec.run_all(chosen, options.seconds)}
    if command == "batch":
        return {**facts, **batch.run(chosen, options.seconds)}
    sizes = [2] if command != "dropin" else sorted(set(options.ranks or dropin.RANKS))
    plan = harness.plan(options.cold, options.gap / 1e3, max(sizes))
    facts.update(gap_ms=plan.gap * 1e3, cold=options.cold)
    return {**facts, **dropin.run(command, chosen, sizes, options.seconds, plan, getattr(options, "vllm", None))}


# ---- Text ------------------------------------------------------------------------------------------------------------


def note(found: Dict[str, Any]) -> str:
    """The line above a table: what was measured."""
    if found["command"] == "codec":
        return "One process, the garbage collector on; ratio: of both, to pickle's; -: can't be carried."
    if found["command"] == "batch":
        return f"Values per second, in batches of {found['batch']} or one by one; ratio: to send_bytes, else to send."
    if found["command"] == "death":
        return (death.__doc__ or "").strip().split("\n\n")[1]
    if found["command"] == "compose":
        return "From the kernel's start until the receiver has summed the array; ratio: to send, recv."
    if found["command"] == "packed":
        return "One process, rings without readers; ratio: of packed once to a send for each."
    if found["command"] == "asyncio":
        return f"From send() until a sleeping receiver has the value, a message every {found['gap_us'] / 1e3:g} ms."
    if found["command"] == "cadence":
        return (
            "From the call at the source until the last has it; CPU: of all processes; ratio: ringcast's to this one's."
        )
    how = {None: "", "evict": ", caches evicted", "sleep": ", all asleep in it"}.get(found["cold"], ", caches cold")
    rest = f"\nWith a gap of {found['gap_ms']:g} ms before each{how}." if found["gap_ms"] else ""
    return "From the call at the source until the last has it; ratio: of p50, ringcast's to this one's." + rest


def shown(options: argparse.Namespace, found: Dict[str, Any]) -> str:
    if options.format == "json":
        return json.dumps(found, indent=1)
    if options.command == "requests":
        return requests.text(found)
    if options.command in dropin.COMMANDS:
        found = {**found, "cases": dropin.rows(found["cases"])}
    if options.command == "cadence":
        found = {**found, "cases": cadence.rows(found["cases"])}
    if options.command == "codec":
        found = {**found, "cases": codec.rows(found["cases"])}
    return report.text(found, report.COLUMNS[options.command], note(found))


def main(arguments: Optional[List[str]] = None) -> None:
    options = parser().parse_args(arguments)
    try:
        found = run(options)
    except (ringcast.Error, cases.LeftOut, harness.Failed) as error:
        sys.exit(f"ringcast.bench: {error}")
    print(shown(options, found))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
