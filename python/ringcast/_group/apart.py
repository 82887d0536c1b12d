# SPDX-License-Identifier: Apache-2.0
"""
Tensors of a dict that travel apart from the frame, by the collectives of a device group, as without
ringcast.

In the place of each, the frame has an Apart: the receiver learns the tensor's form, and its place
in the dict.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist

from ringcast._group import devices
from ringcast._group.endpoint import TENSOR_DICT, Source


@dataclass
class Apart:
    """device: the type alone; the index is the receiver's choice."""

    device: str
    dtype: str
    shape: List[int]


def travels_apart(tensor: Any) -> bool:
    """Whether a tensor goes by the device group if the ring carries no tensors of CUDA's."""
    return not tensor.is_cpu


def goes_apart(tensor: Any, end: Any) -> bool:
    """Whether `end` sends the tensor apart from the frame."""
    return travels_apart(tensor) and not devices.carries(end, tensor)


# A key of a frame with an Apart: a receiver need not look through the others.
_MARK = "\0ringcast.apart"


def take_out(
    tensors: Dict[Any, Any], end: Any, nested: bool
) -> Tuple[Dict[Any, Any], List[Tuple[Any, Any]]]:
    """The dict for the frame, which is `tensors` itself if nothing travels apart; and (key, tensor)
    for all that travel apart. nested: also in the dicts in the dict."""
    frame, apart = _take_out(tensors, end, nested)
    if apart:
        frame[_MARK] = True
    return frame, apart


def _take_out(
    tensors: Dict[Any, Any], end: Any, nested: bool
) -> Tuple[Dict[Any, Any], List[Tuple[Any, Any]]]:
    frame, apart = tensors, []
    for key, value in tensors.items():
        part = value
        if isinstance(value, torch.Tensor) and goes_apart(value, end):
            part = Apart(value.device.type, str(value.dtype), list(value.shape))
            apart.append((key, value))
        elif nested and type(value) is dict:
            part, inside = _take_out(value, end, nested)
            apart += inside
        if part is not value:
            frame = dict(tensors) if frame is tensors else frame
            frame[key] = part
    return frame, apart


def put_back(frame: Dict[Any, Any], nested: bool) -> List[Tuple[Any, Any]]:
    """
    Put an empty tensor in the place of each Apart; returns (key, tensor) for each. nested: as the
    sender's.
    """
    return _put_back(frame, nested) if frame.pop(_MARK, False) else []


def _put_back(frame: Dict[Any, Any], nested: bool) -> List[Tuple[Any, Any]]:
    apart: List[Tuple[Any, Any]] = []
    for key, part in frame.items():
        if type(part) is Apart:
            dtype = getattr(torch, part.dtype.rpartition(".")[2])
            frame[key] = torch.empty(part.shape, dtype=dtype, device=part.device)
            apart.append((key, frame[key]))
        elif nested and type(part) is dict:
            apart += _put_back(part, nested)
    return apart


def broadcast_dict(
    end: Any, tensor_dict: Any, src: int, group: Any, nested: bool
) -> Dict[Any, Any]:
    """
    Broadcast a dict by the ring of `end`, and tensors that travel apart by `group`, from `src`, a
    rank in it. Without a group all goes into the frame, which refuses values without a form there.
    """
    received: Dict[Any, Any] = tensor_dict
    apart: List[Tuple[Any, Any]] = []
    if isinstance(end, Source):

        def divide(whole: Dict[Any, Any]) -> Dict[Any, Any]:
            frame, found = take_out(whole, end, nested)
            apart.extend(found)
            end.divides |= bool(found)
            return frame

        # Else send() refuses the value.
        divides = group is not None and isinstance(tensor_dict, dict)
        frame = divide(tensor_dict) if divides and end.divides else tensor_dict
        end.send(frame, TENSOR_DICT, dict, divide=divide if divides else None)
    else:
        received = end.receive(TENSOR_DICT)
        apart = put_back(received, nested)
    whole = [tensor.detach().contiguous() for _, tensor in apart if tensor.numel()]
    for work in [
        dist.broadcast(tensor, group_src=src, group=group, async_op=True) for tensor in whole
    ]:
        work.wait()
    return received
