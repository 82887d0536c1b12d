# SPDX-License-Identifier: Apache-2.0
"""What the ranks do in test_device_dropins.py. To be imported in them alone: torch is the fake one (fake_torch)."""

import ctypes
import gc
import os

import device_peers
import numpy as np
import torch
import torch.distributed as dist

import ringcast
import ringcast.torch as rt
from ringcast import sglang
from ringcast._group import rings
from ringcast.vllm import group as groups
from ringcast.vllm.queue import MessageQueue

assert not hasattr(torch, "autograd"), "the real torch"


def run(function, folder, rank, world, *args):
    """The function on a rank of a new world; what it returns."""
    dist.init(folder, rank, world)
    before, writer = dict(os.environ), ringcast.Writer
    try:
        return function(*args)
    finally:
        os.environ.clear()
        os.environ.update(before)
        ringcast.Writer = writer
        rt.close()
        dist.destroy_process_group()
        gc.collect()


# ---- Values ----------------------------------------------------------------------------------------------------------


def cuda(array):
    return torch.from_numpy(np.asarray(array)).cuda()


def numbers(step, count=1000):
    return np.arange(count, dtype=np.float32) * (step + 1)


def payload(step):
    """Nested, and of both kinds of memory."""
    return {
        "hidden": cuda(numbers(step)),
        "step": step,
        "on the host": torch.from_numpy(numbers(step, 10)),
        "nested": {"list": [cuda(np.int64(step)), ("x", cuda(numbers(step, 7).reshape(7, 1)))], "deep": cuda(step)},
        "turned": cuda(numbers(step, 12)).as_strided((4, 3), (1, 4)),
        "empty": cuda(numbers(0, 0)),
        "large": cuda(numbers(step, 100_000)),
        "array": numbers(step, 3),
        "none": None,
    }


def told(value):
    if isinstance(value, tuple):
        return tuple(map(told, value))
    if isinstance(value, dict):
        return {key: told(item) for key, item in value.items()}
    return [told(item) for item in value] if isinstance(value, list) else device_peers.seen(value)


def check(got, expected):
    assert told(got) == told(expected), (told(got), told(expected))


def fail_next(name, result):
    ctypes.CDLL("libcuda.so.1").fake_cuda_fault(name, ctypes.c_long(1), result)


def device_group():
    """One that must not be asked."""
    return dist.new_group(kind="none")


# ---- The functions ---------------------------------------------------------------------------------------------------


def broadcasts(group, src, step):
    """By each function from one rank."""
    mine = dist.get_rank() == src
    whole = payload(step)
    given = whole if mine else None
    check(group.broadcast_tensor_dict(given, src), whole)
    check(rt.broadcast_tensor_dict(given, src, group.device_group, group.cpu_group), whole)
    check(sglang.broadcast_tensor_dict(given, src, group.device_group, group.cpu_group), whole)
    check(group.broadcast_object([whole, step] if mine else None, src), [whole, step])
    check(rt.broadcast_object(whole["large"] if mine else None, src), whole["large"])
    check(group.broadcast_object_list([1, whole] if mine else [0, 0], src), [1, whole])
    check(sglang.broadcast_pyobj([whole] if mine else [], dist.get_rank(), group.cpu_group, src), [whole])
    filled = cuda(numbers(step if mine else 77))
    at = filled.data_ptr()
    assert group.broadcast(filled, src) is filled and filled.data_ptr() == at
    check(filled, whole["hidden"])
    shared = sglang.share_once(lambda: whole, 100, src=src, hash=None, how="share")
    check(shared.result()[0], whole)


def sendings(group, src, dst, step):
    me, whole = dist.get_rank(), payload(step)
    if me == src:
        group.send_tensor_dict(whole, dst)
        group.send_object([whole], dst)
        handles = group.isend_tensor_dict(whole, dst)
        assert len(handles) == 1
        for handle in handles:
            handle.wait()
    elif me == dst:
        check(group.recv_tensor_dict(src), whole)
        check(group.recv_object(src), [whole])
        got, handles, after = group.irecv_tensor_dict(src)
        assert handles == after == []
        check(got, whole)


def ranks_all(steps):
    """Each function, from each rank, to all and to each other; the device group would fail."""
    group = groups.Group(dist.group.WORLD, device_group())
    world = dist.get_world_size()
    for step in range(steps):
        for src in range(world):
            broadcasts(group, src, step)
            for dst in range(world):
                if src != dst:
                    sendings(group, src, dst, step)
        dist.barrier()
    assert group.device_group.calls == []


