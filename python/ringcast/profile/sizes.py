# SPDX-License-Identifier: Apache-2.0
"""The bytes that an operation moves: the tensor's; for a gathering the output's, for a scattering the input's.

None: the arguments do not tell; the operations within do.
"""

from typing import Any, Callable, Dict, Mapping, Optional, Tuple

Measure = Callable[[Tuple[Any, ...], Mapping[str, Any], Any], Optional[int]]


def bytes_of(value: Any) -> int:
    """The bytes of a tensor, or of all tensors in lists, tuples and the values of dicts."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, dict):
        return sum(bytes_of(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(bytes_of(each) for each in value)
    return 0


def argument(index: int, *names: str) -> Measure:
    def measure(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
        if len(args) > index:
            return bytes_of(args[index])
        return sum(bytes_of(kwargs.get(name)) for name in names)

    return measure


def larger(*measures: Measure) -> Measure:
    def measure(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
        return max(each(args, kwargs, result) or 0 for each in measures)

    return measure


def nothing(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    return 0


def by_those_within(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    return None


# Of torch.distributed.
MEASURES: Dict[str, Measure] = {
    "all_reduce": argument(0, "tensor"),
    "reduce": argument(0, "tensor"),
    "broadcast": argument(0, "tensor"),
    "all_gather": argument(0, "tensor_list"),
    "all_gather_into_tensor": argument(0, "output_tensor"),
    "gather": larger(argument(0, "tensor"), argument(1, "gather_list")),
    "scatter": larger(argument(0, "tensor"), argument(1, "scatter_list")),
    "reduce_scatter": argument(1, "input_list"),
    "reduce_scatter_tensor": argument(1, "input"),
    "all_to_all": argument(1, "input_tensor_list"),
    "all_to_all_single": argument(1, "input"),
    "send": argument(0, "tensor"),
    "recv": argument(0, "tensor"),
    "isend": argument(0, "tensor"),
    "irecv": argument(0, "tensor"),
    "barrier": nothing,
    "monitored_barrier": nothing,
    **{
        name: by_those_within
        for name in (
            "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list", "send_object_list",
            "recv_object_list", "batch_isend_irecv",
        )
    },
}  # fmt: skip


def of_coordinator(operation: str, first: int) -> Measure:
    """The measure of an engine's method (first=1) or function (first=0); `first`: the index of the first argument."""
    if operation == "barrier":
        return nothing
    if operation in ("all_gather", "all_gatherv", "all_gather_into_tensor", "recv"):
        return lambda args, kwargs, result: bytes_of(result) or _of_all(args[first:], kwargs)
    if "object" in operation or "pyobj" in operation or "dict" in operation:
        return by_those_within
    return lambda args, kwargs, result: _of_all(args[first : first + 1], kwargs) or bytes_of(result)


def _of_all(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return bytes_of(args[0]) if args else max((bytes_of(value) for value in kwargs.values()), default=0)
