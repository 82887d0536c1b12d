# SPDX-License-Identifier: Apache-2.0
"""Processes with a CUDA device, for the tests: the driver is the fake one, and torch a fake that
has tensors on it (fake_torch). What runs in them is here; nothing of it may import the real torch.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import pathlib
import random
import sys
import threading
import time
from multiprocessing import forkserver
from unittest import mock

import numpy as np
from peers import WATCHDOG, Peer

import ringcast

HERE = pathlib.Path(__file__).parent
MEGABYTE = 1 << 20
INLINE = {"gpu_pool_bytes": 0}
LOOKS = 20_000  # of a millisecond or more: nothing takes nearly so long
COPIES = "cuMemcpyDtoDAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"
WAITS = "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "fake_host_waits", "cuStreamQuery"

# Importing NumPy takes a third of a second: one process does it, and the others are forked from
# that. multiprocessing's own such process has the real torch.
server = forkserver.ForkServer()
server.set_forkserver_preload(["torch", "device_peers", "pytest"])


def serve(folder):
    """Has processes begin with the driver that is in `folder`."""
    path = os.pathsep.join(map(str, [HERE / "fake_torch", HERE, os.environ.get("PYTHONPATH", "")]))
    with mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(folder), PYTHONPATH=path):
        server.ensure_running()


def start(**names):
    with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
        peer = Peer()
    peer.call(begin, names)
    return peer


# ---- Values --------------------------------------------------------------------------------------


class Other:
    """An array of a library that nobody knows."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return 2, self.tensor.get_device()

    def __dlpack__(self, *, stream=None):
        return self.tensor.__dlpack__()


class Maker:
    """Of tensors: in a process with a device."""

    def __init__(self, torch):
        self.torch = torch

    def host(self, array):
        return self.torch.from_numpy(np.asarray(array))

    def cuda(self, array, device=None):
        return self.host(array).cuda(device)

    def other(self, array, device=None):
        return Other(self.cuda(array, device))

    def cupy(self, array):
        import cupy

        return cupy.ndarray(self.cuda(array))

    def jax(self, array):
        import jax

        return jax.Array(self.cuda(array))

    def parameter(self, array, requires_grad):
        return self.torch.nn.Parameter(self.cuda(array), requires_grad=requires_grad)

    def bfloat16(self, array):
        return self.torch.from_numpy(np.asarray(array, np.uint16), self.torch.bfloat16).cuda()

    def strided(self, kind, shape, strides, offset=0):
        made = getattr(self, kind)(np.arange(240, dtype=np.float32))
        if kind == "cuda":
            return made.as_strided(shape, strides, offset)
        return type(made)(made.tensor.as_strided(shape, strides, offset))

    def both(self, kind):
        """With bytes, and without."""
        return [getattr(self, kind)(array) for array in (np.arange(9.0), np.empty((0, 2)))]

    def strides(self, kind):
        return [self.strided(kind, *how) for how in STRIDED]


SOURCES = "cuda", "other", "cupy", "jax"
DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64".split()
STRIDED = ((4, 5), (1, 4), 3), ((3, 4, 5), (40, 2, 8)), ((6, 3), (7, 0)), ((10,), (20,), 1)
VALUES = {
    "mixed": lambda t: {
        "x": t.cuda(np.arange(12, dtype=np.float32).reshape(3, 4)),
        "n": {"deep": [t.cuda(np.arange(30000)), 1]},
        "o": t.other(np.arange(5, dtype=np.int16)),
        "c": t.host(np.arange(5)),
        "host": np.arange(4),
        "i": 7,
    },
    "one": lambda t: t.cuda(np.arange(5)),
    "large": lambda t: {"x": t.cuda(np.arange(60000.0))},
    "too large": lambda t: {"x": t.cuda(np.arange(400000.0))},
    "on the host": lambda t: {"c": t.host(np.arange(300000))},
    **{kind: lambda t, kind=kind: t.both(kind) for kind in SOURCES},
    **{f"strided {kind}": lambda t, kind=kind: t.strides(kind) for kind in SOURCES[:3]},
    "every dtype": lambda t: [t.cuda(np.arange(5).astype(name)) for name in DTYPES],
    "many": lambda t: [t.cuda(np.arange(i + 1, dtype=np.int32)) for i in range(30)],
    "of torch": lambda t: {
        "bfloat16": t.bfloat16(np.arange(30)),
        "learns": t.parameter(np.arange(9.0), True),
        "does not": t.parameter(np.arange(9.0), False),
        "number": t.cuda(np.float32(3)),
    },
    **{f"random {i}": lambda t, i=i: random_value(t, random.Random(i)) for i in range(12)},
}

