# SPDX-License-Identifier: Apache-2.0
"""What `ringcast record` reaches beside the disk, and what a recorder costs the ring that it looks at.

  record.py [--bytes 10G] [--folder FOLDER]

The rate: dd writes the bytes past the page cache, then a recorder (--lossless) takes as many from a writer that sends
without a pause, in turns, both into the folder; the files are removed. The cost: frames a second of a writer, alone and
with a reader that is the bottleneck, each without a recorder and with one, which is a tap then, in turns.
"""

import argparse
import contextlib
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
FRAME, SMALL = 1 << 20, 4096
ROUNDS, SECONDS = 3, 1.0
UNITS = {"K": 10, "M": 20, "G": 30}


def count_of(text):
    shift = UNITS.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def dd(file, count):
    """Bytes a second; what is written has no zeros that a disk could leave out."""
    source = pathlib.Path(f"{file}.source")
    source.write_bytes(os.urandom(64 << 20))
    laps = -(-count // (64 << 20))
    with open(file, "wb") as made:  # a write that lengthens a file excludes other writes
        os.posix_fallocate(made.fileno(), 0, laps * (64 << 20))
    start = time.monotonic()
    for lap in range(laps):
        command = ["dd", f"if={source}", f"of={file}", "bs=4M", "oflag=direct", "conv=notrunc", f"seek={16 * lap}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["sync", "-d", str(file)], check=True)
    took = time.monotonic() - start
    source.unlink()
    return laps * (64 << 20) / took


def flood(pipe, size, readers):
    """Sends until the other end says to stop; the number of frames and the seconds."""
    data = os.urandom(size)
    with ringcast.Writer() as writer:
        pipe.send(writer.handle)
        writer.wait_readers(readers, 60)
        pipe.recv()
        start, frames = time.monotonic(), 0
        while frames % 64 or not pipe.poll():
            try:
                writer.send_bytes(data, 0.1)
                frames += 1
            except TimeoutError:  # nobody takes frames any more
                break
        pipe.send(frames / (time.monotonic() - start))


def drain(handle):
    with ringcast.Reader(handle) as reader, contextlib.suppress(ringcast.WriterGone):
        while True:
            reader.recv(60)


def started(body, *arguments):
    process = multiprocessing.Process(target=body, args=arguments, daemon=True)
    process.start()
    return process


def record(handle, file, *options):
    command = [TOOL, "record", handle, file, "--format", "json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def recorded(file, count):
    """Bytes a second of a recorder that misses nothing."""
    ours, theirs = multiprocessing.Pipe()
    writer = started(flood, theirs, FRAME, 1)
    recorder = record(ours.recv(), file, "--lossless", "--bytes", str(count))
    ours.send("go")
    found = json.loads(recorder.communicate()[0])
    writer.kill()
    writer.join()
    return found["bytes_per_s"]


def frames_per_s(readers, file):
    """Of a writer of SMALL frames, with a recorder if a file is given."""
    ours, theirs = multiprocessing.Pipe()
    processes = [started(flood, theirs, SMALL, readers)]
    handle = ours.recv()
    processes += [started(drain, handle) for _ in range(readers)]
    recorder = record(handle, file) if file else None
    time.sleep(0.3 if recorder else 0)
    ours.send("go")
    time.sleep(SECONDS)
    ours.send("stop")
    rate = ours.recv()
    for process in processes:
        process.kill()
        process.join()
    if recorder:
        recorder.communicate()
    return rate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=count_of, default=4 << 30, help="of each turn; default: 4G")
    parser.add_argument("--folder", default=".", help="on the disk to measure; default: this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = pathlib.Path(folder, "ring.rcrec")
        rates = {dd: [], recorded: []}
        for _ in range(ROUNDS):
            for way, found in rates.items():
                found.append(way(file, options.bytes))
                file.unlink()
        disk, ours = map(statistics.median, rates.values())
        head = [f"{size_of(options.bytes)}, medians of {ROUNDS}", "GB/s", "of the disk's"]
        print(table(head, [["dd", f"{disk / 1e9:.2f}", ""], ["record", f"{ours / 1e9:.2f}", f"{ours / disk:.2f}"]]))
        rows = []
        for readers in (0, 1):
            rates = {None: [], file: []}
            for _ in range(5):
                for recorder, found in rates.items():
                    found.append(frames_per_s(readers, recorder))
                    file.unlink(missing_ok=True)
            without, looked_at = map(statistics.median, rates.values())
            rows.append([str(readers), f"{without:,.0f}", f"{looked_at:,.0f}", f"{looked_at / without:.3f}"])
        print()
        print(table(["readers", "frames/s", "with a recorder", "ratio"], rows))


if __name__ == "__main__":
    main()
