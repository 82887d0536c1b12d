# SPDX-License-Identifier: Apache-2.0
"""ringcast in the place of SGLang's own functions, and out of it again.

What is replaced is looked up where SGLang defines it, and wherever it was imported to by name. A module that is loaded
later gets its replacement as soon as it has run, before anybody imports from it.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import threading
import types
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed

import ringcast
from ringcast._group.config import is_of_value
from ringcast.sglang.pyobj import broadcast_list, broadcast_pyobj, broadcast_tensor_dict

_lock = threading.RLock()


# ---- What is replaced ------------------------------------------------------------------------------------------------


def _instead_of_pyobj(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(data: Any, rank: int, dist_group: Any = None, src: int = 0, force_cpu_device: bool = True) -> Any:
        return broadcast_pyobj(data, rank, dist_group, src, force_cpu_device)

    return replacement


def _instead_of_tensor_dict(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(
        self: Any, tensor_dict: Any = None, src: int = 0, group: Any = None, metadata_group: Any = None
    ) -> Any:
        # SGLang's own takes its groups whatever it is given, too.
        return broadcast_tensor_dict(tensor_dict, src, self.device_group, self.cpu_group)

    return replacement


class _Names(Dict[str, Any]):
    """The names of a module, a few of them replaced."""

    def __init__(self, module: Dict[str, Any], replaced: Dict[str, Any]) -> None:
        super().__init__(replaced)
        self._module = module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


class _Replaced:
    """An object with one attribute replaced."""

    def __init__(self, original: Any, name: str, value: Any) -> None:
        self._original = original
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _instead_of_mm_inputs(original: Any) -> Any:
    """SGLang's own method, in which torch.distributed.broadcast_object_list is ringcast's.

    SGLang's method decides what is made, and which error ends the request alone. If ringcast can't send what was made,
    that ends the request alone, too.
    """
    module = original.__globals__

    def broadcast(object_list: List[Any], src: int = 0, group: Any = None) -> None:
        try:
            broadcast_list(object_list, src, group)
        except Exception as error:
            request_error = module.get("_MultimodalInputProcessingError")
            if request_error is not None and (isinstance(error, ringcast.SendError) or is_of_value(error)):
                raise request_error(f"The multimodal inputs can't be broadcast: {error}") from error
            raise

    distributed = _Replaced(torch.distributed, "broadcast_object_list", broadcast)
    instead = (
        (torch, _Replaced(torch, "distributed", distributed)),
        (torch.distributed, distributed),
        (torch.distributed.broadcast_object_list, broadcast),
    )
    replaced = {name: new for name, value in module.items() for old, new in instead if value is old}
    method = types.FunctionType(
        original.__code__, _Names(module, replaced), original.__name__, original.__defaults__, original.__closure__
    )
    return functools.wraps(original)(method)


class _Target(NamedTuple):
    module: str
    name: str  # of a function, or of a class's method
    parameters: Tuple[Tuple[str, Any], ...]  # name, and default
    replace: Callable[[Any], Any]


_NO = inspect.Parameter.empty
_PYOBJ = (("data", _NO), ("rank", _NO), ("dist_group", None), ("src", 0), ("force_cpu_device", True))
_DICT = (("self", _NO), ("tensor_dict", None), ("src", 0), ("group", None), ("metadata_group", None))
_SRT, _GEN = "sglang.srt.", "sglang.multimodal_gen.runtime."
# As they are in SGLang of August 2026. One that a version does not have is left out.
_TARGETS = (
    _Target(_SRT + "utils.common", "broadcast_pyobj", _PYOBJ, _instead_of_pyobj),
    _Target(_GEN + "utils.distributed", "broadcast_pyobj", _PYOBJ, _instead_of_pyobj),
    _Target(_GEN + "distributed.utils", "broadcast_pyobj", _PYOBJ, _instead_of_pyobj),  # where 0.5.23 has it
    _Target(
        _SRT + "distributed.parallel_state", "GroupCoordinator.broadcast_tensor_dict", _DICT, _instead_of_tensor_dict
    ),
    _Target(
        _GEN + "distributed.group_coordinator",
        "GroupCoordinator.broadcast_tensor_dict",
        _DICT,
        _instead_of_tensor_dict,
    ),
    _Target(
        _SRT + "managers.scheduler",
        "Scheduler._process_and_broadcast_mm_inputs",
        (("self", _NO), ("raw_mm_inputs", _NO)),
        _instead_of_mm_inputs,
    ),
)


# ---- In, and out -----------------------------------------------------------------------------------------------------


class _Put(NamedTuple):
    owner: Any  # the module or class that defines it
    name: str
    original: Any
    replacement: Any


_puts: Dict[_Target, _Put] = {}
_finder: "Optional[_Finder]" = None


def install() -> bool:
    """Put ringcast's functions in the place of SGLang's, in this process; whether they are there now.

    Call it in each process, before or after SGLang is imported; RINGCAST_SGLANG=1 in the environment has SGLang call it
    (docs/sglang.md). To call it again changes nothing. If a function of SGLang's has other parameters than expected,
    all of SGLang stays as it was, and a RuntimeWarning says why. All ranks must have it, or none.

    ImportError: SGLang is not installed.
    """
    global _finder
    if "sglang" not in sys.modules and importlib.util.find_spec("sglang") is None:
        raise ImportError("ringcast.sglang.install() needs SGLang: python -m pip install sglang")
    with _lock:
        if _finder is None:
            _finder = _Finder()
            sys.meta_path.insert(0, _finder)
            for target in _TARGETS:
                if target.module in sys.modules and _finder is not None:  # None: one did not match
                    _put(target)
        return _finder is not None


def uninstall() -> None:
    """Take them out again; what was there before is there again. Rings stay until their groups are destroyed."""
    global _finder
    with _lock:
        if _finder is not None:
            sys.meta_path.remove(_finder)
            _finder = None
        for put in _puts.values():
            _exchange(put.owner, put.name, put.replacement, put.original)
        _puts.clear()


def _put(target: _Target) -> None:
    """After a mismatch none is in place, of this target or another."""
    owner: Any = sys.modules[target.module]
    path = target.name.split(".")
    for part in path[:-1]:
        owner = vars(owner).get(part)
        if owner is None:
            return
    original = vars(owner).get(path[-1])
    if original is None or target in _puts:
        return
    found = _parameters_of(original)
    if found != target.parameters:
        uninstall()
        warnings.warn(
            f"ringcast.sglang leaves SGLang as it is: {target.module}.{target.name} takes {_written(found)}, and what "
            f"is known here takes {_written(target.parameters)}; a newer ringcast may know it",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    replacement = target.replace(original)
    _puts[target] = _Put(owner, path[-1], original, replacement)
    _exchange(owner, path[-1], original, replacement)


def _parameters_of(function: Any) -> Optional[Tuple[Tuple[str, Any], ...]]:
    """None: it is no function with named parameters alone."""
    if not isinstance(function, types.FunctionType):
        return None
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        return None
    return tuple((parameter.name, parameter.default) for parameter in parameters)


def _written(parameters: Optional[Tuple[Tuple[str, Any], ...]]) -> str:
    if parameters is None:
        return "something else"
    return "(" + ", ".join(name if value is _NO else f"{name}={value!r}" for name, value in parameters) + ")"


def _exchange(owner: Any, name: str, old: Any, new: Any) -> None:
    setattr(owner, name, new)
    if isinstance(owner, types.ModuleType):
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType):
                for other, value in list(vars(module).items()):
                    if value is old:
                        setattr(module, other, new)


# ---- Modules that are loaded later -----------------------------------------------------------------------------------


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the others find, and has the targets' modules followed by their replacements."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        targets = [one for one in _TARGETS if one.module == fullname]
        if not targets:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, targets)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, targets: List[_Target]) -> None:
        self._loader = loader
        self._targets = targets

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[types.ModuleType]:
        created: Optional[types.ModuleType] = self._loader.create_module(spec)
        return created

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        with _lock:
            if _finder is not None:
                for target in self._targets:
                    _put(target)
