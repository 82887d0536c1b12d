# SPDX-License-Identifier: Apache-2.0
"""Replaces an engine's classes and functions by ringcast's, and undoes that: shared by the drop-ins for vLLM and
SGLang. Each has a table of the names to replace, with the signatures that fit ringcast's own, and a table of the hashes
of their code in the known versions (_known.py)."""

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import threading
import types
import warnings
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import ringcast
from ringcast._syntax import hash_of

# Name -> hash -> the versions that have this code.
Known = Mapping[str, Mapping[str, str]]


def signature_of(function: Any) -> Optional[str]:
    """Without annotations, as in the tables. None: `function` is None, or has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def unknown_code(known: Known, things: Mapping[str, Any]) -> List[str]:
    """The names among `things` whose code is of no known version, or has no source."""

    def apart(name: str) -> List[str]:
        return [other[len(name) + 1 :] for other in known if other.startswith(f"{name}.")]

    return [name for name, thing in things.items() if hash_of(thing, apart(name)) not in known.get(name, ())]


class Caller(NamedTuple):
    """The drop-in that asks: for `engine`, a name for people and the package of that name in lower letters."""

    engine: str
    variable: str  # of the environment
    logger: Callable[[], Any]

    def is_strict(self) -> bool:
        """Whether unknown code is left alone."""
        return os.environ.get(self.variable) == "strict"

    def _engine(self) -> str:
        version = getattr(sys.modules.get(self.engine.lower()), "__version__", "of an unknown version")
        return f"{self.engine} {version}"

    def tell_in_place(self, parts: str) -> None:
        """An operator then sees in the engine's log, once for each process, that ringcast is there."""
        back = f"unset {self.variable}" if os.environ.get(self.variable) else "uninstall()"
        text = "ringcast %s is in place of %s, in %s; to go back: %s"
        self.logger().info(text, ringcast.__version__, parts, self._engine(), back)

    def tell_unknown(self, part: str, names: List[str], stacklevel: int) -> None:
        """Once for each part: its signatures fit, and its code is of no known version."""
        differs = f"{self._engine()}: the code of {', '.join(names)} is that of no known version"
        if self.is_strict():
            self.logger().error(
                "ringcast leaves the %s as they are, because %s=strict: %s. Take a known version, or a newer ringcast",
                *(part, self.variable, differs),
            )
        else:
            text = (
                f"{differs}. The signatures fit, and ringcast is in place for the {part}. Compare the results with "
                f"those without ringcast, take a known version, or set {self.variable}=strict, which leaves unknown "
                "code as it is"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)


class Replacements:
    """The replacements in the modules of `engine`, a package. True: there are some. The caller holds `lock` if several
    threads may call."""

    def __init__(self, engine: str) -> None:
        self.lock = threading.RLock()
        self._engine = engine
        self._undo: List[Callable[[], object]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def at_end(self, undo: Callable[[], object]) -> None:
        """Have take_out() call `undo`, in reverse order."""
        self._undo.append(undo)

    def take_out(self) -> None:
        with self.lock:
            while self._undo:
                self._undo.pop()()

    def when_loaded(self, names: Collection[str], put: Callable[[types.ModuleType], None]) -> None:
        """Call `put` with the loaded modules among `names` now, and with each of the rest as soon as the module has
        run, before any import from the module. The calls hold `lock`, and end with take_out()."""

        def put_if_in_place(module: types.ModuleType) -> None:
            with self.lock:
                if self:
                    put(module)

        finder = _Finder(names, put_if_in_place)
        sys.meta_path.insert(0, finder)
        self.at_end(lambda: sys.meta_path.remove(finder))
        for name in names:
            if name in sys.modules:
                put_if_in_place(sys.modules[name])

    def set(self, cls: Any, name: str, value: Any) -> None:
        """Replace an attribute of a class."""
        before = vars(cls).get(name)
        setattr(cls, name, value)
        self.at_end(lambda: delattr(cls, name) if before is None else setattr(cls, name, before))

    def replace(self, original: Any, ours: Any) -> None:
        """Replace `original` in every module, under any name; a later import gets `ours` from the defining module.
        take_out() restores the original in the engine's modules, and in each other module that had the original."""
        places = _places(original)

        def undo() -> None:
            later = [place for place in _places(ours) if place[0].partition(".")[0] == self._engine]
            for _, names, name in places + later:
                if names.get(name) is ours:
                    names[name] = original

        self.at_end(undo)
        for _, names, name in places:
            names[name] = ours


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `names` by the other finders, and calls `put` when a module has run."""

    def __init__(self, names: Collection[str], put: Callable[[types.ModuleType], None]) -> None:
        self._names, self._put = names, put

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname not in self._names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader.exec_module = functools.partial(self._run, spec.loader.exec_module)  # type: ignore
                return spec
        return None

    def _run(self, exec_module: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
        exec_module(module)
        self._put(module)


def _places(thing: Any) -> List[Tuple[str, Dict[str, Any], str]]:
    """The modules outside ringcast that hold `thing`: (module's name, module's names, the name of `thing` there)."""
    own = __name__.partition(".")[0]
    found = []
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and module_name.partition(".")[0] != own:
            found += [(module_name, vars(module), name) for name, value in list(vars(module).items()) if value is thing]
    return found
