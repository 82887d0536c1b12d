# SPDX-License-Identifier: Apache-2.0
"""Which classes travel by their name and the values of their fields, and how a name becomes a class again.

A dataclass, msgspec.Struct, namedtuple or Enum does if an instance is its fields and nothing else, the class is found
by module and qualified name, and the class does not change how instances are pickled or made. An instance made from a
frame equals the unpickled instance. Each class is examined once: later changes of the class have no effect.
"""

import contextlib
import copyreg
import dataclasses
import enum
import errno
import sys
import types
from typing import Any, Dict, List, Optional, Tuple

from ringcast._allowed import Allowed
from ringcast.exceptions import ProtocolError

# enum ringcast_class of ringcast/object.h; SCALAR is for this package alone.
DATACLASS, STRUCT, NAMEDTUPLE, ENUM = 1, 2, 3, 4
SCALAR = 0

# (kind, names of the fields, the text for the frame, the type's DLPack dtype)
Description = Tuple[int, Tuple[str, ...], bytes, Optional[Tuple[int, int]]]

# Methods that change how instances of a class are pickled, made or read.
_OWN_WAYS = (
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getattribute__",
)

# Py_TPFLAGS_IS_ABSTRACT: the class has abstract methods, so no instance can be made.
_ABSTRACT = 1 << 20

_DLPACK_CODES = {"b": 6, "i": 0, "u": 1, "f": 2, "c": 5}


def _has_own_ways(cls: type, names: Tuple[str, ...]) -> bool:
    """Whether `cls` or a parent, other than object and tuple, defines one of `names`. Methods that dataclasses adds do
    not count."""
    for parent in cls.__mro__:
        for name in () if parent in (object, tuple) else names:
            found = parent.__dict__.get(name)
            if found is not None and getattr(found, "__module__", None) != "dataclasses":
                return True
    return cls in copyreg.dispatch_table


def _named(module: Any, qualname: str) -> Any:
    """module.qualname, or None. Runs no code: a lazy module must not load here."""
    found = module
    for part in qualname.split("."):
        try:
            names = object.__getattribute__(found, "__dict__")
        except AttributeError:
            return None
        found = names.get(part) if isinstance(names, (dict, types.MappingProxyType)) else None
    return found


def _is_found(cls: type) -> bool:
    names = (cls.__module__, cls.__qualname__)
    if not all(type(name) is str and "\0" not in name for name in names):
        return False
    return _named(sys.modules.get(cls.__module__), cls.__qualname__) is cls


def _slots(cls: type) -> List[str]:
    """The names of all slots of the class and its parents, as attributes."""
    return list(copyreg._slotnames(cls))  # type: ignore[attr-defined]


def _is_set_by_code(cls: type, name: str) -> bool:
    """Whether setting the attribute runs code. Unpickling stores the value in the instance's __dict__."""
    found = next((vars(parent)[name] for parent in cls.__mro__ if name in vars(parent)), None)
    return hasattr(type(found), "__set__")


def _dataclass_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    names = tuple(field.name for field in dataclasses.fields(cls))
    if cls.__new__ is not object.__new__ or _has_own_ways(cls, _OWN_WAYS):
        return None
    slots = _slots(cls)
    if not slots:
        has_place = cls.__dictoffset__ or not names
        return names if has_place and not any(_is_set_by_code(cls, name) for name in names) else None
    if cls.__dictoffset__ or set(slots) != set(names):
        return None
    # Unpickling sets slots by the class's __setattr__; dataclasses makes one for a frozen class.
    is_plain = cls.__setattr__ is object.__setattr__ or cls.__dataclass_params__.frozen
    return names if is_plain else None


def _struct_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    if cls.__dictoffset__ or set(_slots(cls)) - {"__weakref__"} != set(cls.__struct_fields__):
        return None
    lines = [parent for parent in cls.__mro__[:-1] if parent.__module__.partition(".")[0] != "msgspec"]
    if any(name in parent.__dict__ for parent in lines for name in (*_OWN_WAYS, "__new__", "__init__")):
        return None
    return tuple(cls.__struct_fields__) if cls not in copyreg.dispatch_table else None


def _enum_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    """() if members are pickled by Enum's own way, by value or by name."""
    is_own = getattr(cls.__reduce_ex__, "__module__", None) == "enum" and cls not in copyreg.dispatch_table
    return () if is_own else None


def _namedtuple_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    names = cls.__dict__.get("_fields")
    if type(names) is not tuple or not all(type(name) is str for name in names) or cls.__dictoffset__:
        return None
    # Both methods must be collections' own: a __new__ by hand may do more.
    made_by = [getattr(getattr(cls, way), "__module__", None) for way in ("__new__", "__getnewargs__")]
    if made_by != ["namedtuple_" + cls.__name__, "collections"]:
        return None
    return None if _has_own_ways(cls, tuple(way for way in _OWN_WAYS if way != "__getnewargs__")) else names


