# SPDX-License-Identifier: Apache-2.0
"""
Which classes travel by their name and the state of their instances, and how a name becomes a class
again.

An instance travels as its slots and its __dict__ if pickle's default way takes these and nothing
else: no class in the line changes how instances are pickled or made. msgspec.Structs, namedtuples
and Enums have ways of their own. The class is found by module and qualified name. An instance made
from a frame equals the unpickled instance. Each class is examined once: later changes of the class
have no effect.
"""

import copyreg
import dataclasses
import enum
import errno
import struct
import sys
import types
from typing import Any, Dict, Optional, Sequence, Tuple

from ringcast._allowed import Allowed, is_class, names_in, printable
from ringcast._ringcast import _intern
from ringcast.exceptions import ProtocolError

# enum ringcast_class of ringcast/object.h; SCALAR is for this package alone. DATACLASS: the state
# has these names, all of them; INSTANCE: the slots by name, then the __dict__.
DATACLASS, STRUCT, NAMEDTUPLE, ENUM, INSTANCE = 1, 2, 3, 4, 5
SCALAR = 0

# (kind, names of the values, the text for the frame, the type's DLPack dtype, which names are
# slots)
Description = Tuple[int, Tuple[str, ...], bytes, Optional[Tuple[int, int]], Tuple[str, ...]]

# What changes how instances of a class are pickled, made or read. Pickle asks the instance for some
# of these, so __getattr__ may answer. An instance with __dlpack__ may be an array of a device.
_OWN_WAYS = (
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getattribute__",
    "__getattr__",
    "__class__",
    "__dlpack__",
)

# Py_TPFLAGS_IS_ABSTRACT: the class has abstract methods, so no instance can be made.
# Py_TPFLAGS_HEAPTYPE: the class is no static one of C.
_ABSTRACT, _HEAP = 1 << 20, 1 << 9

# The most names that a frame tells of an instance once for all, and the most bytes with them; more
# are keys of a dict. The receiver keeps the names of a class, and a frame may hold any.
_MOST_NAMES, _MOST_TEXT = 200, 8192

# The most characters of a class's name: a class of a longer name travels in a pickle.
_MOST_NAME = 1000

_DLPACK_CODES = {"b": 6, "i": 0, "u": 1, "f": 2, "c": 5}


class Unbound(LookupError):
    """A class is not to be found by its name, or not yet."""


def _has_own_ways(cls: type, names: Sequence[str], is_whole: bool = False) -> bool:
    """
    Whether `cls` or a parent, other than object and tuple, defines one of `names`. `is_whole`: the
    methods that dataclasses adds do not count, since an instance is its fields.
    """
    for parent in cls.__mro__:
        for name in () if parent is object or parent is tuple else names:
            found = parent.__dict__.get(name)
            if found is not None and not (
                is_whole and getattr(found, "__module__", None) == "dataclasses"
            ):
                return True
    return cls in copyreg.dispatch_table


def _named(module: Any, qualname: str) -> Any:
    """module.qualname, or None. Runs no code: a lazy module must not load here."""
    found = module
    for part in qualname.split("."):
        found = names_in(found).get(part)
    return found


def _is_found(cls: type) -> bool:
    names = (cls.__module__, cls.__qualname__)
    if not all(type(name) is str and "\0" not in name for name in names):
        return False
    return _named(sys.modules.get(cls.__module__), cls.__qualname__) is cls


def _slots(cls: type) -> Tuple[str, ...]:
    """The names of all slots of the class and its parents, as attributes; several of one name count
    once."""
    return tuple(dict.fromkeys(copyreg._slotnames(cls)))  # type: ignore[attr-defined]


def _is_set_by_code(cls: type, name: str) -> bool:
    """
    Whether setting the attribute runs code. Unpickling stores the value in the instance's __dict__.
    """
    found = next((vars(parent)[name] for parent in cls.__mro__ if name in vars(parent)), None)
    return hasattr(type(found), "__set__")


def _own_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    """The fields, if the class itself is a dataclass."""
    if "__dataclass_fields__" not in cls.__dict__:
        return None
    return tuple(field.name for field in dataclasses.fields(cls))


