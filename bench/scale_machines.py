# SPDX-License-Identifier: Apache-2.0
"""For scale.py: a broadcast to readers on several machines, which are network namespaces
(tests/python/machines.py), by ringcast's relay over ZeroMQ (`ringcast.vllm.MessageQueue`) or over gloo
(`ringcast.torch.broadcast_object`). All share the CPUs.

A message is sent when every reader has had the last message, so all waits have gone to sleep. The clock is the
kernel's (CLOCK_MONOTONIC, the same in every namespace). The board carries the times: a row for each message, with the
time of the send and then the time at which each reader has the object.
"""

import mmap
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
import warnings

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/python"))

import machines  # noqa: E402

WARMING = 5  # messages before the count begins
NAP = 0.0005  # seconds between two looks at the board
READY = 60  # seconds for all to connect
PORT = 29500
BUCKET = ["burst", "128kb", "limit", "16mb"]  # of a link with a rate; above the most bytes of one hand-over by TCP


class Board:
    def __init__(self, path, readers):
        with open(path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._row = readers + 1

    def stamp(self, message, place):
        now = self._words[message * self._row + place] = time.monotonic_ns()
        return now

    def row(self, message):
        """The times of a message, when all are there."""
        start = message * self._row
        while 0 in (times := self._words[start : start + self._row].tolist()):
            time.sleep(NAP)
        return times


def broadcasts(way, ip, rank, readers):
    """The send function (rank 0) or receive function of `way`. Rank 0 gives the parent a message for the readers."""
    # Namespaces have the same boot id, so a rank that can't attach warns.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    if way == "torch":
        return torch_broadcasts(ip, rank, readers)
    from ringcast.vllm import MessageQueue

    os.environ["RINGCAST_CURVE"] = str(int(way == "curve"))
    if rank == 0:
        queue = MessageQueue(readers, 0, connect_ip=ip)
        machines.link().send(pickle.dumps(queue.export_handle()))
    else:
        queue = MessageQueue.create_from_handle(pickle.loads(machines.link().recv()), rank)
    queue.wait_until_ready()
    return (lambda value: queue.enqueue(value, timeout=READY)) if rank == 0 else lambda: queue.dequeue(timeout=READY)


def torch_broadcasts(ip, rank, readers):
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    os.environ["GLOO_SOCKET_IFNAME"] = machines.Machine.interface
    import torch
    import torch.distributed as dist

    import ringcast.torch

    torch.set_num_threads(1)
    if rank == 0:
        machines.link().send(ip)
    first = ip if rank == 0 else machines.link().recv()
    store = dist.TCPStore(first, PORT, readers + 1, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=readers + 1)
    return ringcast.torch.broadcast_object if rank == 0 else lambda: ringcast.torch.broadcast_object(None)


def member(way, ip, rank, readers, path, plan):
    """A process of the group: for each (size, count) of the plan the CPU time of a message, without the looks at the
    board; of rank 0 also the time of the call and the time until the last reader has the object. In ns."""
    board, found, message = Board(path, readers), [], 0
    call = broadcasts(way, ip, rank, readers)
    for size, count in plan:
        value, calls, lasts, spent = bytes(size), [], [], []
        for _ in range(WARMING + count):
            cpu, looks = time.process_time_ns(), 0
            if rank == 0:
                start = board.stamp(message, 0)
                call(value)
                calls.append(time.monotonic_ns() - start)
                looks = -time.thread_time_ns()
                lasts.append(max(board.row(message)) - start)
                looks += time.thread_time_ns()
            else:
                assert len(call()) == size
                board.stamp(message, rank)
            message += 1
            spent.append(time.process_time_ns() - cpu - looks)
        figures = {"cpu_ns": spent, "call_ns": calls, "last_ns": lasts}
        found.append({key: statistics.median(values[WARMING:]) for key, values in figures.items() if values})
    return found


def run(way, count, each, plan, rate=None):
    """`count` machines: a writer alone on the first, `each` readers on every further machine. `rate`: of the writer's
    link, bits a second. For each size of the plan: the writer's figures, and the CPU time of a reader's machine."""
    readers = (count - 1) * each
    rows = sum(messages + WARMING for _, messages in plan)
    with tempfile.NamedTemporaryFile() as file, machines.machines(count) as (first, *others):
        file.truncate(8 * rows * (readers + 1))
        if rate:
            first.tc("qdisc", "add", "dev", first.interface, "root", "tbf", "rate", f"{rate}bit", *BUCKET)
        writer = first.start(member, way, first.address, 0, readers, file.name, plan)
        told = writer.recv()
        places = [other for other in others for _ in range(each)]
        jobs = [
            place.start(member, way, place.address, rank, readers, file.name, plan)
            for rank, place in enumerate(places, 1)
        ]
        for job in jobs:
            job.send(told)
        of_writer, of_readers = writer.result(), [job.result() for job in jobs]
    return [
        {"size": size, **of_writer[i], "machine_cpu_ns": sum(one[i]["cpu_ns"] for one in of_readers) / (count - 1)}
        for i, (size, _) in enumerate(plan)
    ]
