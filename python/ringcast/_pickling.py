# SPDX-License-Identifier: Apache-2.0
"""Pickles values without a form of their own in a frame: protocol 5, with large buffers beside the
pickle.

A torch tensor inside a value travels as a buffer too. torch's own way would write the storage into
the pickle, at three copies and more; here a tensor is reduced to (bytes, dtype, shape) if these say
all.
"""

import contextlib
import copyreg
import errno
import itertools
import pickle
import pickletools
import reprlib
import sys
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

from ringcast._allowed import printable
from ringcast._classes import why_not
from ringcast.exceptions import PickleRefused

# Tensors of these dtypes are plain bytes. An older torch lacks some.
_DENSE = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex32 complex64 "
    "complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 "
    "bits8 bits16 bits1x8 bits2x4 bits4x2 int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 "
    "uint4 uint5 uint6 uint7"
).split()

# The limits of the search for the part that can't be pickled. Each level costs at most as much as
# pickling the value.
_MOST_LEVELS, _MOST_ITEMS = 16, 10_000
_PLAIN = (type(None), bool, int, float, str, bytes)

# Names a key in a place; shortens a long key, and survives a repr() that raises.
_names = reprlib.Repr()
_names.maxstring = _names.maxother = 60

# The bytes from which on a tensor that is received keeps memory of ringcast's, which resize_ can't
# make larger.
_RESIZABLE_BELOW = 64 << 10

# dtype -> name; filled when torch is first seen.
_dtype_names: Dict[Any, str] = {}


class _ElsewhereError(Exception):
    """A tensor outside the CPU's memory."""


