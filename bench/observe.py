# SPDX-License-Identifier: Apache-2.0
"""What looking at a ring costs its writer: the writer's rate with a Tap, `ringcast record` and
`ringcast top`, as a part of its rate without, on a ring whose reader is the bottleneck and on a
ring without readers.

  bench/observe.py [--rounds 9] [--seconds 0.5] [--pause 0] [--sizes 64,65536,1048576] [--work 20]
  [--tool ringcast]

--seconds: of each turn; --pause: before each, for the machine's other work. --work: the
microseconds for which the reader computes for each frame, and for each 8 KiB of it. Turns with and
without alternate, and a ratio is of one turn to the mean of its neighbours. The last column is what
was lost of the frames that were sent meanwhile. Whoever sets the pace, the reader or else the
writer, has the first CPU to itself: what is measured is the ring, not who gets a CPU.
"""

import argparse
import contextlib
import json
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
FIRST, *OTHERS = sorted(os.sched_getaffinity(0))


def run_on(*cpus):
    """For this process and for those that it starts from now on."""
    os.sched_setaffinity(0, cpus or {FIRST})


def read(handle, seconds):
    """Computes for each frame, as long as there are frames."""
    run_on(FIRST)
    with ringcast.Reader(handle) as reader, contextlib.suppress(ringcast.WriterGone):
        while True:
            with reader.next():
                end = time.perf_counter() + float(seconds)
                while time.perf_counter() < end:
                    pass


def tap(handle):
    """Copies every frame until SIGINT, and prints how many there were."""
    stop, count = [], 0
    signal.signal(signal.SIGINT, lambda *_: stop.append(True))
    with ringcast.Tap(handle) as looker:
        print("attached", flush=True)
        while not stop:
            with contextlib.suppress(TimeoutError):
                looker.next(timeout=0.01)
                count += 1
        print(count)


def child(*words):
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE)


@contextlib.contextmanager
def looking(kind, handle, tool, file):
    """
    One that looks at the ring while the block runs. Yields a list, to which it adds the frames that
    it got.
    """
    got = []
    pace = os.sched_getaffinity(0)
    run_on(*OTHERS)
    if kind == "tap":
        process = child("tap", handle)
        process.stdout.readline()
    elif kind == "record":
        command = [tool, "record", handle, file, "--format", "json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stderr.readline()
    else:
        process = subprocess.Popen([tool, "top"], stdout=subprocess.PIPE)
        process.stdout.readline()
    run_on(*pace)
    yield got
    time.sleep(0.1)  # for what is in the ring
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    if kind == "tap":
        got.append(int(out))
    elif kind == "record":
        got.append(json.loads(out)["frames"])
        file.unlink()


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
    """What each looker costs: {looker: [(ratio, share that was lost or None)]}."""
    value = bytes(size)
    found = {kind: [] for kind in LOOKERS}
    with ringcast.Writer(ahead=8) as writer:  # the reader soon is the bottleneck
        if work is not None:
            reader = child("read", writer.handle, str(work * 1e-6 * (1 + size / 8192)))
            writer.wait_readers(1)
        run_on(*(OTHERS if work is not None else [FIRST]))
        rate(writer, value, options.seconds)
        without = rate(writer, value, options.seconds)
        for kind in LOOKERS * options.rounds:
            time.sleep(options.pause)
            before = writer.stats().frames
            with looking(kind, writer.handle, options.tool, folder / "ring.rcrec") as got:
                one = rate(writer, value, options.seconds)
            sent = writer.stats().frames - before
            time.sleep(options.pause)
            after = rate(writer, value, options.seconds)
            found[kind].append((2 * one / (without + after), 1 - got[0] / sent if got else None))
            without = after
    if work is not None:
        reader.communicate()
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--sizes", default="64,65536,1048576")
    parser.add_argument("--work", type=float, default=20)
    parser.add_argument("--tool", default="ringcast")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; median of {options.rounds} "
        f"rounds, and quartiles\n"
    )
    print("| frames | ring | looks | writer's rate | lost |\n|---:|---|---|---|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, options.sizes.split(",")):
            for ring, work in (("reader is the bottleneck", options.work), ("no reader", None)):
                for kind, pairs in measure(size, work, options, pathlib.Path(folder)).items():
                    low, middle, high = statistics.quantiles(
                        [ratio for ratio, _ in pairs], n=4, method="inclusive"
                    )
                    losses = [lost for _, lost in pairs if lost is not None]
                    lost = f"{100 * statistics.median(losses):.0f} %" if losses else ""
                    print(
                        f"| {size} | {ring} | {kind} | {middle:.3f} ({low:.3f} to {high:.3f}) | "
                        f"{lost} |",
                        flush=True,
                    )


if __name__ == "__main__":
    if sys.argv[1:2] in (["tap"], ["read"]):
        sys.exit({"tap": tap, "read": read}[sys.argv[1]](*sys.argv[2:]))
    sys.exit(main())
