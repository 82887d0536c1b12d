# SPDX-License-Identifier: Apache-2.0
"""
NumPy arrays of other dtypes than plain numbers: the dtype as text, and the array over the bytes of
its elements.

The text is NumPy's own (`<M8[ns]`, `|S5`) or, for a structured dtype, JSON. No text names a class
or runs code.
"""

import copy
import functools
import json
import re
from typing import Any, Dict, NoReturn, Optional, Set, Tuple

import numpy as np

# What NumPy writes, and no count of units that is 0: NumPy takes it, and then divides by it.
_UNIT = r"(?:\[(?:[1-9][0-9]{0,8})?(?:[YMWDhms]|[munpfa]s)\])?"
_SIMPLE = re.compile(
    rf"[<>|](?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[mM]8{_UNIT}|([SV]|U)([0-9]{{1,10}}))"
)
# Of an element and of each of its fields: NumPy counts some of them in a C int.
_MOST_BYTES = 2**31 - 1
_MOST_DEPTH = 32
# Open at a time; the decoder recurses, and a thread's stack may be small.
_MOST_BRACKETS = 3 * _MOST_DEPTH
# Of a text: a frame names it again in a few bytes, and each array costs a copy of its names.
_MOST_CHARACTERS = 1 << 16
_KEYS = {"names", "formats", "offsets", "titles", "itemsize", "aligned", "record"}
_encode = json.JSONEncoder(separators=(",", ":")).encode
_proven: Set[str] = set()  # texts from which NumPy makes the same dtype again
_MOST_PROVEN = 1000
_MOST_REMEMBERED = 4096  # characters of a text; the dtypes of the latest 256 such texts stay
# Text by id of a structured dtype, which the entry keeps alive. Of a dtype only the names can
# change; a dtype with fields that have names of their own has no entry.
_told: Dict[int, Tuple[Any, Any, str]] = {}
_MOST_TOLD = 256
_MOST_AXES = (
    32  # the most axes that every NumPy has; the elements need one axis more than the array
)


class _Refused(Exception):
    """A dtype that no text says, or a text that says no dtype. Any other exception is a signal
    handler's."""


def _need(holds: bool) -> None:
    if not holds:
        raise _Refused


def _refuse(_: str) -> NoReturn:
    raise _Refused


def _int(digits: str) -> int:
    _need(len(digits) <= len(str(_MOST_BYTES)))
    return int(digits)


_decode = json.JSONDecoder(parse_int=_int, parse_float=_refuse, parse_constant=_refuse).decode


def _state(dtype: Any, depth: int = 0) -> Any:
    """The dtype in JSON: a str, [of an element, shape], or a dict of fields."""
    _need(depth < _MOST_DEPTH and not dtype.hasobject and dtype.metadata is None)
    if dtype.subdtype:
        base, shape = dtype.subdtype
        return [_state(base, depth + 1), list(shape)]
    if dtype.names is None:
        _need(_SIMPLE.fullmatch(dtype.str) is not None)
        plain = np.dtype(dtype.str)
        _need(type(plain) is type(dtype) and plain.type is dtype.type)
        return dtype.str
    _need(dtype.type in (np.void, np.record))
    fields = [dtype.fields[name] for name in dtype.names]
    titles = [field[2] if len(field) > 2 else None for field in fields]
    _need(all(title is None or type(title) is str for title in titles))
    return {
        "names": list(dtype.names),
        "formats": [_state(field[0], depth + 1) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": titles,
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
        "record": dtype.type is np.record,
    }


def _dtype(state: Any, depth: int = 0) -> Any:
    """The dtype of a state, which any writer may have sent: NumPy sees what was checked here."""
    _need(depth < _MOST_DEPTH)
    if type(state) is str:
        return _simple(state)
    if type(state) is list:
        _need(len(state) == 2)
        return _subarray(_dtype(state[0], depth + 1), state[1])
    _need(type(state) is dict and state.keys() == _KEYS)
    _need(type(state["formats"]) is list)
    return _structure(state, [_dtype(each, depth + 1) for each in state["formats"]])


def _simple(text: str) -> Any:
    match = _SIMPLE.fullmatch(text)
    _need(match is not None and int(match[2] or 0) * (4 if match[1] == "U" else 1) <= _MOST_BYTES)
    return np.dtype(text)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_BYTES


def _subarray(base: Any, shape: Any) -> Any:
    _need(type(shape) is list and 0 < len(shape) <= _MOST_AXES and base.itemsize > 0)
    most = base.itemsize
    for length in shape:
        _need(_is_size(length))
        most *= max(length, 1)
        _need(most <= _MOST_BYTES)
    return np.dtype((base, tuple(shape)))


def _structure(state: Any, formats: Any) -> Any:
    names, offsets, titles = state["names"], state["offsets"], state["titles"]
    _need(
        all(type(each) is list and len(each) == len(formats) for each in (names, offsets, titles))
    )
    said = [*names, *(title for title in titles if title is not None)]
    _need(all(type(each) is str for each in said) and len(set(said)) == len(said))
    itemsize, aligned, record = state["itemsize"], state["aligned"], state["record"]
    _need(_is_size(itemsize) and type(aligned) is bool and type(record) is bool)
    for field, offset in zip(formats, offsets):
        _need(_is_size(offset) and offset <= itemsize - field.itemsize)
        # 0: of a structure without fields in older NumPys, which then divide by it.
        step = field.alignment
        _need(not aligned or (step > 0 and offset % step == itemsize % step == 0))
    fields: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    if len(said) > len(names):
        fields["titles"] = titles
    dtype = np.dtype(fields, align=aligned)
    return np.dtype((np.record, dtype)) if record else dtype


def _is_shallow(text: str) -> bool:
    """Whether few brackets are open at a time, up to where the text is no JSON. In linear time."""
    opened = most = 0
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])  # of the strings
    for bracket in re.findall("[][{}]", outside):
        opened += 1 if bracket in "[{" else -1
        most = max(most, opened)
    return most <= _MOST_BRACKETS


