# SPDX-License-Identifier: Apache-2.0
"""
What the ranks do in test_device_dropins.py. To be imported in them alone: torch is the fake one.
"""

import ctypes
import gc
import os
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from device_peers import Maker, calls, driver, seen

import ringcast
import ringcast.torch as rt
from ringcast import sglang
from ringcast.vllm import group as groups
from ringcast.vllm.queue import MessageQueue

# Of the driver, that ringcast makes and the fake torch does not.
OURS = "cuMemHostRegister", "cuMemHostAlloc", "cuIpcGetMemHandle", "cuStreamWriteValue64"


def run(function, folder, rank, world, device_group, *args):
    """The function on a rank of a new world; what it gives, and what the device group was asked."""
    dist.init(folder, rank, world)
    group = groups.Group(dist.group.WORLD, dist.new_group(kind=device_group))
    try:
        with mock.patch.dict(os.environ):
            return function(group, *args), group.device_group.calls
    finally:
        rt.close()
        dist.destroy_process_group()
        gc.collect()


def payload(step):
    """Nested, and of both kinds of memory."""
    t = Maker(torch)
    return {
        "hidden": t.cuda(np.full(1000, step, np.float32)),
        "step": step,
        "on the host": t.host(np.arange(10) + step),
        "nested": {
            "list": [t.cuda(np.int64(step)), ("x", t.cuda(np.ones((7, 1))))],
            "deep": t.cuda(step),
        },
        "turned": t.strided("cuda", (4, 3), (1, 4)),
        "empty": t.cuda(np.empty(0)),
        "large": t.cuda(np.arange(100_000.0) + step),
        "array": np.arange(3) + step,
    }


def filled(group, given, src):
    tensor = given["hidden"] if given else Maker(torch).cuda(np.zeros(1000, np.float32))
    assert group.broadcast(tensor, src) is tensor
    return {**payload(int(tensor.numpy()[0])), "hidden": tensor}


# What a rank gets that calls it as the others do; `given` is None but at the source.
FUNCTIONS = {
    "vLLM's dict": lambda group, given, src: group.broadcast_tensor_dict(given, src),
    "torch's dict": lambda group, given, src: rt.broadcast_tensor_dict(
        given, src, group.device_group, group.cpu_group
    ),
    "SGLang's dict": lambda group, given, src: sglang.broadcast_tensor_dict(
        given, src, group.device_group, group.cpu_group
    ),
    "vLLM's object": lambda group, given, src: group.broadcast_object(given, src),
    "torch's object": lambda group, given, src: rt.broadcast_object(given, src),
    "vLLM's list": lambda group, given, src: group.broadcast_object_list([given], src)[0],
    "SGLang's list": lambda group, given, src: sglang.broadcast_pyobj(
        [given] if given else [], dist.get_rank(), group.cpu_group, src
    )[0],
    "vLLM's tensor": filled,
}


def broadcasts(group, steps, names=None):
    """By each function, from each rank; and the driver's calls that ringcast alone makes."""
    before = calls(*OURS)
    for step in range(steps):
        whole = payload(step)
        for src in range(dist.get_world_size()):
            for name in names or FUNCTIONS:
                got = FUNCTIONS[name](group, whole if dist.get_rank() == src else None, src)
                assert seen(got) == seen(whole), name
        dist.barrier()
    return sum(calls(*OURS)) - sum(before)


def without(group, steps, value, who):
    """Some ranks ask for no pool."""
    if dist.get_rank() in who:
        os.environ["RINGCAST_GPU_POOL_BYTES"] = value
    made = broadcasts(group, steps)
    whole, before = payload(1), calls(*OURS)
    shared = sglang.share_once(lambda: whole, 100, src=0, how="share").result()
    assert seen(shared) == seen((whole, None))  # no hashes in a pickle
    return made, calls(*OURS) == before


def sharing(group):
    whole = payload(3)
    shared = sglang.share_once(lambda: whole, 100, src=0, hash=None, how="share")
    assert seen(shared.result()[0]) == seen(whole)


def pairs(group, steps, value=None):
    """From each rank to each other."""
    if value is not None:
        os.environ["RINGCAST_GPU_POOL_BYTES"] = value
    me, before = dist.get_rank(), calls(*OURS)
    for step in range(steps):
        whole = payload(step)
        for src, dst in ((a, b) for a in range(2) for b in range(2) if a != b):
            if me == src:
                group.send_tensor_dict(whole, dst)
                group.send_object([whole], dst)
                for handle in group.isend_tensor_dict(whole, dst):
                    handle.wait()
            elif me == dst:
                assert seen(group.recv_tensor_dict(src)) == seen(whole)
                assert seen(group.recv_object(src)) == seen([whole])
                got, handles, after = group.irecv_tensor_dict(src)
                for each in handles:
                    each.wait()
                for call in after:
                    call()
                assert seen(got) == seen(whole)
        dist.barrier()
    return sum(calls(*OURS)) - sum(before)


def queue(group, steps):
    """vLLM's MessageQueue."""
    made = MessageQueue.create_from_process_group(dist.group.WORLD, 1 << 20, 4)
    before = calls("cuStreamWriteValue64")
    for step in range(steps):
        value = ("execute", [payload(step)], {})
        if dist.get_rank() == 0:
            made.enqueue(value)
        else:
            assert seen(made.dequeue(timeout=60)) == seen(value)
        dist.barrier()
    return calls("cuStreamWriteValue64")[0] - before[0]


def capturing(group):
    """The current stream captures a graph, on all ranks, as in any collective."""
    given = payload(1) if dist.get_rank() == 0 else None
    with mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
        got = filled(group, given, 0)
    assert seen(got) == seen(payload(1))


def failing(group):
    """The driver fails while the source sends: all hear of it, and the next call works."""
    broadcasts(group, 2, ["vLLM's object"])
    given = Maker(torch).cuda(np.arange(5)) if dist.get_rank() == 0 else None
    if given is not None:
        driver().fake_cuda_fault(b"cuMemcpyDtoDAsync", ctypes.c_long(1), 719)
    error = None
    try:
        group.broadcast_object(given)
    except ringcast.Error as raised:
        error = type(raised).__name__
    assert group.broadcast_object([7]) == [7]
    return error


def dying(group, who, source):
    """After a few calls by the pool, one is killed while the others wait, or come to wait."""
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    broadcasts(group, 2, ["vLLM's object"])
    if dist.get_rank() == who:
        os.kill(os.getpid(), 9)
    given = payload(1) if dist.get_rank() == source else None
    while True:
        try:
            group.broadcast_object(given, source)
        except ringcast.Error as error:
            return type(error).__name__, f"rank {who} (pid {pids[who]})" in str(error)
