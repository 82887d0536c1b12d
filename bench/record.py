# SPDX-License-Identifier: Apache-2.0
"""What `ringcast record` reaches beside the disk.

  record.py [--bytes 10G] [--folder FOLDER]

dd writes the bytes past the page cache, then a recorder (--lossless) takes as many from a writer
that sends without a pause, in turns, both into the folder; the files are removed. What a recorder
costs the ring that it looks at, observe.py measures.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import ringcast

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from bench.tables import size_of, table  # noqa: E402

TOOL = ROOT / "build/bin/ringcast"
FRAME, SOURCE = 1 << 20, 64 << 20
ROUNDS = 3
UNITS = {"K": 10, "M": 20, "G": 30}


def count_of(text):
    shift = UNITS.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def dd(file, count):
    """Bytes a second; what is written has no zeros that a disk could leave out."""
    source = pathlib.Path(f"{file}.source")
    source.write_bytes(os.urandom(SOURCE))
    laps = -(-count // SOURCE)
    with open(file, "wb") as made:  # a write that lengthens a file excludes other writes
        os.posix_fallocate(made.fileno(), 0, laps * SOURCE)
    command = ["dd", f"if={source}", f"of={file}", "bs=4M", "oflag=direct", "conv=notrunc"]
    start = time.monotonic()
    for lap in range(laps):
        subprocess.run([*command, f"seek={16 * lap}"], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["sync", "-d", str(file)], check=True)
    took = time.monotonic() - start
    source.unlink()
    return laps * SOURCE / took


def flood(pipe):
    """Sends without a pause, until the process is ended."""
    data = os.urandom(FRAME)
    with ringcast.Writer() as writer:
        pipe.send(writer.handle)
        writer.wait_readers(1, 60)
        while True:
            writer.send_bytes(data)


def record(file, count):
    """Bytes a second of a recorder that misses nothing."""
    ours, theirs = multiprocessing.Pipe()
    writer = multiprocessing.Process(target=flood, args=(theirs,), daemon=True)
    writer.start()
    command = [TOOL, "record", ours.recv(), file, "--lossless", "--bytes", str(count)]
    try:
        done = subprocess.run([*command, "--format", "json"], check=True, capture_output=True)
    finally:
        writer.kill()
        writer.join()
    return json.loads(done.stdout)["bytes_per_s"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=count_of, default=4 << 30, help="of each turn; default: 4G")
    parser.add_argument("--folder", default=".", help="on the disk to measure; default: this one")
    options = parser.parse_args()
    rates = {dd: [], record: []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = pathlib.Path(folder, "ring.rcrec")
        for _ in range(ROUNDS):
            for way, found in rates.items():
                found.append(way(file, options.bytes))
                file.unlink()
    disk, ours = map(statistics.median, rates.values())
    head = [f"{size_of(options.bytes)}, medians of {ROUNDS}", "GB/s", "of the disk's"]
    rows = [["dd", f"{disk / 1e9:.2f}", ""]]
    rows += [["record", f"{ours / 1e9:.2f}", f"{ours / disk:.2f}"]]
    print(table(head, rows))


if __name__ == "__main__":
    main()