def _of_text(text: str) -> Any:
    """The dtype of a text."""
    state: Any = text
    _need(len(text) <= _MOST_CHARACTERS)
    if text[:1] == "{":
        _need(_is_shallow(text))
        try:
            state = _decode(text)
        except json.JSONDecodeError:
            raise _Refused from None
    dtype = _dtype(state)
    _need(_state(dtype) == state)  # NumPy has made what the text says
    return dtype


_remembered = functools.lru_cache(maxsize=256)(_of_text)


def text_of(array: Any) -> Optional[str]:
    """The text of the dtype. None: the bytes of the elements are not all of the array."""
    dtype = array.dtype
    is_plain = type(array) is np.ndarray
    if type(array) is np.recarray:
        is_plain = not vars(array) and (dtype.names is None or dtype.type is np.record)
    if not is_plain or dtype.itemsize == 0 or array.ndim >= _MOST_AXES:
        return None
    told = _told.get(id(dtype))
    if told is not None and told[0] is dtype and told[1] == dtype.names:
        return told[2]
    try:
        state = _state(dtype)
        if isinstance(state, str):
            return state if np.dtype(state) == dtype else None
        text = _encode(state)
        if text not in _proven:
            _of_text(text)
            if len(_proven) < _MOST_PROVEN:
                _proven.add(text)
    except _Refused:
        return None
    if (
        len(text) <= _MOST_REMEMBERED
        and isinstance(state, dict)
        and not any(map(_has_names, state["formats"]))
    ):
        if len(_told) >= _MOST_TOLD:
            _told.clear()
        _told[id(dtype)] = dtype, dtype.names, text
    return text


def _has_names(state: Any) -> bool:
    return _has_names(state[0]) if isinstance(state, list) else isinstance(state, dict)


def make(text: str, elements: Any, is_record: bool, known: Dict[str, Any]) -> Any:
    """
    The array over `elements`, an array of uint8 with an element along the last axis. None: there is
    no such array.

    `known`: the dtypes of the frame by text, since a frame may name a text for each array. A copy
    shares the fields; renaming the fields of an array's dtype leaves the dtypes of further arrays
    unchanged.
    """
    try:
        if text not in known:
            # Of fields with names of their own, a copy shares the names.
            is_flat = text.count("{") <= 1
            known[text] = (_remembered if is_flat and len(text) <= _MOST_REMEMBERED else _of_text)(
                text
            )
    except _Refused:
        return None
    dtype = copy.copy(known[text]) if text[:1] == "{" else known[text]
    if type(elements) is not np.ndarray or elements.dtype != np.uint8 or elements.ndim == 0:
        return None
    if not 0 < dtype.itemsize == elements.shape[-1] or (
        elements.size > 1 and elements.strides[-1] != 1
    ):
        return None
    array = elements.view(dtype)[..., 0]
    return array.view(np.recarray) if is_record else array
