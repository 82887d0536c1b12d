# SPDX-License-Identifier: Apache-2.0
"""Which way tensors on a CUDA device go: by the rings, or as without ringcast.

Such tensors go by the rings if all ranks ask for that (RINGCAST_GPU_POOL_BYTES), all are on one
machine, and ringcast can use CUDA in every rank that uses CUDA: the ranks agree when they make a
ring. A rank that has not used CUDA yet counts as able to: a question to the driver would keep
processes forked later from using CUDA.
"""

import struct
import sys
from typing import Any

import ringcast
from ringcast import _device
from ringcast._group import config


def may_carry() -> bool:
    """Whether, as far as this rank knows by now, the rings carry tensors on a CUDA device."""
    return config.asks_for_pool() and (_device.used_cuda() is None or ringcast.gpu_status().ready)


def carries(end: Any, tensor: Any) -> bool:
    """
    Whether the ring of `end`, a source, carries this tensor on its CUDA device. While the current
    stream captures a graph, the device can't run a copy: a frame is sent once.
    """
    if not (tensor.is_cuda and end.carries_cuda and _is_plain(tensor)):
        return False
    return not _device.captures() and ringcast.gpu_status().ready


def _is_plain(tensor: Any) -> bool:
    """
    Whether ringcast has a form for the tensor: subclasses, sparse and nested tensors go by torch's
    pickle, from the CPU.
    """
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return tensor.layout is torch.strided and not tensor.is_nested


def has_device(frame: Any) -> bool:
    """
    Whether a frame's bytes may hold tensors on a device: the layout's version, the second field, is
    then 3 or more.
    """
    return len(frame) >= 6 and struct.unpack_from("<H", frame, 4)[0] >= 3
