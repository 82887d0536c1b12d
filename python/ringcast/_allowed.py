# SPDX-License-Identifier: Apache-2.0
"""Which classes a frame may name where pickles are turned off."""

import errno
import os
import types
from typing import Any, Dict, Iterable, Mapping, NoReturn, Optional, Set, Tuple

from ringcast._ringcast import _printable
from ringcast.exceptions import PickleRefused

# The most entries of a cache, two for a class, as in codec/classes.c: a frame may name a class in
# many ways.
_MOST_KNOWN = 2048

# The descriptors of type and ModuleType: reading an attribute may run code of a metaclass or a lazy
# module.
_module_of, _qualname_of, _line_of, _dict_of_class = (
    type.__dict__[name].__get__ for name in ("__module__", "__qualname__", "__mro__", "__dict__")
)
_dict_of_module = vars(types.ModuleType)["__dict__"].__get__

# The program's own file, in a process that multiprocessing spawns.
_MAIN = {"__mp_main__": "__main__"}

# Classes of the standard library whose instances are what they hold.
_ALWAYS = (
    "types:SimpleNamespace",
    "collections:UserDict",
    "collections:UserList",
    "collections:UserString",
)


def is_class(value: Any) -> bool:
    """Like isinstance(value, type), but without reading __class__ of the value."""
    return issubclass(type(value), type)


def names_in(holder: Any) -> Mapping[str, Any]:
    """
    The names in a class or module; none for objects of other types. Runs no code of the holder.
    """
    names: Mapping[str, Any] = {}
    if is_class(holder):
        names = _dict_of_class(holder)
    elif issubclass(type(holder), types.ModuleType):
        names = _dict_of_module(holder) or {}
    return names


def printable(text: str, most: int = 100) -> str:
    """
    For messages: text of another process, which may be long, and hold what controls a terminal.
    """
    return _printable(text if len(text) <= most else text[: most - 3] + "...")


class _Rules:
    """Modules, and classes: by themselves or by name."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._modules: Set[str] = set()
        self._names: Set[str] = set()
        self._classes: Dict[int, type] = {}  # by id: a metaclass may say that two classes are equal
        self.add(items)

    def add(self, items: Iterable[Any]) -> None:
        """All of the items, or none."""
        items = [item.__name__ if isinstance(item, types.ModuleType) else item for item in items]
        for item in items:
            if not isinstance(item, (str, type)):
                raise TypeError(
                    f"a class, a module or the name of one is allowed, not {type(item).__name__}"
                )
            if isinstance(item, str) and not _is_name(item):
                raise ValueError(
                    f"{item!r} is no name of a module ('package.module') or class "
                    f"('package.module:Class')"
                )
        for item in items:
            if isinstance(item, type):
                self._classes[id(item)] = item
                continue
            item = _MAIN.get(item, item)
            self._names.add(item.replace(":", "."))
            if ":" not in item:
                self._modules.add(item)

    def allow_class(self, cls: Optional[type], name: str) -> bool:
        return id(cls) in self._classes or name in self._names

    def allow_module(self, module: str) -> bool:
        while module and module not in self._modules:
            module = module.rpartition(".")[0]
        return bool(module)


def _is_name(text: str) -> bool:
    module, colon, name = text.partition(":")
    parts = module.split(".") + (name.split(".") if colon else [])
    return all(part.isidentifier() for part in parts)


_always, _process = _Rules(_ALWAYS), _Rules()


class Allowed(Dict[bytes, Any]):
    """What the extension knows of the classes that frames have named, of which all are allowed
    (codec/classes.c)."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Tuple[_Rules, ...]) -> None:
        super().__init__()
        self._rules = rules

    def anew(self) -> "Allowed":
        """The same, before any class was named."""
        return Allowed(self._rules)

    def require(self, cls: Any, module: str, name: str) -> None:
        """
        Raise PickleRefused unless a frame may name the class that is here as `module`.`name`; `cls`
        is None if there is none. Runs no code of the class.
        """
        deletes = False
        if is_class(cls):
            module, name = (
                word if type(word) is str else "?" for word in (_module_of(cls), _qualname_of(cls))
            )
            deletes = any("__del__" in _dict_of_class(parent) for parent in _line_of(cls))
        module = _MAIN.get(module, module)
        whole = f"{module}.{name}"
        if any(rules.allow_class(cls, whole) for rules in self._rules):
            return
        if deletes or not any(rules.allow_module(module) for rules in self._rules):
            _refuse(whole, deletes)


def _refuse(name: str, deletes: bool) -> NoReturn:
    name = printable(name)
    what = (
        "the class itself (it has a __del__, so its module is not enough)"
        if deletes
        else "the class or its module"
    )
    raise PickleRefused(
        errno.EOPNOTSUPP,
        f"the frame names the class {name}, which is not allowed here: with pickles turned off, "
        f"give {what} to the "
        "Reader or unpack() (classes=), to ringcast.allow(), or in the environment's "
        "RINGCAST_CLASSES",
    )


_default = ("", Allowed((_always, _process)))


def allowed_classes(classes: Optional[Iterable[Any]]) -> Allowed:
    """Of the argument `classes` of a Reader or unpack(); None: none was given."""
    global _default
    text = os.environ.get("RINGCAST_CLASSES", "")
    if text != _default[0]:
        try:
            rules = _Rules(filter(None, (item.strip() for item in text.split(","))))
        except ValueError as error:
            raise ValueError(f"RINGCAST_CLASSES: {error}") from None
        _default = text, Allowed((_always, _process, rules))
    if len(_default[1]) >= _MOST_KNOWN:
        _default = text, _default[1].anew()
    if classes is None:
        return _default[1]
    if isinstance(classes, (str, type, types.ModuleType)):
        raise TypeError(
            f"classes must be a list or tuple of classes and modules, not {type(classes).__name__}"
        )
    return Allowed((*_default[1]._rules, _Rules(classes)))


def allow(*classes: Any) -> None:
    """Allow frames to name classes, for the rest of this process, where pickles are turned off
    (allow_pickle=False).

    Each argument is a class, or a module: then all classes whose __module__ is that module, or lies
    in that package, except those with a __del__. Or the name of one: "package.module",
    "package.module:Class", "package.module.Class". ValueError: no such name. TypeError: any other
    object.
    """
    _process.add(classes)
