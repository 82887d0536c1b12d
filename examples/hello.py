#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A writer and two readers, each a process of its own. Prints what arrived."""

import multiprocessing

import numpy as np

import ringcast


def read(handle: str, name: str) -> None:
    with ringcast.Reader(handle, name=name) as reader:
        for message in reader:  # ends when the writer is closed and all was received
            # One write for text and newline, so that the lines of two processes don't mix.
            print(f"{name} received {message}\n", end="", flush=True)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with ringcast.Writer() as writer:
        names = ["reader 1", "reader 2"]
        processes = [context.Process(target=read, args=(writer.handle, name)) for name in names]
        for process in processes:
            process.start()
        writer.wait_readers(2, timeout=60)  # a reader gets only later messages
        for step in range(3):
            writer.send({"step": step, "ids": np.arange(step, step + 4)}, timeout=60)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
