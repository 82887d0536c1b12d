# SPDX-License-Identifier: Apache-2.0
"""torch.distributed as far as the drop-ins call it, among processes of one machine; and what of torch itself those ask
for alone. Messages are files in a folder, so that sends never wait.

A group has a kind: "gloo" carries what is on the CPU, "device" what is on a device, and "none" nothing, so that who
uses it fails. `calls` has what was asked of a group other than gloo's.
"""

import ctypes
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


# ---- What of torch itself --------------------------------------------------------------------------------------------


def _host(array, kind=None):
    return torch.from_numpy(np.asarray(array), kind)


def _copy(self, other):
    """On a device in the order of its current stream."""
    assert self.is_contiguous() and other.numel() == self.numel() and self.dtype is other.dtype
    if self.is_cpu:
        data = np.ascontiguousarray(other.numpy())
        ctypes.memmove(self.data_ptr(), data.ctypes.data, data.nbytes)
        return self
    other = other.to(self.device) if other.is_cpu else other.contiguous()
    stream = ctypes.c_void_p(torch.cuda.current_stream(self.get_device()).cuda_stream)
    with torch._on(self.get_device()):
        at = ctypes.c_uint64(self.data_ptr()), ctypes.c_uint64(other.data_ptr())
        nbytes = ctypes.c_size_t(self.numel() * self.dtype.itemsize)
        torch.check(torch.driver().cuMemcpyDtoDAsync_v2(*at, nbytes, stream))
    return self


def _frombuffer(buffer, dtype):
    array = np.frombuffer(buffer, dtype.held)
    made = torch.Tensor._made(torch._HostMemory(array), dtype, array.shape, (1,))
    made.memory.array = array  # of the buffer itself
    return made


_empty = torch.empty
torch.Tensor.copy_ = _copy
torch.Tensor.item = lambda self: self.numpy().item()
torch.Tensor.tolist = lambda self: self.numpy().tolist()
torch.Tensor.__len__ = lambda self: self.shape[0]
torch.Tensor.record_stream = lambda self, stream: None
torch.empty = lambda shape, **how: _empty((shape,) if isinstance(shape, int) else shape, **how)
torch.zeros = lambda size, dtype: _host(np.zeros(size, dtype.held), dtype)
torch.tensor = lambda values, dtype: _host(np.array(values, dtype.held), dtype)
torch.frombuffer = _frombuffer


# ---- Messages --------------------------------------------------------------------------------------------------------


class ReduceOp:
    SUM, MAX = range(2)


class Work:
    """Of what was sent, which is done, or of what is to be received from a rank as a file, for `take`."""

    def __init__(self, rank=None, path=None, take=None):
        self._rank, self._path, self._take = rank, path, take

    def is_completed(self):
        return self._path is None or os.path.exists(self._path)

    def wait(self, timeout=None):
        until = time.monotonic() + SECONDS
        while not self.is_completed():
            if _post.has_died(self._rank) and not self.is_completed():
                raise RuntimeError(f"Connection closed by peer [{self._rank}]")
            assert time.monotonic() < until, f"nothing comes from rank {self._rank}"
            time.sleep(0.001)
        if self._path is not None:
            with open(self._path, "rb") as file:
                self._take(pickle.load(file))
            self._path = None


class _Post:
    """What this process sends and gets: each message is a file, numbered among those of its group and its tag."""

    def __init__(self, folder, rank):
        self.folder, self.rank, self._sent, self._received = folder, rank, Counter(), Counter()
        self._write(f"pid {rank}", os.getpid())

    def send(self, rank, group, tag, data):
        self._write(self._next(self._sent, self.rank, rank, group, tag), data)

    def receive(self, rank, group, tag, take):
        return Work(rank, os.path.join(self.folder, self._next(self._received, rank, self.rank, group, tag)), take)

    def has_died(self, rank):
        """A rank that has not begun is alive."""
        try:
            with open(os.path.join(self.folder, f"pid {rank}"), "rb") as file:
                os.kill(pickle.load(file), 0)
        except FileNotFoundError:
            return False
        except ProcessLookupError:
            return True
        return False

    def _next(self, counts, *key):
        counts[key] += 1
        return " ".join(map(str, (*key, counts[key])))

    def _write(self, name, data):
        """Whole, or not at all."""
        path = os.path.join(self.folder, name)
        with open(path + ".new", "wb") as file:
            pickle.dump(data, file)
        os.rename(path + ".new", path)


