# SPDX-License-Identifier: Apache-2.0
"""Replaces an engine's classes and functions by ringcast's, and undoes that: shared by the drop-ins
for vLLM and SGLang. Each has a table of the names to replace, with the signatures that fit
ringcast's own; here are the versions that were tested."""

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import os
import sys
import threading
import types
import warnings
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

import ringcast
from ringcast._options import switch

# The versions that `make vllm-compat` and `make sglang-compat` have passed.
TESTED = {"vLLM": ("0.32.0", "0.33.0"), "SGLang": ("0.5.22", "0.5.23")}


def signature_of(function: Any) -> Optional[str]:
    """Without annotations, as in the tables. None: `function` is None, or has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


class Caller(NamedTuple):
    """The drop-in that asks: for `engine`, a name for people and the package of that name in lower
    letters."""

    engine: str
    variable: str  # of the environment
    logger: Callable[[], Any]

    def is_strict(self) -> bool:
        """Whether an untested version is left alone."""
        return switch(self.variable)[0] == "strict"

    def is_tested(self) -> bool:
        """A build's own suffix, as in 0.33.0+cpu, is of no account."""
        return self._version().partition("+")[0] in TESTED[self.engine]

    def _version(self) -> str:
        package = self.engine.lower()
        version = getattr(sys.modules.get(package), "__version__", None)
        if version is None:
            try:
                version = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                version = "of an unknown version"
        return str(version)

    def tell_in_place(self, parts: str) -> None:
        """
        An operator then sees in the engine's log, once for each process, that ringcast is there.
        """
        back = f"unset {self.variable}" if os.environ.get(self.variable) else "uninstall()"
        text = "ringcast %s is in place of %s, in %s %s; to go back: %s"
        self.logger().info(text, ringcast.__version__, parts, self.engine, self._version(), back)

    def tell_untested(self, stacklevel: int) -> None:
        """Of a version with known signatures."""
        untested = (
            f"ringcast was not tested with {self.engine} {self._version()}, but with "
            f"{' and '.join(TESTED[self.engine])}"
        )
        if self.is_strict():
            text = (
                "%s, and leaves all as it is, because %s=strict. Take a tested version, or a newer "
                "ringcast"
            )
            self.logger().error(text, untested, self.variable)
        else:
            text = (
                f"{untested}. It is in place where the signatures fit. Compare the results with "
                f"those without "
                f"ringcast, take a tested version, or set {self.variable}=strict, which leaves an "
                f"untested "
                "version as it is"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)


class Replacements:
    """
    The replacements in the modules of `engine`, a package. True: there are some. The caller holds
    `lock` if several threads may call.
    """

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
        """
        Call `put` with the loaded modules among `names` now, and with each of the rest as soon as
        the module has run, before any import from the module. The calls hold `lock`, and end with
        take_out().
        """

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
        """Replace `original` in every module, under any name; a later import gets `ours` from the
        defining module. take_out() restores the original in the engine's modules, and in each other
        module that had the original."""
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
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[types.ModuleType] = None,
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

    def _run(
        self, exec_module: Callable[[types.ModuleType], None], module: types.ModuleType
    ) -> None:
        exec_module(module)
        self._put(module)


def _places(thing: Any) -> List[Tuple[str, Dict[str, Any], str]]:
    """The modules outside ringcast that hold `thing`: (module's name, module's names, the name of
    `thing` there)."""
    own = __name__.partition(".")[0]
    found = []
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and module_name.partition(".")[0] != own:
            found += [
                (module_name, vars(module), name)
                for name, value in list(vars(module).items())
                if value is thing
            ]
    return found
