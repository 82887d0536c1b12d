# SPDX-License-Identifier: Apache-2.0
"""torch.distributed as far as the drop-ins call it, among processes of one machine. A message is a
file in a folder, so that sends never wait.

A group has a kind: "gloo" carries what is on the CPU, "device" what is on a device, and "none"
nothing, so that who uses it fails. `calls` has what was asked of a group other than gloo's.
"""

import functools
import os
import pickle
import time
import types
from collections import Counter
from datetime import timedelta

import numpy as np
import torch

SECONDS = 100  # of the groups' timeout
_here = types.SimpleNamespace(folder=None, rank=None, made=0, sent=None, received=None)


# ---- Messages ----------------------------------------------------------------------------------


def _path(count, *key):
    """Each message is numbered among those of its ends, its group and its tag."""
    count[key] += 1
    return os.path.join(_here.folder, " ".join(map(str, (*key, count[key]))))


def _write(path, data):
    """Whole, or not at all."""
    with open(path + ".new", "wb") as file:
        pickle.dump(data, file)
    os.rename(path + ".new", path)


def _read(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def _has_died(rank):
    """A rank that has not begun is alive."""
    try:
        os.kill(_read(os.path.join(_here.folder, f"pid {rank}")), 0)
    except FileNotFoundError:
        return False
    except ProcessLookupError:
        return True
    return False


class Work:
    """Of what was sent, which is done, or of what comes from a rank as a file, for `take`."""

    def __init__(self, rank=None, path=None, take=None):
        self.rank, self.path, self.take = rank, path, take

    def is_completed(self):
        return self.path is None or os.path.exists(self.path)

    def wait(self, timeout=None):
        until = time.monotonic() + SECONDS
        while not self.is_completed():
            if _has_died(self.rank) and not self.is_completed():
                raise RuntimeError(f"Connection closed by peer [{self.rank}]")
            assert time.monotonic() < until, f"nothing comes from rank {self.rank}"
            time.sleep(0.001)
        if self.path is not None:
            self.take(_read(self.path))
            self.path = None


# ---- Groups ------------------------------------------------------------------------------------


class ProcessGroup:
    options = types.SimpleNamespace(_timeout=timedelta(seconds=SECONDS))

    def __init__(self, name, ranks, kind):
        self.title, self.ranks, self.kind, self.calls = name, ranks, kind, []

    def name(self):
        return self.kind

    def rank(self):
        return self.ranks.index(_here.rank)

    def size(self):
        return len(self.ranks)

    def _get_backend(self, device):
        return self

    def _post(self, rank, tag, data):
        _write(_path(_here.sent, _here.rank, rank, self.title, tag), data)

    def _take(self, rank, tag, take):
        return Work(rank, _path(_here.received, rank, _here.rank, self.title, tag), take)

    def send(self, tensors, peer, tag):
        self._note("send", tensors[0])
        self._post(self.ranks[peer], tag, tensors[0].numpy().tobytes())
        return Work()

    def recv(self, tensors, peer, tag):
        self._note("recv", tensors[0])
        return self._take(self.ranks[peer], tag, functools.partial(_fill, tensors[0]))

    def _note(self, what, tensor):
        assert self.kind != "none", f"{what} was asked of a group that nothing should ask"
        assert tensor.is_cpu == (self.kind == "gloo"), f"{what} of a tensor on {tensor.device}"
        assert tensor.is_contiguous(), f"{what} of a tensor with strides, which NCCL refuses"
        if self.kind != "gloo":
            self.calls.append(what)


def _fill(tensor, data):
    tensor.copy_(torch.from_numpy(np.frombuffer(data, tensor.dtype.held), tensor.dtype))


group = types.SimpleNamespace(WORLD=None)
GroupMember = types.SimpleNamespace(NON_GROUP_MEMBER=object())
ReduceOp = types.SimpleNamespace(SUM=0, MAX=1)


def init(folder, rank, world):
    _here.__dict__.update(folder=folder, rank=rank, made=0)
    _here.sent, _here.received = Counter(), Counter()
    _write(os.path.join(folder, f"pid {rank}"), os.getpid())
    group.WORLD = ProcessGroup("world", list(range(world)), "gloo")


def new_group(kind="gloo"):
    """Of all ranks."""
    _here.made += 1
    return ProcessGroup(f"group {_here.made}", group.WORLD.ranks, kind)


def destroy_process_group():
    group.WORLD = None


def is_available():
    return True


def is_initialized():
    return group.WORLD is not None


def get_rank(group=None):
    return _here.rank


def get_world_size():
    return len(group.WORLD.ranks)


def get_process_group_ranks(of):
    return list(of.ranks)


def get_global_rank(of, rank):
    return of.ranks[rank]


def get_backend(of):
    return of.kind


def all_gather_object(objects, mine, group=None):
    of = globals()["group"].WORLD if group is None else group
    for rank in of.ranks:
        of._post(rank, "gather", mine)
    for i, rank in enumerate(of.ranks):
        of._take(rank, "gather", functools.partial(objects.__setitem__, i)).wait()


def barrier():
    all_gather_object([None] * get_world_size(), None)


def broadcast(tensor, group, group_src, async_op=False):
    group._note("broadcast", tensor)
    work, src = Work(), group.ranks[group_src]
    if _here.rank == src:
        for rank in group.ranks:
            if rank != src:
                group._post(rank, "broadcast", tensor.numpy().tobytes())
    else:
        work = group._take(src, "broadcast", functools.partial(_fill, tensor))
    if not async_op:
        work.wait()
    return work


def isend(tensor, group, group_dst):
    return group.send([tensor], group_dst, "p2p")


def irecv(tensor, group, group_src):
    return group.recv([tensor], group_src, "p2p")
