# SPDX-License-Identifier: Apache-2.0
"""Frames filled in place: placeholders, and the arrays and tensors over the memory of a reserved
frame.

Each array lies over a memoryview of the frame's Span, so the Span counts the arrays, and can't end
before they do. The owner of a placeholder's memory is known by a weak reference: it lives as long
as any array or tensor over the memory, in whichever library, and names the place that is still in
use.
"""

import math
import operator
import re
import sys
import types
import weakref
from typing import Any, Dict, NoReturn, Optional, Tuple

import ringcast

# The dtypes that torch can have in other memory.
_TORCH = re.compile(
    r"torch\.(bool|u?int(8|16|32|64)|b?float(16|32|64)|float8_\w+|complex(32|64|128))"
)

# ---- Placeholders --------------------------------------------------------------------------------


def empty(shape: Any, dtype: Any) -> "Empty":
    """A placeholder for an array that is written inside a frame, for Writer.compose().

    shape: a whole number, or several. dtype: anything that NumPy takes for a number or a truth
    value ("float32") gives a NumPy array, a torch.dtype a torch tensor on the CPU; the readers get
    the same.

    TypeError: an unknown dtype, or one without a form in a frame. ValueError: a negative shape, or
    more bytes than an address space has.
    """
    return Empty(shape, dtype)


class Empty:
    """Made by empty(). `like`: an array or tensor of the shape, with one element in memory."""

    __slots__ = ("dtype", "like", "shape")

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape = _shape(shape)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(dtype, torch.dtype):
            self.dtype, one = dtype, _torch_one(torch, dtype)
        else:
            self.dtype, one = _numpy_one(dtype)
        if math.prod(self.shape) * one.itemsize > sys.maxsize:
            raise ValueError(f"{self!r} has more bytes than an address space")
        self.like = (
            one.expand(self.shape) if self.is_torch else _numpy().broadcast_to(one, self.shape)
        )

    @property
    def is_torch(self) -> bool:
        return type(self.dtype).__module__ == "torch"

    def __repr__(self) -> str:
        return f"ringcast.empty({self.shape}, {self.dtype if self.is_torch else str(self.dtype)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no values to send: give it to Writer.compose(), and write them into "
            f"the frame"
        )

    def owner(self, memory: memoryview) -> Any:
        """An object that lives as long as any array over `memory`, if all are made by over()."""
        return memory if self.is_torch else _numpy().frombuffer(memory, self.dtype)

    def over(self, owner: Any) -> Any:
        """An array or tensor over the owner's memory."""
        if self.is_torch:
            return sys.modules["torch"].frombuffer(owner, dtype=self.dtype).view(self.shape)
        return owner.reshape(self.shape)

    def without_bytes(self) -> Any:
        return self.like.clone() if self.is_torch else self.like.copy()


def _shape(shape: Any) -> Tuple[int, ...]:
    try:
        sizes = tuple(
            operator.index(size) for size in (shape if hasattr(shape, "__iter__") else (shape,))
        )
    except TypeError:
        raise TypeError(f"shape must be a whole number or several, not {shape!r:.100}") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape must have sizes from 0 on, not {sizes}")
    return sizes


def _numpy() -> Any:
    import numpy

    return numpy


def _numpy_one(dtype: Any) -> Tuple[Any, Any]:
    numpy = _numpy()
    try:
        known = numpy.dtype("V" if dtype is None else dtype)  # NumPy takes None for float64
    except TypeError:
        raise TypeError(
            f"dtype must be of a number in NumPy, such as 'float32', or a torch.dtype, not "
            f"{dtype!r:.100}"
        ) from None
    if (
        known.kind not in "?biufc"
        or known.itemsize > 8 * (1 + (known.kind == "c"))
        or not known.isnative
    ):
        raise TypeError(
            f"dtype must be of a number of 64 bits at most, in this machine's byte order, not "
            f"{dtype!r:.100}"
        )
    return known, numpy.empty((), known)


def _torch_one(torch: Any, dtype: Any) -> Any:
    if not _TORCH.fullmatch(str(dtype)):
        raise TypeError(
            f"no tensor of {dtype} can lie in a frame's memory: send a tensor instead of a "
            f"placeholder"
        )
    return torch.empty((), dtype=dtype, device="cpu")


# ---- Frames --------------------------------------------------------------------------------------