def _fill(tensor, data):
    assert len(data) == tensor.numel() * tensor.dtype.itemsize, "of another size"
    if data:
        tensor.copy_(_host(np.frombuffer(data, tensor.dtype.held).copy(), tensor.dtype))


# ---- Groups ----------------------------------------------------------------------------------------------------------


class ProcessGroup:
    options = types.SimpleNamespace(_timeout=timedelta(seconds=SECONDS))

    def __init__(self, name, ranks, kind):
        self.title, self.ranks, self.kind, self.calls = name, ranks, kind, []

    def name(self):
        return self.kind

    def rank(self):
        return self.ranks.index(_post.rank)

    def size(self):
        return len(self.ranks)

    def _get_backend(self, device):
        return self

    def send(self, tensors, peer, tag):
        self._note("send", tensors[0])
        _post.send(self.ranks[peer], self.title, tag, tensors[0].numpy().tobytes())
        return Work()

    def recv(self, tensors, peer, tag):
        self._note("recv", tensors[0])
        return _post.receive(self.ranks[peer], self.title, tag, functools.partial(_fill, tensors[0]))

    def _note(self, what, tensor):
        assert self.kind != "none", f"{what} was asked of a group that nothing should ask"
        assert tensor.is_cpu == (self.kind == "gloo"), f"{what} of a tensor on {tensor.device}"
        assert tensor.is_contiguous(), f"{what} of a tensor with strides, which NCCL refuses"
        if self.kind != "gloo":
            self.calls.append(what)


class group:
    WORLD = None


class GroupMember:
    NON_GROUP_MEMBER = object()


_post = None
_made = 0


def init(folder, rank, world):
    global _post, _made
    _post, _made = _Post(folder, rank), 0
    group.WORLD = ProcessGroup("world", list(range(world)), "gloo")


def new_group(ranks=None, kind="gloo"):
    global _made
    _made += 1
    ranks = group.WORLD.ranks if ranks is None else list(ranks)
    return ProcessGroup(f"group {_made}", ranks, kind) if _post.rank in ranks else GroupMember.NON_GROUP_MEMBER


def destroy_process_group():
    global _post
    group.WORLD = _post = None


def is_available():
    return True


def is_initialized():
    return _post is not None


def get_rank(group=None):
    return _post.rank


def get_world_size(of=None):
    return len((of or group.WORLD).ranks)


def get_process_group_ranks(of):
    return list(of.ranks)


def get_global_rank(of, rank):
    return of.ranks[rank]


def get_backend(of):
    return of.kind


def all_gather_object(objects, mine, group=None):
    of = globals()["group"].WORLD if group is None else group
    for rank in of.ranks:
        _post.send(rank, of.title, "gather", mine)
    for i, rank in enumerate(of.ranks):
        _post.receive(rank, of.title, "gather", functools.partial(objects.__setitem__, i)).wait()


def barrier():
    all_gather_object([None] * get_world_size(), None)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    of = globals()["group"].WORLD if group is None else group
    src = of.ranks[group_src] if src is None else src
    of._note("broadcast", tensor)
    work = Work()
    if _post.rank == src:
        for rank in of.ranks:
            if rank != src:
                _post.send(rank, of.title, "broadcast", tensor.numpy().tobytes())
    else:
        work = _post.receive(src, of.title, "broadcast", functools.partial(_fill, tensor))
    if not async_op:
        work.wait()
    return work


def isend(tensor, dst=None, group=None, group_dst=None):
    return group.send([tensor], group.ranks.index(dst) if group_dst is None else group_dst, "p2p")


def irecv(tensor, src=None, group=None, group_src=None):
    return group.recv([tensor], group.ranks.index(src) if group_src is None else group_src, "p2p")