def _rebuild_tensor(
    data: Any,
    dtype: str,
    shape: Tuple[int, ...],
    requires_grad: bool,
    is_parameter: bool,
    strides: Optional[Tuple[int, ...]] = None,
) -> Any:
    """Makes a tensor from a pickle. Of less than 64 KiB it has memory of torch's. Else it keeps
    `data`, in a view a copy: torch has no tensors that can't be written to. `strides`: of the
    bytes; None: C order."""
    import torch

    kind = getattr(torch, dtype)
    with memoryview(data) as view:
        data = bytearray(view) if view.readonly else data
    if 0 in shape:
        tensor = torch.empty(shape, dtype=kind, device="cpu")
    else:
        flat = torch.frombuffer(data, dtype=torch.uint8)
        flat = flat.clone() if len(data) < _RESIZABLE_BELOW else flat
        flat = flat.view(kind)
        tensor = flat.reshape(shape) if strides is None else flat.as_strided(shape, strides)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _reduce_tensor(tensor: Any) -> Any:
    if not tensor.is_cpu:
        raise _ElsewhereError(tensor)
    torch = sys.modules["torch"]
    name = _dtype_names.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.__reduce_ex__(5)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.element_size() == 1:  # torch can't make some of these dtypes contiguous
        plain = plain.view(torch.uint8)
    strides = (
        None
        if plain.is_contiguous() or not _is_dense(plain.shape, plain.stride())
        else plain.stride()
    )
    plain = plain if strides else plain.contiguous()
    if plain.numel() and not plain.data_ptr():  # torch's own pickle would send arbitrary memory
        raise ValueError(
            "a tensor without memory: its storage was freed (untyped_storage().resize_(0)), or it "
            "only "
            "stands for another (torch.func); free a storage after the call that sends it has "
            "returned"
        )
    try:
        # A dimension of 1 or 0 may have any stride; to be viewed as bytes it must be 1.
        data = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    except RuntimeError:  # a torch without NumPy, or a tensor without memory
        return tensor.__reduce_ex__(5)
    is_parameter = type(tensor) is torch.nn.Parameter
    return _rebuild_tensor, (
        pickle.PickleBuffer(data),
        name,
        tuple(tensor.shape),
        tensor.requires_grad,
        is_parameter,
        strides,
    )


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements of an array, which has some, lie side by side, in whichever order of the
    axes."""
    expected = 1
    for stride, length in sorted(
        (stride, length) for stride, length in zip(strides, shape) if length != 1
    ):
        if stride != expected:
            return False
        expected *= length
    return True


def _turn(array: Any, axes: Tuple[int, ...]) -> Any:
    return array.transpose(axes)


def _reduce_array(array: Any) -> Any:
    """
    NumPy's own way keeps C and Fortran order; axes in another order are put in C order, and turned
    back.
    """
    if not array.flags.forc and array.size and array.itemsize:
        strides = [stride // array.itemsize for stride in array.strides]
        if not any(stride % array.itemsize for stride in array.strides) and _is_dense(
            array.shape, strides
        ):
            axes = sorted(range(array.ndim), key=lambda axis: -strides[axis])
            return _turn, (
                array.transpose(axes),
                tuple(axes.index(axis) for axis in range(array.ndim)),
            )
    return array.__reduce_ex__(5)


def _tensor_types() -> Sequence[Any]:
    """Empty if torch is not imported, or not yet as a whole: then there are no tensors."""
    torch = sys.modules.get("torch")
    try:
        types = (torch.Tensor, torch.nn.Parameter)  # type: ignore[union-attr]
        if not _dtype_names:
            _dtype_names.update(
                (getattr(torch, name), name) for name in _DENSE if hasattr(torch, name)
            )
    except AttributeError:
        return ()
    return types


def elsewhere(place: str, device: Any) -> TypeError:
    """The error for a tensor on another device."""
    if str(device) == "meta":
        return TypeError(
            f"{place} is a tensor on device 'meta', which has no data to send: make it on the CPU"
        )
    if str(device).startswith("cuda"):
        return TypeError(
            f"{place} is a tensor on device '{device}', inside what only pickle can send, or in a "
            f"group without "
            f"RINGCAST_GPU_POOL_BYTES: move it with .cpu(), or send it beside that"
        )
    return TypeError(
        f"{place} is a tensor on device '{device}'; ringcast sends those of the CPU and of CUDA "
        f"devices: move it with "
        f".cpu()"
    )


# ---- Finding the place in a value ----------------------------------------------------------------


def _children(path: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """The parts that `value` is pickled as, each with its place."""
    if isinstance(value, dict):
        yield from ((f"{path}[{_names.repr(key)}]", item) for key, item in value.items())
        yield from ((f"a key of {path}", key) for key in value)
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((path + "{...}", item) for item in value)
    elif isinstance(value, slice):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("start", "stop", "step"))
    else:
        _, arguments, *more = value.__reduce_ex__(5)
        yield from ((path, item) for item in arguments)
        state = more[0] if more else None
        for names in state if isinstance(state, tuple) else (state,):  # the dict, and the slots
            yield from ((f"{path}.{name}", item) for name, item in (names or {}).items())


class _Nowhere:
    """A file that drops all data."""

    def write(self, data: Any) -> int:
        return len(data)


def _fails_alike(value: Any, error: Exception) -> bool:
    def reduce(tensor: Any) -> Any:
        if not isinstance(error, _ElsewhereError):
            return _reduce_tensor(tensor)
        # Only this tensor: the frame may carry other tensors of the device.
        if tensor is error.args[0]:
            raise error
        return int, ()

    try:
        _pickler(_Nowhere(), lambda _: None, reduce).dump(value)
    except Exception as raised:
        return raised is error or (type(raised) is type(error) and str(raised) == str(error))
    return False


def _locate(root: Any, error: Exception) -> str:
    """The place of the part that can't be pickled: at each level, the first child that fails as the
    whole did."""
    place, value, seen = "value", root, {id(root)}
    with contextlib.suppress(Exception):  # the value's own code runs here
        for _ in range(_MOST_LEVELS):
            children = (child for child in _children(place, value) if type(child[1]) not in _PLAIN)
            new = (
                child
                for child in itertools.islice(children, _MOST_ITEMS)
                if id(child[1]) not in seen
            )
            place, value = next(child for child in new if _fails_alike(child[1], error))
            seen.add(id(value))
    return place  # here no child fails alike, or the search has reached a limit


def _drop_own_note(error: Exception) -> None:
    """
    Drops the note of Python 3.14 and later about the list of leaves, which the user has never seen.
    """
    notes = getattr(error, "__notes__", None)
    if notes and notes[-1].startswith("when serializing list item"):
        notes.pop()


# ---- There and back ------------------------------------------------------------------------------


def _pickler(
    file: Any,
    buffer_callback: Callable[[pickle.PickleBuffer], Any],
    reduce: Callable[[Any], Any] = _reduce_tensor,
) -> pickle.Pickler:
    pickler = pickle.Pickler(file, 5, buffer_callback=buffer_callback)
    reducers = dict.fromkeys(_tensor_types(), reduce)
    # NumPy's import changes copyreg's table.
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is not None:
        reducers[array] = _reduce_array
    if reducers:
        pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
    return pickler


class _Written(List[bytes]):
    """A file for a pickler, which the pickler writes pieces to."""

    write = list.append


def make_pickler() -> Tuple[
    pickle.Pickler, List[bytes], List[pickle.PickleBuffer], Dict[Any, Any], Any, Any
]:
    """Return a pickler for codec/leaves.c, the list that the pickler writes pieces to, the list of
    buffers, a copy of copyreg's table, copyreg's table, and torch of sys.modules (False: torch is
    half imported)."""
    torch = sys.modules.get("torch")
    written, buffers = _Written(), []  # type: Tuple[_Written, List[pickle.PickleBuffer]]
    table = dict(copyreg.dispatch_table)
    pickler = _pickler(written, buffers.append)
    return (
        pickler,
        written,
        buffers,
        table,
        copyreg.dispatch_table,
        torch if _tensor_types() else torch and False,
    )


def has_met(pickler: pickle.Pickler, containers: Sequence[Any]) -> bool:
    """Whether any of `containers`, none of which is empty, is in the pickler's memo."""
    return not pickler.memo.copy().keys().isdisjoint(map(id, containers))


