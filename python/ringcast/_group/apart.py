# SPDX-License-Identifier: Apache-2.0
"""Tensors of a dict that travel apart from the frame, by the collectives of a device group, as without ringcast.

The frame has an Apart in the place of each: the receiver learns what to expect, and where the tensor belongs.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch

from ringcast._group import devices


@dataclass
class Apart:
    """Of the device the type alone: the index is the receiver's own."""

    device: str
    dtype: str
    shape: List[int]


def travels_apart(tensor: Any) -> bool:
    """Whether a tensor goes by the device group where the ring carries none of CUDA's: it is not on the CPU."""
    return not tensor.is_cpu


def goes_apart(tensor: Any, end: Any) -> bool:
    """Whether this tensor does, of a frame that `end` sends."""
    return travels_apart(tensor) and not devices.carries(end, tensor)


def take_out(tensors: Dict[Any, Any], end: Any, nested: bool) -> Tuple[Dict[Any, Any], List[Tuple[Any, Any]]]:
    """The dict for the frame, which is `tensors` itself if nothing travels apart; and what does, by key.

    nested: also in the dicts in the dict.
    """
    frame, apart = tensors, []
    for key, value in tensors.items():
        part = value
        if isinstance(value, torch.Tensor) and goes_apart(value, end):
            part = Apart(value.device.type, str(value.dtype), list(value.shape))
            apart.append((key, value))
        elif nested and type(value) is dict:
            part, inside = take_out(value, end, nested)
            apart += inside
        if part is not value:
            frame = dict(tensors) if frame is tensors else frame
            frame[key] = part
    return frame, apart


def put_back(frame: Dict[Any, Any], nested: bool) -> List[Tuple[Any, Any]]:
    """Put memory for the tensors that travel apart into their places; returns the tensors, by key. nested: as the
    sender's."""
    apart: List[Tuple[Any, Any]] = []
    for key, part in frame.items():
        if type(part) is Apart:
            dtype = getattr(torch, part.dtype.rpartition(".")[2])
            frame[key] = torch.empty(part.shape, dtype=dtype, device=part.device)
            apart.append((key, frame[key]))
        elif nested and type(part) is dict:
            apart += put_back(part, nested)
    return apart
