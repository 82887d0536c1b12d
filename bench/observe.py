# SPDX-License-Identifier: Apache-2.0
"""What looks at a ring costs its writer: the writer's rate with a Tap, `ringcast record` and `ringcast top`, as a part
of its rate without, on a ring whose reader is the bottleneck and on a ring without readers.

  bench/observe.py [--rounds 9] [--seconds 0.5] [--pause 0] [--sizes 64,65536,1048576] [--work 20] [--tool ringcast]

--seconds: of each turn; --pause: before each, for the machine's other work. --work: microseconds that the reader computes for each frame, and for each 8 KiB of it.
The turns with and without alternate, and a ratio is of one turn to the mean of its neighbours. The last column is what
the looker lost of the bytes that were sent meanwhile. Give each process a CPU: three at least.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import ringcast

LOOKERS = ("tap", "record", "top")


def read(handle, work, size):
    """Computes for each frame, as long as there are frames."""
    seconds = work * 1e-6 * (1 + size / 8192)
    with ringcast.Reader(handle) as reader, contextlib.suppress(ringcast.WriterGone):
        while True:
            with reader.next():
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    pass


def tap(handle, there, results):
    """Looks at every frame, until SIGTERM."""
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    with ringcast.Tap(handle) as looker:
        there.set()
        while not stop:
            with contextlib.suppress(TimeoutError):
                looker.next(timeout=0.01)
        results.put(looker.lost().bytes)


class Looker:
    """One that looks at the ring while the block runs; then `lost` is the bytes of the ring that it lost."""

    def __init__(self, kind, writer, tool, folder):
        self.kind, self.writer, self.tool, self.folder = kind, writer, tool, folder
        self.lost = None

    def __enter__(self):
        handle = self.writer.handle
        self.before = self.writer.info().tail
        if self.kind == "tap":
            there, self.results = multiprocessing.Event(), multiprocessing.Queue()
            self.process = multiprocessing.Process(target=tap, args=(handle, there, self.results))
            self.process.start()
            there.wait()
        elif self.kind == "record":
            command = [self.tool, "record", handle, self.folder / "ring.rcrec", "--format", "json"]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.process.stderr.readline()
        else:
            self.process = subprocess.Popen([self.tool, "top"], stdout=subprocess.PIPE)
            self.process.stdout.readline()
        return self

    def __exit__(self, *exception):
        if self.kind == "tap":
            self.process.terminate()
            self.lost = self.results.get()
            self.process.join()
            return
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate()
        if self.kind == "record":
            self.lost = json.loads(out)["gap_bytes"]
            (self.folder / "ring.rcrec").unlink()


def rate(writer, value, seconds):
    """Frames per second."""
    sent, begin = 0, time.perf_counter()
    end = begin + seconds
    while (now := time.perf_counter()) < end:
        for _ in range(16):
            writer.send(value)
        sent += 16
    return sent / (now - begin)


def measure(size, work, options, folder):
    """The ratios and losses of each looker: {looker: [(ratio, lost)]}."""
    value = bytes(size)
    found = {kind: [] for kind in LOOKERS}
    with ringcast.Writer(ahead=8) as writer:  # the reader soon is the bottleneck
        if work is not None:
            reader = multiprocessing.Process(target=read, args=(writer.handle, work, size))
            reader.start()
            writer.wait_readers(1)
        rate(writer, value, options.seconds)
        without = rate(writer, value, options.seconds)
        for kind in LOOKERS * options.rounds:
            tail = writer.info().tail
            time.sleep(options.pause)
            with Looker(kind, writer, options.tool, folder) as looker:
                one = rate(writer, value, options.seconds)
            time.sleep(options.pause)
            after = rate(writer, value, options.seconds)
            sent = writer.info().tail - tail
            found[kind].append((2 * one / (without + after), looker.lost and looker.lost / sent))
            without = after
    if work is not None:
        reader.join()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--sizes", default="64,65536,1048576")
    parser.add_argument("--work", type=float, default=20)
    parser.add_argument("--tool", default="ringcast")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; median of {options.rounds} rounds, and quartiles\n")
    print("| frames | ring | looks | writer's rate | lost |\n|---:|---|---|---|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, options.sizes.split(",")):
            for ring, work in (("reader is the bottleneck", options.work), ("no reader", None)):
                for kind, pairs in measure(size, work, options, pathlib.Path(folder)).items():
                    low, middle, high = statistics.quantiles([ratio for ratio, _ in pairs], n=4, method="inclusive")
                    losses = [lost for _, lost in pairs if lost is not None]
                    lost = f"{100 * statistics.median(losses):.0f} %" if losses else ""
                    print(f"| {size} | {ring} | {kind} | {middle:.3f} ({low:.3f} to {high:.3f}) | {lost} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
