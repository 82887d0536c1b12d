# SPDX-License-Identifier: Apache-2.0
"""
What mutate.py and dtypes.py share: rounds at random, in blocks, in several processes. The rounds of
a block depend on the seed and the block alone, so a block that fails is run again by
`--seed S --block B`.
"""

import argparse
import faulthandler
import multiprocessing
import os
import random

BLOCK = 1000  # rounds
SECONDS = 300  # a block takes one or two


def work(run_block, seed, blocks, at, counts):
    for block in blocks:
        at.value = block
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        for place, count in enumerate(run_block(random.Random(f"{seed} {block}"), block)):
            counts[place] += count
    faulthandler.cancel_dump_traceback_later()


def main(doc, run_block, told):
    """
    Calls run_block(random, block), which gives two counts, and tells the number of rounds and the sums
    of both. Returns the exit status.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = len(os.sched_getaffinity(0))
    for option, default, what in (
        ("--rounds", 100_000, "frames"),
        ("--seed", 1, "of the random numbers"),
        ("--jobs", jobs, "processes"),
    ):
        parser.add_argument(
            option, type=int, default=default, help=f"{what} (default: %(default)s)"
        )
    parser.add_argument("--block", type=int, help="only this block of rounds")
    args = parser.parse_args()
    blocks = range(-(-args.rounds // BLOCK)) if args.block is None else [args.block]
    jobs = max(1, min(args.jobs, len(blocks)))
    context = multiprocessing.get_context("fork")
    workers = []
    for job in range(jobs):
        at, counts = context.Value("q", -1), context.Array("q", 2)
        given = (run_block, args.seed, blocks[job::jobs], at, counts)
        process = context.Process(target=work, args=given)
        process.start()
        workers.append((process, at, counts))
    failed = False
    for process, at, _ in workers:
        process.join()
        if process.exitcode != 0:
            failed = True
            print(f"FAILED with status {process.exitcode}: --seed {args.seed} --block {at.value}")
    if not failed:
        print(
            told.format(
                len(blocks) * BLOCK, *(sum(each[2][of] for each in workers) for of in (0, 1))
            )
        )
    return int(failed)
