# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays of other dtypes than plain numbers: the dtype as text, and the array over the bytes of its elements.

The text is NumPy's own (`<M8[ns]`, `|S5`) or, for a structured dtype, JSON. No text names a class or runs code.
"""

import copy
import functools
import json
import re
from typing import Any, Dict, Optional, Set, Tuple

import numpy as np

# No count of units that is 0: NumPy takes it, and then divides by it.
_SIMPLE = re.compile(r"[<>|=]?[?bBiufcmMSUV][0-9]{0,9}(\[([1-9][0-9]{0,8})?[a-zA-Z]{1,7}\])?")
_MOST_DEPTH = 32
_MOST_BRACKETS = 3 * _MOST_DEPTH  # open at a time; json.loads() recurses, and a thread's stack may be small
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_encode = json.JSONEncoder(separators=(",", ":")).encode
_proven: Set[str] = set()  # texts from which NumPy makes the same dtype again
_MOST_PROVEN = 1000
_MOST_REMEMBERED = 4096  # characters of a text; the dtypes of the latest 256 such texts stay
# Text by id of a structured dtype, which the entry keeps alive. Of a dtype only the names can change; a dtype with
# fields that have names of their own has no entry.
_told: Dict[int, Tuple[Any, Any, str]] = {}
_MOST_TOLD = 256
_MOST_AXES = 32  # the most axes that every NumPy has; the elements need one axis more than the array


def _state(dtype: Any, depth: int = 0) -> Any:
    """The dtype in JSON: a str, [of an element, shape], or a dict of fields. Raises ValueError if JSON lacks a part."""
    if depth == _MOST_DEPTH or dtype.hasobject or dtype.metadata is not None:
        raise ValueError(dtype)
    if dtype.subdtype:
        base, shape = dtype.subdtype
        return [_state(base, depth + 1), list(shape)]
    if dtype.names is None:
        if not _SIMPLE.fullmatch(dtype.str) or type(np.dtype(dtype.str)) is not type(dtype):
            raise ValueError(dtype)
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_state(field[0], depth + 1) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
        "record": dtype.type is np.record,
    }


def _dtype(state: Any, depth: int = 0) -> Any:
    """The dtype of a state, which any writer may have sent. Raises the exception that NumPy raises."""
    if depth == _MOST_DEPTH:
        raise ValueError("a dtype that is nested too deep")
    if isinstance(state, str):
        if not _SIMPLE.fullmatch(state):
            raise ValueError("no dtype")
        return np.dtype(state)
    if isinstance(state, list):
        base, shape = state
        return np.dtype((_dtype(base, depth + 1), tuple(shape)))
    fields: Any = {key: state[key] for key in ("names", "offsets", "itemsize")}
    fields["formats"] = [_dtype(each, depth + 1) for each in state["formats"]]
    if any(title is not None for title in state["titles"]):
        fields["titles"] = state["titles"]
    dtype = np.dtype(fields, align=state["aligned"])
    return np.dtype((np.record, dtype)) if state["record"] else dtype


def _of_text(text: str) -> Any:
    """The dtype of a text. Raises as _dtype() does."""
    if text[:1] != "{":
        return _dtype(text)
    opened = 0
    for bracket in re.findall(r"[][{}]", _STRING.sub("", text)):
        opened += 1 if bracket in "[{" else -1
        if opened > _MOST_BRACKETS:
            raise ValueError("a dtype that is nested too deep")
    return _dtype(json.loads(text))


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
            if _state(_dtype(json.loads(text))) != state:
                return None
            if len(_proven) < _MOST_PROVEN:
                _proven.add(text)
    except (TypeError, ValueError):  # a title that JSON lacks, a dtype of another library
        return None
    if len(text) <= _MOST_REMEMBERED and isinstance(state, dict) and not any(map(_has_names, state["formats"])):
        if len(_told) >= _MOST_TOLD:
            _told.clear()
        _told[id(dtype)] = dtype, dtype.names, text
    return text


def _has_names(state: Any) -> bool:
    return _has_names(state[0]) if isinstance(state, list) else isinstance(state, dict)


def make(text: str, elements: Any, is_record: bool, known: Dict[str, Any]) -> Any:
    """The array over `elements`, an array of uint8 with an element along the last axis. Raises for any other state.

    `known`: the dtypes of the frame by text, since a frame may name a text for each array. A copy shares the fields;
    renaming the fields of an array's dtype leaves the dtypes of further arrays unchanged.
    """
    try:
        if text not in known:
            is_flat = text.count("{") <= 1  # of fields with names of their own, a copy shares the names
            known[text] = (_remembered if is_flat and len(text) <= _MOST_REMEMBERED else _of_text)(text)
        dtype = copy.copy(known[text]) if text[:1] == "{" else known[text]
    except Exception as error:  # of any kind, by NumPy
        raise ValueError("no dtype") from error
    if type(elements) is not np.ndarray or elements.dtype != np.uint8 or elements.ndim == 0:
        raise ValueError("elements that are no array of uint8")
    if dtype.hasobject or not 0 < dtype.itemsize == elements.shape[-1]:
        raise ValueError("elements of another size")
    array = elements.view(dtype)[..., 0]
    return array.view(np.recarray) if is_record else array
