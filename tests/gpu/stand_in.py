# SPDX-License-Identifier: Apache-2.0
"""torch, CuPy and JAX for tensors.py on a machine without a GPU (GPU_FAKE=1): those of tests/python/fake_torch, whose
tensors lie in the memory of the tests' own driver, and what tensors.py asks of them beyond that. Nothing here is fast.
"""

import contextlib
import ctypes
import os
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python" / "fake_torch"))

import cupy  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

SPIN_TURNS = 200


def _exportable():
    """As torch's allocator has it: cudaMalloc, or cuMemCreate."""
    return "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


def _made(array, kind=None, device="cpu"):
    array = np.asarray(array)
    tensor = torch.from_numpy(array, kind)
    return tensor.to(device) if str(device) != "cpu" else tensor


def _same_place(tensor, shape, strides, offset=0):
    return torch.Tensor._made(tensor.memory, tensor.dtype, shape, strides, tensor.offset + offset)


# ---- Tensors ---------------------------------------------------------------------------------------------------------


def _to(self, to, *, plain=torch.Tensor.to):
    if not isinstance(to, torch.dtype):
        return plain(self, to)
    return _made(self.numpy().astype(to.held), to, self.device)


def _reshape(self, *shape):
    shape = shape[0] if isinstance(shape[0], tuple) else shape
    whole = self.contiguous()
    shape = np.empty(tuple(whole.shape), np.bool_).reshape(shape).shape
    return _same_place(whole, shape, torch._strides(shape))


def _part(self, key):
    """By what NumPy makes of the same key, for an array; its bytes are not looked at."""
    span = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides))
    like = np.lib.stride_tricks.as_strided(np.empty(span, np.uint8), self.shape, self.strides)
    part = like[key]
    offset = part.__array_interface__["data"][0] - like.__array_interface__["data"][0]
    return _same_place(self, part.shape, part.strides, offset)


def _expand(self, *shape):
    steps = [0 if size == 1 else step for size, step in zip(self.shape, self.strides)]
    return _same_place(self, shape, tuple(steps))


def _clone(self):
    return _made(self.numpy(), self.dtype, self.device)


def _remainder(self, number):
    return _made(self.numpy() % number, self.dtype, self.device)


torch.Tensor.to, torch.Tensor.reshape, torch.Tensor.__getitem__ = _to, _reshape, _part
torch.Tensor.expand, torch.Tensor.clone, torch.Tensor.__mod__ = _expand, _clone, _remainder
torch.Tensor.t = lambda self: _same_place(self, self.shape[::-1], self.strides[::-1])
torch.Tensor.nbytes = property(lambda self: self.numel() * self.element_size())
torch.arange = lambda count, device="cpu", dtype=None: _made(np.arange(count, dtype=np.int64), dtype, device)
torch.tensor = lambda value, device="cpu": _made(np.array(value, np.float32), None, device)
torch.full = lambda shape, value, dtype: _made(np.full(shape, value, dtype.held), dtype)
torch.equal = lambda a, b: a.dtype is b.dtype and bool(np.array_equal(a.numpy(), b.numpy()))


def _zeros(shape, dtype=torch.float32, device="cpu"):
    array = np.zeros(shape, dtype.held)
    return torch.segment(array) if array.nbytes >= 1 << 20 and _exportable() else _made(array, None, device)


def _spin(*_):
    """In place of a product of matrices: work that takes its time, on the current stream."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    word, turns = ctypes.c_uint64(0), ctypes.c_uint64(SPIN_TURNS)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(word), ctypes.addressof(turns))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    driver, check = torch.driver(), torch.check
    with torch._on(0):
        check(driver.cuModuleLoadData(ctypes.byref(module), b""))
        check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin"))
        check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None))


torch.zeros, torch.mm = _zeros, _spin
torch.randn = lambda *shape, device: _zeros((1,), torch.float32, device)


# ---- The device ------------------------------------------------------------------------------------------------------


def _mem_get_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with torch._on(0):
        torch.check(torch.driver().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


@contextlib.contextmanager
def _graph(graph, capture_error_mode):
    stream = torch.cuda.Stream()
    pointer = ctypes.c_void_p(stream.cuda_stream)
    with torch._on(0):
        torch.check(torch.driver().fake_cuda_capture(pointer, ctypes.c_bool(True)))
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            torch.check(torch.driver().fake_cuda_capture(pointer, ctypes.c_bool(False)))


torch.cuda.init = lambda: torch.cuda.set_device(0)
torch.cuda.memory_snapshot = lambda: [{"is_expandable": not _exportable()}]
torch.cuda.mem_get_info, torch.cuda.graph, torch.cuda.CUDAGraph = _mem_get_info, _graph, types.SimpleNamespace


# ---- CuPy and JAX ----------------------------------------------------------------------------------------------------


def _cupy_of(array):
    return cupy.ndarray(_made(array, None, "cuda"))


cupy.float32, cupy.int16 = np.float32, np.int16
cupy.ndarray.__eq__ = lambda self, other: self.tensor.numpy() == other.tensor.numpy()
cupy.arange = lambda count, dtype: _cupy_of(np.arange(count, dtype=dtype))
cupy.zeros = lambda shape, dtype: _cupy_of(np.zeros(shape, dtype))
cupy.ndarray.T = property(lambda self: cupy.ndarray(self.tensor.t()))
cupy.ndarray.shape = property(lambda self: tuple(self.tensor.shape))
cupy.ndarray.__add__ = lambda self, number: _cupy_of(self.tensor.numpy() + np.float32(number))
jax.default_backend = lambda: "gpu"
jax.numpy = types.SimpleNamespace(
    float32=np.float32,
    arange=lambda count, dtype: jax.Array(_made(np.arange(count, dtype=dtype), None, "cuda")),
    from_dlpack=lambda source: jax.Array(torch.from_dlpack(source)),
)
jax.Array.__add__ = lambda self, number: jax.Array(_made(self.tensor.numpy() + np.float32(number), None, "cuda"))


def join(folder, rank, world):
    """As torch.distributed.init_process_group."""
    import torch.distributed as dist

    dist.init(folder, rank, world)