class ComposedFrame:
    """A frame that is written in place, made by Writer.compose().

        with writer.compose({"x": ringcast.empty((2048, 1280), "float32"), "step": 7}) as frame:
            np.multiply(pixels, scale, out=frame["x"])

    The end of the block commits the frame; an exception aborts the frame. frame[key] is the item of
    the dict: for a placeholder the array or tensor in the ring, for a dict, list or tuple with
    placeholders inside a read-only one with the arrays, for any other the value. frame[placeholder]
    finds a placeholder that stands elsewhere in the value. `frame[key] = values` writes into an
    array.

    BufferError: at the end an array or tensor is still in use; the text names its place. The frame
    is still open: drop what looks at it, then call commit() or abort().
    """

    def __init__(self, writer: Any, value: Any, timeout: Optional[float], tag: int) -> None:
        if type(value) is not dict:
            raise TypeError(f"a composed frame is of a dict, not of a {type(value).__name__}")
        self._value = value
        # Reserves the frame, and writes all but the arrays of the placeholders.
        self._span, places = writer._compose(value, timeout, tag)
        # By id() of the placeholder: offset, bytes, itself; place, weak reference to the owner.
        self._places: Dict[int, Tuple[int, int, Empty]] = {
            id(each[0]): (each[1], each[2], each[0]) for each in places
        }
        self._lent: Dict[int, Tuple[str, Any]] = {}

    def __enter__(self) -> "ComposedFrame":
        self._check_open()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._span is None:
            return
        if kind is None:
            return self.commit()
        span, self._span = self._span, None
        span.__exit__(kind, error, traceback)

    def commit(self) -> None:
        """Send the frame. ValueError: no frame is open. BufferError: see above."""
        self._ending("commit").commit(kind=ringcast.KIND_TENSORS)
        self._span = None

    def abort(self) -> None:
        """Give the memory back; no reader sees the frame. Errors as commit()."""
        self._ending("abort").abort()
        self._span = None

    def _ending(self, verb: str) -> Any:
        self._check_open()
        held = [place for place, owner in self._lent.values() if owner() is not None]
        if held:
            raise BufferError(
                f"can't {verb}: {', '.join(held)} {'is' if len(held) == 1 else 'are'} still in "
                f"use; drop every array "
                "and tensor made of it, then call commit() or abort()"
            )
        return self._span

    def _check_open(self) -> None:
        if self._span is None:
            raise ValueError("the frame is not open: it was committed or aborted")

    def __getitem__(self, key: Any) -> Any:
        self._check_open()
        if type(key) is Empty:
            return self._array(key, f"frame[{key!r}]")
        return self._found(self._value[key], f"frame[{key!r}]")

    def __setitem__(self, key: Any, values: Any) -> None:
        self._check_open()
        if type(key) is not Empty and type(self._value[key]) is not Empty:
            raise TypeError(
                f"frame[{key!r}] is in the frame already: only what has a placeholder can be "
                f"written"
            )
        self[key][...] = values

    def _found(self, value: Any, place: str) -> Any:
        """The value with arrays for placeholders."""
        kind = type(value)
        if kind is Empty:
            return self._array(value, place)
        if kind is list or kind is tuple:
            items = tuple(self._found(item, f"{place}[{at}]") for at, item in enumerate(value))
            return items if any(new is not old for new, old in zip(items, value)) else value
        if kind is dict:
            found = {key: self._found(item, f"{place}[{key!r}]") for key, item in value.items()}
            return (
                types.MappingProxyType(found)
                if any(found[key] is not value[key] for key in value)
                else value
            )
        return value

    def _array(self, placeholder: Empty, place: str) -> Any:
        try:
            offset, size, _ = self._places[id(placeholder)]
        except KeyError:
            raise KeyError(
                f"{placeholder!r} was not in the value when the frame was reserved"
            ) from None
        if not size:
            return placeholder.without_bytes()
        _, known = self._lent.get(id(placeholder), (place, None))
        owner = known and known()
        if owner is None:
            owner = placeholder.owner(memoryview(self._span)[offset : offset + size])
            self._lent[id(placeholder)] = place, weakref.ref(owner)
        return placeholder.over(owner)

    def __repr__(self) -> str:
        return f"<ringcast.ComposedFrame, {'open' if self._span is not None else 'not open'}>"