def _has_hidden_state(cls: type) -> bool:
    """Whether an instance holds more than a __dict__ and slots: object.__reduce_ex__ looks at the
    size, too."""
    if not all(parent.__flags__ & _HEAP for parent in cls.__mro__[:-1]):
        return True
    pointers = len(copyreg._slotnames(cls))  # type: ignore[attr-defined]
    # Below 0: not in the instance.
    pointers += (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return bool(
        cls.__itemsize__
    ) or cls.__basicsize__ > object.__basicsize__ + pointers * struct.calcsize("P")


def _instance_slots(cls: Any) -> Optional[Tuple[str, ...]]:
    """The slots, if the default way of pickle takes these and the __dict__, and sets them without
    running code."""
    if cls is types.SimpleNamespace:  # its own __reduce__ does the same
        return ()
    slots, fields = _slots(cls), _own_fields(cls)
    is_whole = fields is not None and set(slots) == set(fields) and not cls.__dictoffset__
    if (
        cls.__new__ is not object.__new__
        or _has_own_ways(cls, _OWN_WAYS, is_whole)
        or _has_hidden_state(cls)
    ):
        return None
    dict_of = next(
        (vars(parent)["__dict__"] for parent in cls.__mro__ if "__dict__" in vars(parent)), None
    )
    if cls.__dictoffset__ and not isinstance(dict_of, types.GetSetDescriptorType):
        return None
    # Unpickling sets slots by the class's __setattr__; dataclasses makes one for a frozen class.
    is_plain = cls.__setattr__ is object.__setattr__ or (
        is_whole and cls.__dataclass_params__.frozen
    )
    return slots if is_plain or not slots else None


def _struct_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    if set(_slots(cls)) - {"__weakref__"} != set(cls.__struct_fields__):
        return None  # its own pickle leaves out the __dict__, if there is one
    if type(cls).__call__ is not type(sys.modules["msgspec"].Struct).__call__:
        return None  # unpickling calls the class
    lines = [
        parent for parent in cls.__mro__[:-1] if parent.__module__.partition(".")[0] != "msgspec"
    ]
    if any(
        name in parent.__dict__ for parent in lines for name in (*_OWN_WAYS, "__new__", "__init__")
    ):
        return None
    return tuple(cls.__struct_fields__) if cls not in copyreg.dispatch_table else None


def _enum_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    """() if members are pickled by Enum's own way, by value or by name."""
    is_own = (
        getattr(cls.__reduce_ex__, "__module__", None) == "enum"
        and cls not in copyreg.dispatch_table
    )
    return () if is_own else None


def _namedtuple_fields(cls: Any) -> Optional[Tuple[str, ...]]:
    names = cls.__dict__.get("_fields") if cls.__bases__ == (tuple,) else None
    if (
        type(names) is not tuple
        or not all(type(name) is str for name in names)
        or cls.__dictoffset__
    ):
        return None
    # Both methods must be collections' own: a __new__ by hand may do more.
    made_by = [
        getattr(getattr(cls, way), "__module__", None) for way in ("__new__", "__getnewargs__")
    ]
    if made_by != ["namedtuple_" + cls.__name__, "collections"]:
        return None
    return (
        None
        if _has_own_ways(cls, tuple(way for way in _OWN_WAYS if way != "__getnewargs__"))
        else names
    )


def _scalar_dtype(cls: type) -> Optional[Tuple[int, int]]:
    """DLPack's code and bits of a NumPy scalar type."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(cls, numpy.generic) or cls.__module__ != "numpy":
        return None
    dtype = numpy.dtype(cls)
    if dtype.type is not cls or dtype.kind not in _DLPACK_CODES or dtype.char in "gG":
        return None
    return _DLPACK_CODES[dtype.kind], dtype.itemsize * 8


def _is_struct(cls: type) -> bool:
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and issubclass(cls, getattr(msgspec, "Struct", ()))


def _kind(cls: type) -> int:
    """The kind of class that `cls` looks like."""
    if isinstance(cls, enum.EnumMeta):
        return ENUM
    if any("_fields" in parent.__dict__ and tuple in parent.__bases__ for parent in cls.__mro__):
        return NAMEDTUPLE
    return STRUCT if _is_struct(cls) else INSTANCE


_NAMES = {
    ENUM: _enum_fields,
    NAMEDTUPLE: _namedtuple_fields,
    STRUCT: _struct_fields,
    INSTANCE: _instance_slots,
}


def _text(cls: type, names: Sequence[str]) -> Optional[bytes]:
    """What a frame says of the class; None: a name can't be said."""
    if (
        any("\0" in name for name in names)
        or len(cls.__module__) + len(cls.__qualname__) > _MOST_NAME
    ):
        return None
    try:
        return "\0".join((cls.__module__, cls.__qualname__, *names)).encode()
    except UnicodeEncodeError:
        return None


def describe(cls: type) -> Optional[Description]:
    """How instances of the class travel; None: in a pickle."""
    scalar = _scalar_dtype(cls)
    if scalar is not None:
        return SCALAR, (), b"", scalar, ()
    if not _is_found(cls):
        if cls.__flags__ & _HEAP:
            raise Unbound("the module may be at work, and bind the name later")
        return None
    if cls.__flags__ & _ABSTRACT:
        return None
    kind = _kind(cls)
    names = _NAMES[kind](cls)
    text = None if names is None else _text(cls, names)
    if names is None or text is None:
        return None
    names = tuple(sys.intern(name) for name in names)
    return kind, names, text, None, names if kind in (STRUCT, INSTANCE) else ()


def _is_shape(cls: type, names: Tuple[str, ...], slots: Tuple[str, ...]) -> bool:
    """Whether the state of an instance may have exactly these names, each to be set without running
    code."""
    fields = _own_fields(cls)
    if fields is not None and set(fields) != set(names):
        return False  # so that two versions of a dataclass are told apart
    if not set(slots) <= set(names) or len(set(names)) < len(names):
        return False
    attributes = set(names) - set(slots)
    if attributes and not cls.__dictoffset__:
        return False
    return not any(name in _OWN_WAYS or _is_set_by_code(cls, name) for name in attributes)


def shape(cls: type, keys: Optional[Tuple[Any, ...]]) -> Optional[Description]:
    """
    How instances of the class travel whose slots are all set, and whose __dict__ has these keys in
    this order; None: as a dict. Without keys: those of a dataclass that has all its fields and
    nothing else.
    """
    slots, fields = _instance_slots(cls), _own_fields(cls)
    if keys is None and fields is not None:
        keys = tuple(sys.intern(name) for name in fields if name not in (slots or ()))
    if (
        slots is None
        or keys is None
        or not all(type(key) is str and _intern(key) is key for key in keys)
    ):
        return None
    names = slots + keys
    text = _text(cls, names) if len(names) <= _MOST_NAMES and _is_shape(cls, names, slots) else None
    if text is None or len(text) > _MOST_TEXT:
        return None
    return DATACLASS, tuple(_intern(name) for name in names), text, None, slots


_KIND_NAMES = {
    DATACLASS: "an instance",
    STRUCT: "a msgspec.Struct",
    NAMEDTUPLE: "a namedtuple",
    ENUM: "an Enum",
    INSTANCE: "an instance",
}


def why_not(value: Any) -> Optional[str]:
    """
    Why a value that looks like an instance of a class of the user's does not travel by name; None:
    it does not.
    """
    cls = type(value)
    kind = _kind(cls)
    if kind == INSTANCE and _has_hidden_state(cls):
        return None
    looks = _KIND_NAMES[kind]
    if not _is_found(cls):
        return f"{looks} that is not to be found by this name"
    if describe(cls) is None:
        return f"{looks} of a class that says itself how it is pickled, made or read"
    if isinstance(value, enum.Enum):
        return "no member by name"
    if kind == STRUCT and getattr(value, "__dict__", None):
        return (
            f"{looks} that has attributes beside its fields, and a __post_init__ that may set them"
        )
    return (
        f"{looks} that holds itself, lacks a field, is nested too deep or is of one class too many"
    )


# ---- Members of a Flag that are made of others ---------------------------------------------------


def composite(member: Any) -> Optional[int]:
    """The value that stands for a member without a name; None: the member needs a pickle."""
    cls = type(member)
    if (
        not isinstance(member, enum.Flag)
        or getattr(cls._missing_, "__func__", None) not in _MISSING
    ):
        return None
    value = member._value_
    return value if type(value) is int else None


_MISSING = {
    vars(cls)["_missing_"].__func__ for cls in (enum.Flag, enum.IntFlag) if "_missing_" in vars(cls)
}


# The most bits of a member's value, unless the Flag has one of more.
_MOST_BITS = 64


def member_of(cls: Any, value: int) -> Any:
    """The member of a Flag with this value. An IntFlag keeps the member, of any bits, for good.
    ValueError: none."""
    if not issubclass(cls, enum.Flag) or getattr(cls._missing_, "__func__", None) not in _MISSING:
        raise ProtocolError(
            errno.EPROTO,
            f"the frame holds a member of {cls!r} by value: here it has none without name",
        )
    if value.bit_length() > _MOST_BITS and value.bit_length() > max(
        each._value_.bit_length() for each in cls
    ):
        raise ValueError(f"a value of {value.bit_length()} bits")
    return cls(value)


# ---- Found by name -------------------------------------------------------------------------------


def _find_module(name: str, holds: str, may_import: bool) -> Any:
    if name not in sys.modules:
        if not may_import:
            raise ImportError(
                f"{holds}, and that module is not imported here: import it before; where pickles "
                f"are turned off, no "
                "frame can make it be",
                name=name,
            )
        if not all(name.split(".")):  # a finder may fail at it
            raise ValueError("a module without a name")
        try:
            __import__(name)
        except ImportError as error:
            raise ImportError(
                f"{holds}, and its module can't be imported here: {printable(str(error), 1000)}",
                name=name,
            ) from error
    return sys.modules.get(name)


def _described_as(cls: Any, kind: int, names: Tuple[str, ...]) -> Optional[Description]:
    """
    How instances of the kind, with these names, are made; None: the class is of another kind here.
    """
    try:
        description = describe(cls) if is_class(cls) else None
    except Unbound:
        return None
    if description is None or description[0] != (INSTANCE if kind == DATACLASS else kind):
        return None
    if kind not in (DATACLASS, INSTANCE):
        return description
    return (kind, tuple(_intern(name) for name in names), *description[2:])


def find(
    kind: int, text: bytes, may_import: bool, known: Dict[bytes, Any]
) -> Tuple[type, Description]:
    """The class that a frame names, and its description, with the sender's kind and names; `known`
    will hold both.

    PickleRefused: `known` is an Allowed, and does not allow it. ImportError: the module can't be
    imported here, or is not imported and must not be, or lacks the name. ProtocolError: the name is
    no such class here, or has other fields. ValueError: an invalid text.
    """
    module_name, *rest = text.decode().split("\0")
    if not rest or kind not in _KIND_NAMES:
        raise ValueError("it names no class")
    qualname, *names = rest
    if kind == DATACLASS and (len(names) > _MOST_NAMES or len(text) > _MOST_TEXT):
        raise ValueError("too many names")
    if isinstance(known, Allowed):
        known.require(_named(sys.modules.get(module_name), qualname), module_name, qualname)
    holds = f"the frame holds an instance of {printable(module_name + '.' + qualname)}"
    cls = _named(_find_module(module_name, holds, may_import), qualname)
    if cls is None:
        # Each program has a __main__ of its own.
        remedy = "keep it in a module that both sides import"
        if module_name != "__main__":
            remedy = "both sides need the same version of it"
        raise ImportError(
            f"{holds}, and that module has no such class here: {remedy}", name=module_name
        )
    if len(module_name) + len(qualname) > _MOST_NAME:
        raise ValueError("too long a name")
    description = _described_as(cls, kind, tuple(names))
    if description is None:
        raise ProtocolError(
            errno.EPROTO,
            f"{holds}, as of {_KIND_NAMES[kind]} that is its state and nothing else: here it is "
            f"not",
        )
    # The class's names are not compared: a class may have two, and __main__ is __mp_main__ in a
    # process that multiprocessing spawns.
    wanted = description[1]
    is_right = wanted == tuple(names)
    if kind == DATACLASS:
        is_right, wanted = (
            _is_shape(cls, wanted, description[4]),
            _own_fields(cls) or description[4],
        )
    elif kind == INSTANCE:
        wanted = description[4]
        is_right = sorted(wanted) == sorted(names)  # __slots__ may be a set
    if not is_right:
        fields = [printable(", ".join(of), 1000) or "none" for of in (names, wanted)]
        raise ProtocolError(
            errno.EPROTO,
            f"{holds} with the fields {fields[0]}; here they are {fields[1]}: both sides need the "
            f"same version of it",
        )
    return cls, description