def ranks_queue(count, tell=lambda gpu: (gpu.way, gpu.pool_frames, gpu.opens)):
    """Of a MessageQueue. What the writer's way was, or how many pools each reader has opened."""
    queue = MessageQueue.create_from_process_group(dist.group.WORLD, 1 << 20, 4)
    for step in range(count):
        if dist.get_rank() == 0:
            queue.enqueue(("execute", [payload(step)], {}))
        else:
            check(queue.dequeue(timeout=60), ("execute", [payload(step)], {}))
        dist.barrier()
    told = tell(queue._end.ring.gpu)
    dist.barrier()  # nobody has left before all have looked
    return told


# ---- Where they don't go by the rings --------------------------------------------------------------------------------


# Of the driver, that ringcast makes and the fake torch does not.
OURS = "cuMemHostRegister", "cuMemHostAlloc", "cuIpcGetMemHandle", "cuStreamWaitValue64", "cuStreamWriteValue64"


def apart(group, steps=3):
    """What the device group was asked; the driver heard nothing of ringcast."""
    before = device_peers.calls(*OURS)
    for step in range(steps):
        for src in range(dist.get_world_size()):
            broadcasts(group, src, step)
        dist.barrier()
    whole = payload(1)
    shared = sglang.share_once(lambda: whole, 100, src=0, how="share").result()
    check(shared, (whole, None))  # no hashes in a pickle
    ends = [end.ring for each in (group.cpu_group, group.device_group) for end in rings.ends(each).values()]
    assert len(ends) == 3 * dist.get_world_size() and not any(end.gpu for end in ends)
    assert device_peers.calls(*OURS) == before
    return group.device_group.calls.count("broadcast")


def ranks_without(value, told):
    """Some ask for no pool."""
    if dist.get_rank() in told:
        os.environ["RINGCAST_GPU_POOL_BYTES"] = value
    return apart(groups.Group(dist.group.WORLD, dist.new_group(kind="device")))


def ranks_pairs_without():
    os.environ["RINGCAST_GPU_POOL_BYTES"] = ""
    group = groups.Group(dist.group.WORLD, dist.new_group(kind="device"))
    for step in range(4):
        whole = payload(step)
        if dist.get_rank() == 0:
            group.send_tensor_dict(whole, 1)
        else:
            check(group.recv_tensor_dict(0), whole)
        dist.barrier()
    return len(group.device_group.calls)


def ranks_capturing():
    """The current stream captures a graph, on all ranks, as in any collective; what the device group is asked for."""
    group, mine = groups.Group(dist.group.WORLD, dist.new_group(kind="device")), dist.get_rank() == 0
    filled = cuda(numbers(1 if mine else 77))
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        group.broadcast(filled)
    finally:
        del torch.cuda.is_current_stream_capturing
    check(filled, cuda(numbers(1)))
    return group.device_group.calls, len(rt.rings())


def ranks_lacking():
    """One has no device that ringcast can use, and all others learn that by what they are asked."""
    group = groups.Group(dist.group.WORLD, dist.new_group(kind="device"))
    torch.cuda.set_device(0)
    check(group.broadcast_object(5), 5)
    flat = {"x": cuda(numbers(1)), "y": cuda(numbers(2)), "n": 1}
    check(group.broadcast_tensor_dict(flat if dist.get_rank() == 0 else None), flat)
    whole = payload(1)
    check(group.broadcast_object(whole if dist.get_rank() == 0 else None), whole)
    return group.device_group.calls


# ---- Errors and deaths -----------------------------------------------------------------------------------------------


def ranks_failing():
    """The driver fails while the source sends: all hear of it, and the next call works."""
    group, mine = groups.Group(dist.group.WORLD, device_group()), dist.get_rank() == 0
    check(group.broadcast_object(5), 5)
    texts = []
    for _ in range(2):
        check(group.broadcast_object(cuda(numbers(1)) if mine else None), cuda(numbers(1)))
        dist.barrier()
    tensor = cuda(numbers(1))
    if mine:
        fail_next(b"cuMemcpyDtoDAsync", 719)
    try:
        group.broadcast_object(tensor if mine else None)
    except ringcast.Error as error:
        texts.append(f"{type(error).__name__}: {error}")
    check(group.broadcast_object([7]), [7])
    return texts


def ranks_dying(dying, source):
    """After a few calls by the pool, one is killed while the others wait, or come to wait."""
    group = groups.Group(dist.group.WORLD, device_group())
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    mine = dist.get_rank() == source
    for step in range(4):
        check(group.broadcast_object([cuda(numbers(step))] if mine else None, source), [cuda(numbers(step))])
    dist.barrier()
    if dist.get_rank() == dying:
        os.kill(os.getpid(), 9)
    error = None
    while error is None:
        try:
            got = group.broadcast_object([cuda(numbers(1))] if mine else None, source)
            check(got, [cuda(numbers(1))])
        except ringcast.Error as raised:
            error = raised
    return type(error).__name__, f"rank {dying} (pid {pids[dying]})" in str(error), str(error)
