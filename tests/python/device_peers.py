# SPDX-License-Identifier: Apache-2.0
"""Processes with a CUDA device, for the tests: the driver is the fake one, and torch a fake that has tensors on it
(fake_torch). What runs in them is here; nothing of it may import the real torch.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import pathlib
import signal
import sys
import threading
import time
from multiprocessing import forkserver
from unittest import mock

import numpy as np
from peers import WATCHDOG, Peer

import ringcast

HERE = pathlib.Path(__file__).parent
SOURCES = HERE.parent / "fake_cuda"
MEGABYTE = 1 << 20
LOOKS = 20_000  # of a millisecond or more: nothing takes nearly so long
COPIES = "cuMemcpyDtoDAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"


@contextlib.contextmanager
def environment(**names):
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# Importing NumPy takes a third of a second: one process does it, and the others are forked from that. multiprocessing's
# own such process has the real torch.
server = forkserver.ForkServer()
server.set_forkserver_preload(["torch", "device_peers", "pytest"])


def serve(folder):
    """Has processes begin with the driver that is in `folder`."""
    path = os.pathsep.join(map(str, [HERE / "fake_torch", HERE, os.environ.get("PYTHONPATH", "")]))
    with environment(LD_LIBRARY_PATH=str(folder), PYTHONPATH=path):
        server.ensure_running()


def start(**names):
    with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
        peer = Peer()
    peer.call(begin, names)
    return peer


def kill(peer):
    os.kill(peer.pid, signal.SIGKILL)
    peer.process.join(WATCHDOG)


# ---- In the process --------------------------------------------------------------------------------------------------


def begin(state, names):
    gc.freeze()
    os.environ.update({"RINGCAST_GPU_POOL_BYTES": str(32 * MEGABYTE), **names})  # by default nothing asks for a pool
    sys.path.insert(0, str(HERE / "fake_torch"))
    import torch

    assert not hasattr(torch, "autograd")
    state["torch"] = torch


def calls(*names):
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_cuda_calls.restype = ctypes.c_long
    return [driver.fake_cuda_calls(name.encode()) for name in names]


def live(what):
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_cuda_live.restype = ctypes.c_long
    return driver.fake_cuda_live(what.encode())


def make(torch, value):
    """A value with what is to be on a device as ("cuda", array), ("cuda", array, steps), ... in it."""
    if isinstance(value, dict):
        return {key: make(torch, item) for key, item in value.items()}
    if isinstance(value, list):
        return [make(torch, item) for item in value]
    if isinstance(value, tuple) and value and value[0] in ("cuda", "cpu", "other", "cupy", "jax"):
        kind, array, *how = value
        how = how[0] if how else {}
        tensor = torch.from_numpy(np.asarray(array), getattr(torch, how["dtype"]) if "dtype" in how else None)
        if kind != "cpu":
            tensor = tensor.cuda(how.get("device"))
        if "strides" in how:
            tensor = tensor.as_strided(how["shape"], how["strides"], how.get("offset", 0))
        if how.get("parameter"):
            tensor = torch.nn.Parameter(tensor, requires_grad=how.get("grad", True))
        return WRAPPED[kind](tensor) if kind in WRAPPED else tensor
    return value


def of_cupy(tensor):
    import cupy

    return cupy.ndarray(tensor)


def of_jax(tensor):
    import jax

    return jax.Array(tensor)


class Other:
    """An array of a library that nobody knows."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.asked = []

    def __dlpack_device__(self):
        return 2, self.tensor.get_device()

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        return self.tensor.__dlpack__()


WRAPPED = {"other": Other, "cupy": of_cupy, "jax": of_jax}


