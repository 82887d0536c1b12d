# SPDX-License-Identifier: Apache-2.0
"""
What the extension asks of torch, CuPy and JAX about tensors of a CUDA device, where that is rare or
no hot path.

A stream is the number that the driver knows it by; 0 is the legacy default one, which DLPack calls
1. Nothing is imported here but by the receiver of an array of that library.
"""

import errno
import functools
import importlib
import math
import sys
from typing import Any, Sequence, Tuple

from ringcast.exceptions import Error

# As in ringcast/frame.h.
_CUPY = 1024
_JAX = 2048


def used_cuda() -> Any:
    """torch.cuda, if torch has used a device in this process; else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def current_stream(device: int) -> Any:
    """torch's current stream of a device, as torch has it."""
    return sys.modules["torch"].cuda.current_stream(device)


def stream_number(device: int) -> int:
    """The number of that stream, for a torch whose exchange API does not tell it."""
    return int(current_stream(device).cuda_stream)


def current_device() -> int:
    """Where tensors arrive: torch's current device if it has been used here, else the first."""
    cuda = used_cuda()
    return 0 if cuda is None else cuda.current_device()


def captures() -> bool:
    """Whether torch's current stream captures a graph."""
    cuda = used_cuda()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def is_built_with_cuda() -> bool:
    """Whether torch can have tensors on a device at all."""
    return bool(sys.modules["torch"].backends.cuda.is_built())


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def export(value: Any) -> Tuple[Any, int, int, bool]:
    """An array's capsule, the stream it is ordered by, a frame's flags of its kind, and whether its
    memory may be used again regardless of that stream, once the array is dropped."""
    library = _library(value)
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with value.device:  # whose stream, and whose memory
            stream = cupy.cuda.get_current_stream().ptr
            array = cupy.ascontiguousarray(value)
            return array.__dlpack__(stream=stream or 1), stream, _CUPY, False
    # JAX has streams of its own, and so may anybody: they wait for theirs, and the copy is waited
    # for.
    flags = _JAX if library in ("jax", "jaxlib") else 0
    return value.__dlpack__(stream=1), 0, flags, library != "ringcast"


def export_contiguous(value: Any) -> Tuple[Any, int, int, bool]:
    """
    As export(), of an array that is not in C order, whose library is not known: torch makes a copy
    in C order.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise TypeError(
            f"a {type(value).__name__} on a CUDA device is not contiguous: make it so, or import "
            f"torch"
        )
    copy = torch.from_dlpack(value).contiguous()
    stream = stream_number(copy.device.index)
    return copy.__dlpack__(stream=stream or 1), stream, 0, True


def plan_empty(shape: Any, dtype: Any, device: Any) -> Tuple[int, int, int, Tuple[Any, ...]]:
    """
    Of a tensor to be made in a Writer's pool: device, bytes, torch's current stream, and the shape.
    """
    torch = importlib.import_module("torch")
    where = torch.device("cuda" if device is None else device)
    if where.type != "cuda":
        raise ValueError(f"a Writer's pool is on a CUDA device, not on '{where}'")
    if not torch.cuda.is_available():
        raise Error(
            errno.ENODEV,
            "Writer.empty() is for CUDA devices, and torch finds none: use torch.empty()",
        )
    ordinal = torch.cuda.current_device() if where.index is None else where.index
    shape = tuple(shape)
    nbytes = math.prod(shape) * torch.empty((0,), dtype=dtype).element_size()
    return ordinal, nbytes, stream_number(ordinal), shape


def make_empty(capsule: Any, shape: Tuple[Any, ...], dtype: Any, device: int) -> Any:
    """torch's tensor over a capsule of bytes; None: of no bytes."""
    torch = sys.modules["torch"]
    if capsule is None:
        return torch.empty(shape, dtype=dtype, device=f"cuda:{device}")
    return torch.from_dlpack(capsule).view(dtype).view(shape)


def move(tensor: Any, device: int) -> Any:
    """torch's tensor on another device, in C order."""
    return tensor.detach().to(f"cuda:{device}").contiguous()


def pack(tensors: Sequence[Any], starts: Sequence[int]) -> Any:
    """
    Bytes of torch's, with a copy of each tensor where it is to start: some kernels, in place of a
    copy for each.
    """
    torch = sys.modules["torch"]
    pieces, end = [], 0
    flat = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors]
    gap = torch.zeros(
        (max(b - a for a, b in zip([0, *starts], starts)),),
        dtype=torch.uint8,
        device=tensors[0].device,
    )
    for piece, start in zip(flat, starts):
        if start > end:
            pieces.append(gap[: start - end])
        pieces.append(piece)
        end = start + piece.numel()
    return torch.cat(pieces)


def cupy_stream(device: int) -> Tuple[int, Any]:
    """
    CuPy's current stream of that device, and the object whose end destroys the stream; the default
    stream if CuPy is not here.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return 0, None
    with cupy.cuda.Device(device):
        stream = cupy.cuda.get_current_stream()
        return stream.ptr, stream


def stream_object(device: int, number: int) -> Any:
    """The object of torch or CuPy for the stream of that number, if that is the library's current
    stream; None: the number is of another library."""
    if used_cuda() is not None:
        stream = current_stream(device)
        if stream.cuda_stream == number:
            return stream
    current, stream = cupy_stream(device)
    return stream if current == number else None


@functools.lru_cache(maxsize=None)
def _imported(name: str) -> Any:
    """The module; None, looked for once: it is not here."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def as_cupy(tensor: Any) -> Any:
    """CuPy's array over a DeviceTensor, or that itself where CuPy is missing, or can't have it."""
    cupy = _imported("cupy")
    if cupy is None:
        return tensor
    try:
        with cupy.cuda.Device(int(tensor.device.rpartition(":")[2])):
            return cupy.from_dlpack(tensor)
    except Exception:
        return tensor


def as_jax(tensor: Any) -> Any:
    """
    JAX's array over a DeviceTensor, or that itself where JAX is missing, or is for the CPU alone.
    """
    dlpack = _imported("jax.dlpack")
    try:
        return tensor if dlpack is None else dlpack.from_dlpack(tensor)
    except Exception:
        return tensor
