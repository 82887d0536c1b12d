# SPDX-License-Identifier: Apache-2.0
"""What the ranks do with share_once in test_device_dropins.py. As device_dropins.py, to be imported in them alone."""

import functools
import os

import torch
import torch.distributed as dist
from device_dropins import check, cuda, numbers
from device_peers import Gate, opens_once_others_run

import ringcast
import ringcast.torch as rt
from ringcast import sglang


def share(compute):
    return sglang.share_once(compute, 1, src=0, hash=None, how="share")


def in_little_memory(capacity):
    os.environ["RINGCAST_CAPACITY"], os.environ["RINGCAST_SPILL_BYTES"] = str(capacity), "0"
    ringcast.Writer = functools.partial(ringcast.Writer, gpu_pool_bytes=0)  # the ring has the tensors


def sharing_behind_a_device():
    """Four tensors have room in the ring that they are broadcast by. The device of the other rank is held up until that
    rank sleeps, in its wait for a value that comes when four more have been broadcast."""
    in_little_memory(1 << 20)
    tensor, mine = cuda(numbers(1, 50_000)), dist.get_rank() == 0
    check(share(lambda: 0).result(), (0, None))
    check(rt.broadcast_object(tensor if mine else None), tensor)
    torch.cuda.synchronize()
    dist.barrier()
    if mine:
        for _ in range(8):
            rt.broadcast_object(tensor)
        share(lambda: 1).result()
        return
    gate, side = Gate(torch), torch.cuda.Stream()
    with torch.cuda.stream(side):
        gate.close_for(side)
        got = [rt.broadcast_object() for _ in range(4)]
        with opens_once_others_run(gate):
            value = share(lambda: 1).result()
        got += [rt.broadcast_object() for _ in range(4)]
        check(value, (1, None))
        check(got, [tensor] * 8)
    gate.end()


class Raising:
    def __reduce__(self):
        raise TimeoutError("mine")


def sharing_what_raises_a_timeout():
    """Which is not that of a ring without room: that is waited for."""
    mine, told = dist.get_rank() == 0, None
    check(share(lambda: 0).result(), (0, None))
    try:
        share(lambda: {"x": cuda(numbers(1)), "y": Raising()} if mine else None).result()
    except (TimeoutError, ringcast.SendError) as error:
        told = f"{type(error).__name__}: {error}"
    check(share(lambda: 2).result(), (2, None))
    return told


def sharing_without_room(count):
    """The source is ahead of the other, which takes nothing in before the source waits for room."""
    in_little_memory(1 << 16)
    shared = []
    check(share(lambda: 0).result(), (0, None))
    for step in range(1, count):
        shared.append(share(lambda step=step: {"x": cuda(numbers(step)), "step": step}))
    for step, one in enumerate(shared, 1):
        check(one.result()[0], {"x": cuda(numbers(step)), "step": step})