def _scalar_dtype(cls: type) -> Optional[Tuple[int, int]]:
    """DLPack's code and bits of a NumPy scalar type."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(cls, numpy.generic) or cls.__module__ != "numpy":
        return None
    dtype = numpy.dtype(cls)
    if dtype.type is not cls or dtype.kind not in _DLPACK_CODES or dtype.char in "gG":
        return None
    return _DLPACK_CODES[dtype.kind], dtype.itemsize * 8


def _kind_and_fields(cls: Any) -> Optional[Tuple[int, Tuple[str, ...]]]:
    msgspec = sys.modules.get("msgspec")
    kind, names = 0, None
    if cls.__flags__ & _ABSTRACT:
        return None
    if isinstance(cls, enum.EnumMeta):
        kind, names = ENUM, _enum_fields(cls)
    elif "__dataclass_fields__" in cls.__dict__:
        kind, names = DATACLASS, _dataclass_fields(cls)
    elif cls.__bases__ == (tuple,) and "_fields" in cls.__dict__:
        kind, names = NAMEDTUPLE, _namedtuple_fields(cls)
    elif msgspec is not None and issubclass(cls, getattr(msgspec, "Struct", ())):
        kind, names = STRUCT, _struct_fields(cls)
    if names is None or any("\0" in name for name in names):
        return None
    return kind, names


def describe(cls: type) -> Optional[Description]:
    """How instances of the class travel; None: in a pickle."""
    scalar = _scalar_dtype(cls)
    if scalar is not None:
        return SCALAR, (), b"", scalar
    found = _kind_and_fields(cls) if _is_found(cls) else None
    if found is None:
        return None
    kind, names = found
    names = tuple(sys.intern(name) for name in names)
    try:
        text = "\0".join((cls.__module__, cls.__qualname__, *names)).encode()
    except UnicodeEncodeError:
        return None
    return kind, names, text, None


_KIND_NAMES = {DATACLASS: "a dataclass", STRUCT: "a msgspec.Struct", NAMEDTUPLE: "a namedtuple", ENUM: "an Enum"}


def _looks_like(cls: type) -> Optional[str]:
    """The kind of class that `cls` looks like, among the kinds that travel by name."""
    msgspec = sys.modules.get("msgspec")
    if isinstance(cls, enum.EnumMeta):
        return _KIND_NAMES[ENUM]
    if "__dataclass_fields__" in cls.__dict__:
        return _KIND_NAMES[DATACLASS]
    if any("_fields" in parent.__dict__ and tuple in parent.__bases__ for parent in cls.__mro__):
        return _KIND_NAMES[NAMEDTUPLE]
    if msgspec is not None and issubclass(cls, getattr(msgspec, "Struct", ())):
        return _KIND_NAMES[STRUCT]
    inherits = any("__dataclass_fields__" in parent.__dict__ for parent in cls.__mro__)
    return "a subclass of a dataclass, and none itself" if inherits else None


def _set_slots(value: Any, names: Tuple[str, ...]) -> List[str]:
    found = []
    for name in names:
        with contextlib.suppress(AttributeError):
            object.__getattribute__(value, name)
            found.append(name)
    return found


def why_not(value: Any) -> Optional[str]:
    """Why a value that looks like a dataclass, Struct, namedtuple or Enum does not travel by name; None: the value does
    not look like any of these."""
    cls = type(value)
    looks = _looks_like(cls)
    if looks is None or looks not in _KIND_NAMES.values():
        return looks
    if not _is_found(cls):
        return f"{looks} that is not to be found by this name"
    description = describe(cls)
    if description is None:
        return f"{looks} that is more than its fields, or says itself how it is pickled or made"
    if description[0] == ENUM:
        return "made of several members"
    names = description[1]
    has = object.__getattribute__(value, "__dict__") if cls.__dictoffset__ else _set_slots(value, names)
    for name in names:
        if name not in has:
            return f"{looks}, but this one lacks the field {name!r}"
    for name in has:
        if name not in names:
            return f"{looks}, but this one has {name!r} beside its fields"
    return f"{looks} that holds itself, is nested too deep or is of one class too many"


def find(kind: int, text: bytes, may_import: bool, known: Dict[bytes, Any]) -> Tuple[type, Description]:
    """The class that a frame names, and its description, with the sender's kind and fields; `known` is what will have
    it.

    PickleRefused: `known` is an Allowed, and does not allow it.
    ImportError: the module can't be imported here, or is not imported and must not be, or lacks the name.
    ProtocolError: the name is no such class here, or has other fields. ValueError: an invalid text.
    """
    module_name, *rest = text.decode().split("\0")
    if not rest or kind not in _KIND_NAMES:
        raise ValueError("it names no class")
    qualname, *names = rest
    if isinstance(known, Allowed):
        known.require(_named(sys.modules.get(module_name), qualname), module_name, qualname)
    holds = f"the frame holds an instance of {module_name}.{qualname}"
    if module_name not in sys.modules:
        if not may_import:
            raise ImportError(
                f"{holds}, and that module is not imported here: import it before; where pickles are turned off, no "
                "frame can make it be",
                name=module_name,
            )
        try:
            __import__(module_name)
        except (ImportError, TypeError, ValueError) as error:
            raise ImportError(f"{holds}, and its module can't be imported here: {error}", name=module_name) from error
    cls = _named(sys.modules.get(module_name), qualname)
    if cls is None:
        # Each program has a __main__ of its own.
        remedy = "keep it in a module that both sides import"
        if module_name != "__main__":
            remedy = "both sides need the same version of it"
        raise ImportError(f"{holds}, and that module has no such class here: {remedy}", name=module_name)
    description = describe(cls) if isinstance(cls, type) else None
    if description is None or description[0] != kind:
        raise ProtocolError(
            errno.EPROTO, f"{holds}, as of {_KIND_NAMES[kind]} that is its fields and nothing else: here it is not"
        )
    # The names are not compared: a class may have two, and __main__ is __mp_main__ in a process that multiprocessing
    # spawns.
    if description[1] != tuple(names):
        fields = [", ".join(of) or "none" for of in (names, description[1])]
        raise ProtocolError(
            errno.EPROTO,
            f"{holds} with the fields {fields[0]}; here they are {fields[1]}: both sides need the same version of it",
        )
    return cls, description