def seen(value):
    """What can be told of a value that came: ("cuda:0", "float32", shape, bytes, ...) for a tensor."""
    if isinstance(value, dict):
        return {key: seen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [seen(item) for item in value]
    if isinstance(value, ringcast.DeviceTensor):
        import torch

        told = seen(torch.from_dlpack(value))
        assert value.dtype == told[1] and value.shape == told[2] and value.nbytes == len(told[3])
        return ("DeviceTensor", *told[1:])
    if type(value).__name__ in ("Tensor", "Parameter"):
        where = str(value.device)
        told = where, value.dtype.name, tuple(value.shape), value.numpy().tobytes()
        return (*told, "parameter", value.requires_grad) if type(value).__name__ == "Parameter" else told
    if type(value).__module__ in ("cupy", "jax"):
        return (type(value).__module__, *seen(value.tensor)[1:])
    if isinstance(value, np.ndarray):
        return "numpy", value.dtype.name, value.shape, value.tobytes()
    return value


def make_writer(state, *args, **options):
    state["writer"] = ringcast.Writer(*args, **options)
    return state["writer"].handle


def make_writer_with(state, options):
    return make_writer(state, **options)


def handle_of(state):
    return state["writer"].handle


def send(state, value, options=None):
    state["writer"].send(make(state["torch"], value), WATCHDOG, **(options or {}))


def gpu(state, of="writer"):
    return state[of].gpu


def attach(state, handle, options=None):
    state["reader"] = ringcast.Reader(handle, **(options or {}))


def receive(state, timeout=WATCHDOG):
    return seen(state["reader"].recv(timeout))


def close(state):
    for name in ("writer", "reader"):
        if name in state:
            state.pop(name).close()


def left(state):
    """What the driver still has of ours, when its streams have done what they were told to and the library's worker has
    closed what it waited for."""
    gc.collect()
    if "torch" in state:
        state["torch"].cuda.synchronize()
    for _ in range(LOOKS):
        found = live("imports"), live("registered"), live("queued")
        if not any(found):
            break
        time.sleep(0.001)
    return found


# ---- What a value is to be when it has come --------------------------------------------------------------------------


def told(kind, array, how=None):
    """What a reader is to see of ("cuda", array), ("cuda", array, steps), ..."""
    how = how or {}
    array = np.asarray(array)
    dtype = how.get("dtype", array.dtype.name)
    if "strides" in how:
        start = array.reshape(-1)[how.get("offset", 0) :]
        array = np.lib.stride_tricks.as_strided(start, how["shape"], [s * array.itemsize for s in how["strides"]])
    where = {"cuda": "cuda:0", "cpu": "cpu", "other": "DeviceTensor"}.get(kind, kind)
    parameter = ("parameter", how.get("grad", True)) if how.get("parameter") else ()
    return (where, dtype, array.shape, np.ascontiguousarray(array).tobytes(), *parameter)


def expected(value):
    if isinstance(value, dict):
        return {key: expected(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expected(item) for item in value]
    if isinstance(value, np.ndarray):
        return "numpy", value.dtype.name, value.shape, value.tobytes()
    return told(*value) if isinstance(value, tuple) else value


def exchange(writer, readers, value):
    """Sent by one process and received by others."""
    for reader in readers:
        reader.start(receive)
    try:
        writer.call(send, value)
    except Exception:
        writer.call(close)  # the readers wait no more
        for reader in readers:
            reader.message()
        raise
    return [reader.finish() for reader in readers]


# ---- A test that runs in a process with a device ---------------------------------------------------------------------


class Gpu:
    """What a test whose argument is `gpu` is given; such a test runs in a process that has a device."""

    def __init__(self, torch):
        self.torch, self.side, self.ends = torch, torch.cuda.Stream(), []
        self.leaves = False  # memory of the device behind: the process is this test's alone

    def tensor(self, array):
        return self.torch.from_numpy(np.asarray(array)).cuda()

    def make(self, value):
        return make(self.torch, value)

    def on(self, stream):
        return self.torch.cuda.stream(stream)

    def on_side(self):
        """On a stream other than the default one."""
        return self.on(self.side)

    def pair(self, options=None, **reader_options):
        writer = ringcast.Writer(**{"capacity": MEGABYTE, **(options or {})})
        self.ends.append(writer)
        self.ends.append(ringcast.Reader(writer.handle, **reader_options))
        return self.ends[-2:]

    def opened(self, options=None, **reader_options):
        """A pair that has the pool open, if there is one."""
        writer, reader = self.pair(options, **reader_options)
        writer.send({"x": self.tensor(np.arange(3))}, WATCHDOG)
        reader.recv(WATCHDOG)
        self.torch.cuda.synchronize()
        return writer, reader

    @contextlib.contextmanager
    def gate(self, stream):
        """What the stream is told to do from here on waits until the gate is opened, or the block ends."""
        gate = Gate(self.torch)
        gate.close_for(stream)
        try:
            yield gate
        finally:
            gate.open()
            gate.end()

    def capture(self, stream=None):
        return capture(self.torch, stream or self.side)

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

    def drain(self, reader):
        """The reader has had what there is, also what it can't have."""
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.suppress(ringcast.Error):
                    reader.recv(0)

    def copy(self, to, pointer):
        """Fills a tensor from an address, in the order of the current stream."""
        with self.torch._on(0):
            at = ctypes.c_uint64(to.data_ptr()), ctypes.c_uint64(pointer)
            stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
            nbytes = ctypes.c_size_t(to.numel() * to.dtype.itemsize)
            self.torch.check(self.torch.driver().cuMemcpyDtoDAsync_v2(*at, nbytes, stream))

    def copied(self, tensor):
        copy = self.torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        self.copy(copy, tensor.data_ptr())
        return copy


def run(state, function, arguments):
    """A test. What it made is closed after it, readers first: a pool goes when its last reader has closed."""
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
        self.torch, self.driver = torch, torch.driver()
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)))
        self.word = ctypes.c_uint64()
        with torch._on(0):
            torch.check(self.driver.cuMemHostRegister_v2(self.address, ctypes.c_size_t(mmap.PAGESIZE), 3))
            torch.check(self.driver.cuMemHostGetDevicePointer_v2(ctypes.byref(self.word), self.address, 0))

    def close_for(self, stream):
        handle = ctypes.c_void_p(stream.cuda_stream if stream else 0)
        with self.torch._on(0):
            self.torch.check(self.driver.cuStreamWaitValue64_v2(handle, self.word, ctypes.c_uint64(1), 0))

    def open(self):
        self.memory[0] = 1  # of a word of 64 bits, little-endian

    def end(self):
        self.torch.cuda.synchronize()
        with self.torch._on(0):
            self.torch.check(self.driver.cuMemHostUnregister(self.address))


@contextlib.contextmanager
def capture(torch, stream):
    """The stream captures a graph."""
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(stream.cuda_stream)
    with torch._on(0):
        driver.fake_cuda_capture(handle, True)
        try:
            yield
        finally:
            driver.fake_cuda_capture(handle, False)


@contextlib.contextmanager
def failing(name, result, nth=1):
    """The next call of a function of the driver fails, or the nth one; 0: each."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_cuda_fault(name.encode(), ctypes.c_long(nth), result)
    try:
        yield
    finally:
        driver.fake_cuda_fault(None, ctypes.c_long(0), 0)


@contextlib.contextmanager
def opens_once_others_run(gate):
    """The gate is opened by another thread, which gets the GIL only when this one gives it up by itself."""
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
