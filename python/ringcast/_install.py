# SPDX-License-Identifier: Apache-2.0
"""Replaces an engine's classes and functions by ringcast's, and undoes that: shared by the drop-ins for vLLM and
SGLang. Each has a table of the names to replace, with the signatures that fit ringcast's own."""

import inspect
import sys
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Tuple


def signature_of(function: Any) -> Optional[str]:
    """Without annotations, as in the tables. None: `function` is None, or has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


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


def _places(thing: Any) -> List[Tuple[str, Dict[str, Any], str]]:
    """The modules outside ringcast that hold `thing`: (module's name, module's names, the name of `thing` there)."""
    own = __name__.partition(".")[0]
    found = []
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and module_name.partition(".")[0] != own:
            found += [(module_name, vars(module), name) for name, value in list(vars(module).items()) if value is thing]
    return found