ON_TWO_DEVICES = {
    "both": lambda t: {"x": t.cuda(np.arange(9), 1), "y": t.cuda(np.arange(70000), 0)},
    "other on the first": lambda t: {"o": t.other(np.arange(3), 0)},
}


def random_value(t, chance):
    def array():
        shape = [chance.choice([0, 1, 2, 3, 7]) for _ in range(chance.randrange(4))]
        return np.arange(np.prod(shape, dtype=int)).astype(chance.choice(DTYPES)).reshape(shape)

    def tensor():
        if chance.random() < 0.3:
            return t.strided(chance.choice(["cuda", "other"]), *chance.choice(STRIDED))
        return getattr(t, chance.choice(["cuda", "cuda", "cuda", "host", "other"]))(array())

    value = {f"t{i}": tensor() for i in range(chance.randrange(1, 9))}
    return {**value, "n": {"deep": [1, tensor(), {"x": tensor()}], "s": "text"}, "numpy": array()}


def seen(value):
    """What can be told of a value, the same when it has arrived: of a tensor its library, place,
    dtype, shape and bytes, and what more makes it what it is."""
    if isinstance(value, dict):
        return {key: seen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(seen, value))
    if isinstance(value, ringcast.DeviceTensor):
        told = seen(sys.modules["torch"].from_dlpack(value))
        assert (value.dtype, value.shape, value.nbytes) == (*told[2:4], len(told[4]))
        return ("other", *told[1:])
    if isinstance(value, np.ndarray):
        return "numpy", "cpu", value.dtype.name, value.shape, value.tobytes()
    if type(value).__name__ in ("Tensor", "Parameter"):
        data = value.numpy().tobytes()
        more = ("requires", value.requires_grad) if type(value).__name__ == "Parameter" else ()
        return "torch", str(value.device), value.dtype.name, tuple(value.shape), data, *more
    if hasattr(value, "tensor"):
        library = type(value).__module__ if type(value) is not Other else "other"
        return (library, *seen(value.tensor)[1:])
    return value


def moved(told, where):
    """What is seen of a value that comes to a Reader with that map_location."""
    if isinstance(told, dict):
        return {key: moved(item, where) for key, item in told.items()}
    if isinstance(told, list):
        return [moved(item, where) for item in told]
    if not isinstance(told, tuple) or told[0] == "numpy":
        return told
    library = "numpy" if where == "cpu" and told[0] != "torch" else told[0]
    return (library, where, *told[2:])


# ---- In the process ------------------------------------------------------------------------------


def begin(state, names):
    gc.freeze()
    # By default nothing asks for a pool.
    os.environ.update({"RINGCAST_GPU_POOL_BYTES": str(32 * MEGABYTE), **names})
    sys.path.insert(0, str(HERE / "fake_torch"))
    import torch

    assert not hasattr(torch, "autograd"), "the real torch"
    state["torch"] = torch


def driver():
    made = ctypes.CDLL("libcuda.so.1")
    made.fake_cuda_calls.restype = made.fake_cuda_live.restype = ctypes.c_long
    return made


def calls(*names):
    return [driver().fake_cuda_calls(name.encode()) for name in names]


def live(what):
    return driver().fake_cuda_live(what.encode())


def make_writer(state, options=None):
    state["writer"] = ringcast.Writer(**{"capacity": MEGABYTE, **(options or {})})
    return state["writer"].handle


def attach(state, handle, options=None):
    state["reader"] = ringcast.Reader(handle, **(options or {}))


def send(state, name):
    value = {**VALUES, **ON_TWO_DEVICES}[name](Maker(state["torch"]))
    state["writer"].send(value, WATCHDOG)
    return seen(value)


def receive(state):
    return seen(state["reader"].recv(WATCHDOG))


def info(state, of="writer"):
    return state[of].gpu


def close(state):
    for name in ("writer", "reader"):
        if name in state:
            state.pop(name).close()


def left(state):
    """What the driver still has of ours, when its streams have done what they were told to and the
    library's worker has closed what it waited for."""
    gc.collect()
    state["torch"].cuda.synchronize()
    for _ in range(LOOKS):
        found = live("imports"), live("registered"), live("queued")
        if not any(found):
            break
        time.sleep(0.001)
    return found


def exchange(writer, readers, name, where=None):
    """The value that one process sends arrives equal in others."""
    for reader in readers:
        reader.start(receive)
    try:
        sent = writer.call(send, name)
    except Exception:
        writer.call(close)  # the readers wait no more
        for reader in readers:
            reader.message()
        raise
    for reader in readers:
        assert reader.finish() == (moved(sent, where) if where else sent)