def explain(root: Any, error: Exception, are_leaves: bool) -> NoReturn:
    """Raise `error`, which pickling `root` or a list of its leaves has raised, with the place in
    `root` in its text."""
    if isinstance(error, _ElsewhereError):
        raise elsewhere(_locate(root, error), error.args[0].device) from None
    with contextlib.suppress(Exception):  # str(error) runs the value's code
        if not isinstance(error, RecursionError) and error.args == (str(error),):
            hint = (
                "; send_bytes() takes any buffer, or send bytes(view)"
                if "memoryview" in str(error)
                else ""
            )
            error.args = (f"{_locate(root, error)}: {error}{hint}",)
    if are_leaves:
        _drop_own_note(error)
    raise error


# ---- Where pickles are turned off ----------------------------------------------------------------

_OFF = (
    "pickles are turned off here (allow_pickle=False, or the environment's RINGCAST_ALLOW_PICKLE=0)"
)
# The most names or keys in a message; the rest is counted.
_MOST_NAMES = 8


def _type_name(kind: type) -> str:
    module = getattr(kind, "__module__", "?")
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _what(value: Any) -> str:
    """A value that only pickle can send, in words."""
    name = _type_name(type(value))
    if name == "numpy.ndarray":
        return f"a numpy.ndarray of dtype {value.dtype}"
    if name in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        return f"a {name} of {value.dtype}, {value.layout}"
    if (
        isinstance(value, (list, tuple, dict, set, frozenset))
        and type(value).__module__ == "builtins"
    ):
        return f"a {name} that holds itself, is nested too deep or stands in the value too often"
    why = why_not(value)
    return f"of type {name} ({why})" if why else f"of type {name}"


def refuse_value(place: str, value: Any) -> NoReturn:
    """Raise that `value` may not be sent."""
    raise PickleRefused(
        errno.EOPNOTSUPP,
        f"{place} is {_what(value)}, which only pickle can send, and {_OFF}. Without it a value "
        f"is made of None, "
        "numbers, text, bytes, tensors and arrays of numbers, lists, tuples, dicts, sets, the "
        "standard library's "
        "containers, dates, times, paths, UUIDs and Decimals, Enums, and of instances of classes "
        "that can be found by "
        "name and have no __reduce__, __getstate__ or the like (docs/codec.md)",
    )


def _names_in(data: bytes) -> Tuple[List[str], bool]:
    """
    The names that a pickle imports, by the opcodes alone; and whether the pickle can be read to the
    end.
    """
    names: Dict[str, None] = {}
    texts: List[str] = []  # pushed last
    memo: Dict[Any, str] = {}
    last = "?"
    try:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name in ("GLOBAL", "INST"):
                names[str(argument).replace(" ", ".")] = None
            elif name == "STACK_GLOBAL":
                names[".".join(["?", "?", *texts][-2:])] = None
            elif name.startswith("EXT"):
                names[f"extension {argument} of copyreg"] = None
            elif name.endswith("PERSID"):
                names["a persistent object"] = None
            elif name == "MEMOIZE":
                memo[len(memo)] = last
            elif name.endswith("PUT"):
                memo[argument] = last
            if name.endswith("GET"):
                last = memo.get(argument, "?")
                texts.append(last)
            elif "UNICODE" in name or "STRING" in name:
                last = str(argument)
                texts.append(last)
            elif name not in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
                last = "?"
            del texts[:-2]
    except Exception:  # the bytes may be anything
        return list(names), False
    return list(names), True


def _list(names: Sequence[str]) -> str:
    shown = [
        *names[:_MOST_NAMES],
        *([f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []),
    ]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def refuse_frame(keys: Sequence[str], data: bytes) -> NoReturn:
    """Raise that a frame is not loaded; `data` is the pickle, or the start of a long pickle."""
    names, is_whole = _names_in(data)
    where = f", for {_list([_names.repr(key) for key in keys])}" if keys else ""
    asks = (
        f"asks for {_list([printable(name) for name in names])}"
        if names
        else "is of built-in types alone"
    )
    more = "" if is_whole else ", as far as it was looked at"
    raise PickleRefused(
        errno.EOPNOTSUPP, f"the frame holds a pickle{where}, which {asks}{more}; {_OFF}"
    )
