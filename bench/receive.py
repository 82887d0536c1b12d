# SPDX-License-Identifier: Apache-2.0
"""What Reader.recv() of one large array takes, with the memory of earlier ones used again, and without.

    python bench/receive.py [--mib 1 10 64] [--rounds 5] [--seconds 1]

Each measurement is a process of its own, since what an allocator does depends on what it did before; the two ways take
turns. Printed: the median of each process's median, in microseconds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time


def measure(kind, mib, seconds):
    import numpy as np

    import ringcast

    array = np.random.default_rng(0).integers(0, 255, mib << 20, dtype=np.uint8)
    if kind == "torch":
        import torch

        array = torch.from_numpy(array)
    taken = []
    with ringcast.Writer(mib << 22) as writer, ringcast.Reader(writer.handle) as reader:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(taken) < 10:
            writer.send({"x": array})
            start = time.perf_counter()
            got = reader.recv()  # the last one lives until this one is there, as in any loop
            taken.append(time.perf_counter() - start)
            work = got["x"] + 1  # somebody uses it, and memory of his own
        del got, work
    return statistics.median(taken) * 1e6


def in_a_process(kind, mib, seconds, limit):
    command = [sys.executable, __file__, "--one", kind, str(mib), str(seconds)]
    environment = {**os.environ, "RINGCAST_RECYCLE_BYTES": str(limit)}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 10, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1 or min(options.mib) < 1 or not 0 <= options.seconds < float("inf"):
        parser.error("--rounds takes a whole number from 1 on, --mib takes such numbers, --seconds takes seconds from 0"
                     " on")
    if options.one:
        kind, mib, seconds = options.one
        print(measure(kind, int(mib), float(seconds)))
        return
    for kind in ("numpy", "torch"):
        for mib in options.mib:
            ways = {0: [], 256 << 20: []}
            for _ in range(options.rounds):
                for limit, taken in ways.items():
                    taken.append(in_a_process(kind, mib, options.seconds, limit))
            fresh, again = (statistics.median(taken) for taken in ways.values())
            print(f"{kind:5} {mib:3} MiB: fresh {fresh:8.0f} us, used again {again:8.0f} us, ratio {fresh / again:.1f}")


main()
