#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A transformer split over processes: tensor parallel, pipeline parallel, and each step's metadata from rank 0.

The ranks are processes of one machine with a thread each, in a gloo group of torch.distributed. As in an engine, a step
begins with a broadcast: rank 0 sends all ranks the step's token ids, positions, block tables and sampling parameters,
through ringcast or in the way of vLLM with gloo. The first step of a batch is a prefill, the later steps decode.

Rank 0 compares the run's logits and tokens with the results of the whole model in one process (--check, --no-check).
If the two differ, the exit status is 1. With --profile, the run is a workload for ringcast.profile.

  --compare    TP 1, 2, 4 and PP 2 in turns, with both ways of the metadata: times, speed-up, efficiency, rating, the
               share of communication, memory; and the share of a broadcast in steps of 5, 10 and 25 ms
"""

import argparse
import os
import sys
from typing import List, Optional

from ranks import exit_without

try:
    import torch  # noqa: F401
    from tp_model_compare import compare, show, single
    from tp_model_run import CHECKED_WORK, run, run_under_torchrun, warn_of_few_cpus, work_of_check
    from tp_workers import WAYS
except ModuleNotFoundError as error:
    exit_without(error)

SIZES = {  # option: default, least, most, meaning
    "layers": (4, 1, 256, "layers of the model"),
    "hidden": (512, 8, 16384, "numbers for each token between the layers"),
    "heads": (8, 1, 128, "attention heads"),
    "vocab": (1024, 2, 1 << 20, "tokens in the vocabulary"),
    "batch": (4, 1, 256, "sequences in a batch"),
    "seq": (256, 128, 8192, "tokens of each sequence before the first step"),
    "tokens": (16, 1, 4096, "steps of a batch, of which the first is a prefill"),
    "steps": (48, 1, 1_000_000, "measured steps, each way"),
    "warmup": (16, 0, 1_000_000, "steps before the measured steps"),
}


def parser_of_options() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--tp", type=int, choices=(1, 2, 4), default=1, help="ranks that share the heads (1)")
    parser.add_argument("--pp", type=int, choices=(1, 2), default=1, help="ranks that share the layers (1)")
    for name, (default, _, _, help) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{help} ({default})")
    parser.add_argument("--micro-batches", type=int, help="parts of a batch, one after the other, with --pp 2 (2)")
    parser.add_argument("--metadata", choices=tuple(WAYS), default="ringcast", help="of each step (ringcast)")
    parser.add_argument("--seed", type=int, default=1, help="for the weights and sequences (1)")
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help=f"compare with TP 1 (by default, if {CHECKED_WORK:.0e} floating-point operations are enough)",
    )
    parser.add_argument("--profile", metavar="DIR", help="profile the run with ringcast.profile, into this folder")
    parser.add_argument("--compare", action="store_true", help="all layouts, in turns")
    parser.add_argument("--rounds", type=int, default=3, help="with --compare: turns of each layout (3)")
    parser.add_argument("--deadline", type=float, default=300, help="seconds after which a run is ended (300)")
    parser.add_argument("--format", choices=("text", "json", "markdown", "csv"), default="text", help="(text)")
    return parser


def refuse(options: argparse.Namespace) -> Optional[str]:
    """The reason why the options can't be used, or None."""
    for name, (_, least, most, _) in SIZES.items():
        if not least <= getattr(options, name) <= most:
            return f"--{name} takes a whole number from {least} to {most}, not {getattr(options, name)}"
    tp, pp = (4, 2) if options.compare else (options.tp, options.pp)
    if options.hidden % (2 * options.heads):
        return f"--hidden {options.hidden} must be a multiple of twice the {options.heads} heads"
    for name in "heads", "vocab":
        divisor, of = (tp, f"the {tp} ranks") if name == "heads" else (options.heads, f"the {options.heads} heads")
        if getattr(options, name) % divisor:
            return f"--{name} {getattr(options, name)} must be a multiple of {of}"
    if options.layers < pp:
        return f"--layers {options.layers} can't be shared by {pp} ranks: give at least {pp}"
    if pp == 1 and options.micro_batches is not None:
        return "--micro-batches goes with --pp 2 or --compare"
    parts = parts_of(options, pp)
    if parts < 1 or options.batch % parts:
        return f"--batch {options.batch} can't be divided into {parts} equal micro-batches: see --micro-batches"
    if options.rounds < 1 or not options.deadline > 0:
        return "--rounds and --deadline take more than 0"
    if options.compare and (options.tp, options.pp, options.profile) != (1, 1, None):
        return "--compare chooses --tp and --pp itself, and can't be profiled: leave out --tp, --pp and --profile"
    return None


def parts_of(options: argparse.Namespace, pp: int) -> int:
    if pp == 1:
        return 1
    return (2 if options.batch % 2 == 0 else 1) if options.micro_batches is None else options.micro_batches


def refuse_torchrun(options: argparse.Namespace) -> Optional[str]:
    ranks, world = options.tp * options.pp, int(os.environ["WORLD_SIZE"])
    if options.compare:
        return "--compare starts its ranks itself: run it without torchrun"
    if ranks != world:
        return f"torchrun started {world} ranks, but --tp {options.tp} --pp {options.pp} are {ranks}"
    return None


def main(arguments: Optional[List[str]] = None) -> None:
    parser = parser_of_options()
    options = parser.parse_args(arguments)
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if wrong := refuse(options) or (under_torchrun and refuse_torchrun(options)):
        parser.error(wrong)
    if options.profile is not None:
        need_profile(parser)
    if options.check is None:
        options.check = work_of_check(options) <= CHECKED_WORK
    pp = 2 if options.compare else options.pp
    options.parts = parts_of(options, pp)
    if not under_torchrun or os.environ["RANK"] == "0":
        warn_of_few_cpus(4 if options.compare else options.tp * options.pp)
    if options.compare:
        show(compare(options), options.format)
        return
    found = run_under_torchrun(options) if under_torchrun else run(options, [options.metadata])
    if found is not None:
        show(single(options, found[0]), options.format)


def need_profile(parser: argparse.ArgumentParser) -> None:
    try:
        import ringcast.profile  # noqa: F401
    except ModuleNotFoundError as error:
        parser.error(f"--profile needs {error.name}, which is not in the installed ringcast: install a newer one")


if __name__ == "__main__":
    sys.exit(main())
