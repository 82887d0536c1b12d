# SPDX-License-Identifier: Apache-2.0
"""torch.distributed as far as the drop-ins call it, among processes of one machine; and what of torch itself those ask
for alone. Messages go by sockets in a folder; what is sent is copied at once, so that sends never wait.

A group has a kind: "gloo" carries what is on the CPU, "device" what is on a device, and "none" nothing, so that who
uses it fails. `calls` has what was asked of a group other than gloo's.
"""

import contextlib
import ctypes
import multiprocessing.connection
import os
import threading
import time
import types
from collections import defaultdict, deque
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
    def __init__(self, take=None):
        self._come = threading.Event()
        self._take = take  # of what is to be done with it by who waits
        self.data = None

    def come(self, data):
        self.data = data
        self._come.set()

    def is_completed(self):
        return self._come.is_set()

    def wait(self, timeout=None):
        assert self._come.wait(SECONDS), "nothing comes"
        if isinstance(self.data, Exception):
            raise self.data
        if self._take is not None:
            take, self._take = self._take, None
            take(self.data)


class _Post:
    """What this process sends and gets. A message is (group, tag, data)."""

    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank
        self._lock = threading.Lock()
        self._out, self._letters, self._waiting, self._dead = {}, defaultdict(deque), defaultdict(deque), set()
        self._listener = multiprocessing.connection.Listener(os.path.join(folder, str(rank)), "AF_UNIX", 16)
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, rank, group, tag, data):
        with self._lock:
            if rank not in self._out:
                self._out[rank] = self._connect(rank)
            try:
                self._out[rank].send((group, tag, data))
            except OSError:
                raise RuntimeError(f"Connection closed by peer [{rank}]") from None

    def receive(self, rank, group, tag, work):
        with self._lock:
            key = rank, group, tag
            if self._letters[key]:
                work.come(self._letters[key].popleft())
            elif rank in self._dead:
                work.come(RuntimeError(f"Connection closed by peer [{rank}]"))
            else:
                self._waiting[key].append(work)
        return work

    def close(self):
        self._listener.close()
        for connection in self._out.values():
            connection.close()

    def _connect(self, rank):
        until = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection = multiprocessing.connection.Client(os.path.join(self.folder, str(rank)), "AF_UNIX")
                connection.send(self.rank)
                return connection
            assert time.monotonic() < until, f"rank {rank} does not come"
            os.sched_yield()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()
                threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection):
        with contextlib.suppress(EOFError, OSError), connection:
            rank = connection.recv()
            with contextlib.suppress(EOFError, OSError):
                while True:
                    group, tag, data = connection.recv()
                    self._put((rank, group, tag), data)
            with self._lock:
                self._dead.add(rank)
                for key, works in self._waiting.items():
                    while key[0] == rank and works:
                        works.popleft().come(RuntimeError(f"Connection closed by peer [{rank}]"))

    def _put(self, key, data):
        with self._lock:
            if self._waiting[key]:
                self._waiting[key].popleft().come(data)
            else:
                self._letters[key].append(data)


class _Into(Work):
    """Fills a tensor of the CPU as soon as its data come; one on a device is filled by who waits."""

    def __init__(self, tensor):
        super().__init__(None if tensor.is_cpu else lambda data: _fill(tensor, data))
        self._tensor = tensor

    def come(self, data):
        if self._tensor.is_cpu and not isinstance(data, Exception):
            _fill(self._tensor, data)
        super().come(data)


def _fill(tensor, data):
    assert len(data) == tensor.numel() * tensor.dtype.itemsize, "of another size"
    if data:
        tensor.copy_(_host(np.frombuffer(data, tensor.dtype.held).copy(), tensor.dtype))


# ---- Groups ----------------------------------------------------------------------------------------------------------


class ProcessGroup:
    options = types.SimpleNamespace(_timeout=timedelta(seconds=SECONDS))

    def __init__(self, name, ranks, kind):
        self.name, self.ranks, self.kind, self.calls = name, ranks, kind, []

    def rank(self):
        return self.ranks.index(_post.rank)

    def size(self):
        return len(self.ranks)

    def _get_backend(self, device):
        return self

    def send(self, tensors, peer, tag):
        self._note("send", tensors[0])
        _post.send(self.ranks[peer], self.name, tag, tensors[0].numpy().tobytes())
        work = Work()
        work.come(b"")
        return work

    def recv(self, tensors, peer, tag):
        self._note("recv", tensors[0])
        return _post.receive(self.ranks[peer], self.name, tag, _Into(tensors[0]))

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
    group.WORLD = None
    _post.close()
    _post = None


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
        _post.send(rank, of.name, "gather", mine)
    for i, rank in enumerate(of.ranks):
        work = _post.receive(rank, of.name, "gather", Work())
        work.wait()
        objects[i] = work.data


def barrier():
    all_gather_object([None] * get_world_size(), None)


def broadcast(tensor, src, group=None, async_op=False):
    of = globals()["group"].WORLD if group is None else group
    of._note("broadcast", tensor)
    work = Work()
    work.come(b"")
    if _post.rank == src:
        for rank in of.ranks:
            if rank != src:
                _post.send(rank, of.name, "broadcast", tensor.numpy().tobytes())
    else:
        work = _post.receive(src, of.name, "broadcast", _Into(tensor))
    if not async_op:
        work.wait()
    return work


def isend(tensor, dst, group=None):
    return group.send([tensor], group.ranks.index(dst), "p2p")


def irecv(tensor, src, group=None):
    return group.recv([tensor], group.ranks.index(src), "p2p")