# ---- A test that runs in a process with a device -------------------------------------------------


class Gpu(Maker):
    """What a test whose argument is `gpu` is given; such a test runs in a process that has one."""

    def __init__(self, torch):
        super().__init__(torch)
        self.side, self.ends = torch.cuda.Stream(), []
        self.leaves = False  # memory of the device behind: the process is this test's alone

    def pair(self, options=None, **reader_options):
        writer = ringcast.Writer(**{"capacity": MEGABYTE, **(options or {})})
        self.ends.append(writer)
        self.ends.append(ringcast.Reader(writer.handle, **reader_options))
        return self.ends[-2:]

    def opened(self, options=None, **reader_options):
        """A pair that has the pool open, if there is one."""
        writer, reader = self.pair(options, **reader_options)
        self.passes(writer, reader, "one")
        self.torch.cuda.synchronize()
        return writer, reader

    def passes(self, writer, reader, value):
        """A value, or the one of that name, is sent and arrives equal."""
        value = VALUES[value](self) if isinstance(value, str) else value
        writer.send(value, WATCHDOG)
        assert seen(reader.recv(WATCHDOG)) == seen(value)

    def on(self, stream):
        return self.torch.cuda.stream(stream)

    def on_side(self):
        """On a stream other than the default one."""
        return self.on(self.side)

    @contextlib.contextmanager
    def gate(self, stream):
        """What the stream is told to do from here on waits until the gate is opened, or the block
        ends."""
        gate = Gate(self.torch)
        gate.close_for(stream)
        try:
            yield gate
        finally:
            gate.open()
            gate.end()

    @contextlib.contextmanager
    def capture(self):
        """The side stream captures a graph, and nothing spoils that."""
        self.torch._call("fake_cuda_capture", self.side.cuda_stream, True)
        try:
            yield
        finally:
            self.torch._call("fake_cuda_capture", self.side.cuda_stream, False)

    @contextlib.contextmanager
    def counting(self, *names):
        """How often each function of the driver is called in the block."""
        before, counted = calls(*names), []
        yield counted
        counted += [now - then for now, then in zip(calls(*names), before)]

    def collect(self):
        """What was dropped has gone."""
        gc.collect()
        self.torch._forget_dropped()

    def settle(self):
        """What was dropped has gone, and what streams were told to do is done."""
        self.collect()
        self.torch.cuda.synchronize()

    def await_until(self, is_so):
        """What the library's threads do comes soon."""
        while not is_so():
            time.sleep(0.001)

    def copied(self, tensor):
        """In the order of the current stream."""
        copy = self.torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        return self.torch._packed([tensor], copy)


def run(state, function, arguments):
    """A test. What it made is closed after it, readers first: a pool goes when its last reader has
    closed."""
    gpu = Gpu(state["torch"])
    try:
        function(gpu, **arguments)
        gpu.settle()
    finally:
        for end in sorted(gpu.ends, key=lambda end: type(end).__name__):
            end.close()
    assert gpu.leaves or left(state) == (0, 0, 0)


class Gate:
    """A word that streams wait for until it is opened."""

    def __init__(self, torch):
        self.torch, self.memory, word = torch, mmap.mmap(-1, mmap.PAGESIZE), ctypes.c_uint64()
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        torch._call("cuMemHostRegister_v2", self.address, mmap.PAGESIZE, 3)
        torch._call("cuMemHostGetDevicePointer_v2", ctypes.byref(word), self.address, 0)
        self.word = word.value

    def close_for(self, stream):
        handle = stream.cuda_stream if stream else 0
        self.torch._call("cuStreamWaitValue64_v2", handle, self.word, 1, 0)

    def open(self):
        self.memory[0] = 1  # of a word of 64 bits, little-endian

    def end(self):
        self.torch.cuda.synchronize()
        self.torch._call("cuMemHostUnregister", self.address)


@contextlib.contextmanager
def failing(name, result):
    """The next call of a function of the driver fails."""
    driver().fake_cuda_fault(name.encode(), ctypes.c_long(1), result)
    try:
        yield
    finally:
        driver().fake_cuda_fault(None, ctypes.c_long(0), 0)


@contextlib.contextmanager
def opens_once_others_run(gate):
    """The gate is opened by another thread, which gets the GIL only when this one gives it up by
    itself."""
    go, interval = threading.Lock(), sys.getswitchinterval()

    def wait_and_open():
        with go:
            gate.open()

    with go:
        opener = threading.Thread(target=wait_and_open)
        opener.start()
        sys.setswitchinterval(WATCHDOG)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        opener.join()
