# SPDX-License-Identifier: Apache-2.0
"""Puts ringcast in place in a running vLLM, and takes ringcast out again. docs/vllm.md.

    import ringcast.vllm
    ringcast.vllm.install()      # or RINGCAST_VLLM=1 in the environment, which the plugin for vLLM checks

install() replaces vLLM's MessageQueue and Handle in the defining module and in every module that has imported the name,
and the group functions on GroupCoordinator. These are two parts, queues and groups, and each stands or falls alone.
First install() compares each signature of a part with the known signatures (SIGNATURES). If a signature differs, vLLM
keeps its own part, and a RuntimeWarning tells the difference. Then install() compares the code with that of the known
versions (_known.py, by tests/compat/known.py). If the code differs, a RuntimeWarning tells where, and the part is
replaced; with RINGCAST_VLLM=strict, vLLM keeps its own part.

Existing queues and groups stay unchanged: install before vLLM makes any, in each process. vLLM loads plugins in time:
in an engine core before the executor makes a queue, in a worker before the worker makes a group. If a Handle reaches a
process of vLLM without ringcast in place (a worker of Ray that did not inherit RINGCAST_VLLM), unpickling the Handle
installs ringcast there.
"""

import copyreg
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ringcast._install import Caller, Replacements, signature_of, unknown_code
from ringcast.vllm._known import KNOWN

__all__ = ["SIGNATURES", "install", "installed", "uninstall"]

_QUEUES = "vllm.distributed.device_communicators.shm_broadcast"
_GROUPS = "vllm.distributed.parallel_state"
_WORKERS = "vllm.v1.executor.multiproc_executor"

_QUEUE_BASE = (
    "(self, n_reader, n_local_reader, local_reader_ranks=None, max_chunk_bytes=25165824, max_chunks=10, connect_ip=None"
)
_HANDLE_BASE = (
    "local_reader_ranks, buffer_handle, local_subscribe_addr, local_notify_addr, remote_subscribe_addr, "
    "remote_addr_ipv6"
)
_TENSOR_DICT = "(self, tensor_dict, dst=None, all_gather_group=None, all_gather_tensors=None)"
_ANY = "vLLM 0.30 to 0.33"

# A name of vLLM's -> the signatures that fit ringcast's, without annotations, each with the versions of vLLM. For
# Handle the names of the fields; for GroupCoordinator the attributes that ringcast's functions need.
SIGNATURES: Dict[str, Dict[str, str]] = {
    "Handle": {
        f"({_HANDLE_BASE})": "vLLM 0.30 and 0.31",
        f"({_HANDLE_BASE}, tensor_arena_handle)": "vLLM 0.32 and 0.33",
    },
    "MessageQueue.__init__": {
        f"{_QUEUE_BASE})": "vLLM 0.30 and 0.31",
        f"{_QUEUE_BASE}, enable_shm_tensor_arena=False)": "vLLM 0.32 and 0.33",
    },
    "MessageQueue.export_handle": {"(self)": _ANY},
    "MessageQueue.create_from_handle": {"(handle, rank)": _ANY},
    "MessageQueue.wait_until_ready": {"(self)": _ANY},
    "MessageQueue.shutdown": {"(self)": _ANY},
    "MessageQueue.enqueue": {"(self, obj, timeout=None)": _ANY},
    "MessageQueue.dequeue": {"(self, timeout=None, indefinite=False)": _ANY},
    "MessageQueue.broadcast_object": {"(self, obj=None)": _ANY},
    "MessageQueue.create_from_process_group": {
        "(pg, max_chunk_bytes, max_chunks, writer_rank=0, external_writer_handle=None, blocking=True)": _ANY,
    },
    "MessageQueue.create_from_process_group_single_reader": {
        "(pg, max_chunk_bytes, max_chunks, reader_rank=0, blocking=False)": _ANY,
    },
    "GroupCoordinator": {"(cpu_group, device_group, rank_in_group, ranks, world_size)": _ANY},
    "GroupCoordinator.broadcast": {"(self, input_, src=0)": _ANY},
    "GroupCoordinator.broadcast_object": {"(self, obj=None, src=0)": _ANY},
    "GroupCoordinator.broadcast_object_list": {"(self, obj_list, src=0, group=None)": _ANY},
    "GroupCoordinator.broadcast_tensor_dict": {
        "(self, tensor_dict=None, src=0, group=None, metadata_group=None)": _ANY,
    },
    "GroupCoordinator.send_object": {"(self, obj, dst)": _ANY},
    "GroupCoordinator.recv_object": {"(self, src)": _ANY},
    "GroupCoordinator.isend_object": {"(self, obj, dst)": _ANY},
    "GroupCoordinator.send_tensor_dict": {_TENSOR_DICT: _ANY},
    "GroupCoordinator.isend_tensor_dict": {_TENSOR_DICT: _ANY},
    "GroupCoordinator.recv_tensor_dict": {_TENSOR_DICT.replace("tensor_dict, dst", "src"): _ANY},
    "GroupCoordinator.irecv_tensor_dict": {_TENSOR_DICT.replace("tensor_dict, dst", "src"): _ANY},
}


def _logger() -> Any:
    from ringcast.vllm._waits import engine_logger

    return engine_logger()


_caller = Caller("vLLM", "RINGCAST_VLLM", _logger)
_replaced = Replacements("vllm")
_warned = False


class _Part(NamedTuple):
    """What is replaced as a whole, or not at all."""

    name: str
    module: Any
    differences: List[str]
    unknown: List[str]

    def fits(self) -> bool:
        return not (self.differences or self.unknown and _caller.is_strict())


def install() -> bool:
    """Put ringcast in place in this process's vLLM; return whether any part of ringcast is in place.

    False: ringcast knows neither the queues nor the groups of this vLLM. vLLM stays unchanged. The first call warns
    (RuntimeWarning) of differences. The call may be repeated, from any thread, and imports the modules to change.
    ImportError: there is no vLLM here.
    """
    global _warned
    if installed():
        return True
    # Not under the lock, because of the imports: a module under import in another thread may call install().
    parts = _parts()
    put = [part for part in parts if part.fits()]
    if put:
        from ringcast.vllm import group, queue

    with _replaced.lock:
        if _replaced:
            return True
        if put:
            _replace({part.name: part.module for part in put}, queue, group)
        warn, _warned = not _warned, True
    if warn:
        for part in parts:
            _tell(part)
    if put:
        _caller.tell_in_place(" and ".join(f"{part.name}{' of no known code' * bool(part.unknown)}" for part in put))
    return bool(put)


def _tell(part: _Part) -> None:
    if part.differences:
        warnings.warn(
            f"ringcast is not put in place for vLLM's {part.name}, which stay as they are: "
            f"{'; '.join(part.differences)}. Take a vLLM or a ringcast of another version",
            RuntimeWarning,
            stacklevel=3,
        )
    elif part.unknown:
        _caller.tell_unknown(part.name, part.unknown, 3)


def installed() -> bool:
    """Whether any part of ringcast is in place in this process's vLLM."""
    with _replaced.lock:
        return bool(_replaced)


def uninstall() -> None:
    """Undo install(). Existing queues and groups stay unchanged, and so do names that modules outside vLLM have
    imported meanwhile."""
    _replaced.take_out()


# ---- Whether it fits -------------------------------------------------------------------------------------------------


def _has_vllm() -> bool:
    return "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None


def _parts() -> List[_Part]:
    if not _has_vllm():
        raise ImportError("there is no vLLM in this Python: pip install vllm", name="vllm")
    return [_part("queues", _QUEUES), _part("groups", _GROUPS)]


def _part(part: str, name: str) -> _Part:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vllm."):
            raise  # a module that vLLM needs
        return _Part(part, None, [f"{name} can't be imported ({error})"], [])
    differences = _differences(module, part)
    return _Part(part, module, differences, [] if differences else _unknown(module))


def _differences(module: Any, part: str) -> List[str]:
    found = []
    for name, known in SIGNATURES.items():
        if name.startswith("GroupCoordinator") != (part == "groups"):
            continue
        signature = _signature(module, name)
        if signature not in known:
            has = "is missing" if signature is None else f"has {signature}"
            found.append(f"{name} {has}, but ringcast knows {' and '.join(known)}")
    return found


def _unknown(module: Any) -> List[str]:
    known = KNOWN[module.__name__]
    return unknown_code(known, {name: functools.reduce(_attribute, name.split("."), module) for name in known})


def _attribute(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)


def _signature(module: Any, name: str) -> Optional[str]:
    """In the form of SIGNATURES. None: vLLM has no such name."""
    owner, _, method = name.partition(".")
    thing = getattr(module, owner, None)
    if not isinstance(thing, type):
        return None
    if owner == "Handle":
        return _listed(field.name for field in dataclasses.fields(thing)) if dataclasses.is_dataclass(thing) else "()"
    if not method:
        (attributes,) = SIGNATURES[name]
        needed = attributes[1:-1].split(", ")
        known = {name for cls in thing.__mro__ for name in getattr(cls, "__annotations__", {})}
        return _listed(attribute for attribute in needed if attribute in known)
    return signature_of(getattr(thing, method, None))


def _listed(names: Any) -> str:
    return f"({', '.join(names)})"


# ---- Putting it in place ---------------------------------------------------------------------------------------------


def _replace(parts: Dict[str, Any], our_queues: Any, our_groups: Any) -> None:
    """All that fits, or nothing."""
    try:
        if "queues" in parts:
            _replaced.replace(parts["queues"].Handle, our_queues.Handle)
            _replaced.replace(parts["queues"].MessageQueue, our_queues.MessageQueue)
            copyreg.pickle(our_queues.Handle, _reduce)
            _replaced.at_end(lambda: copyreg.dispatch_table.pop(our_queues.Handle, None))
            _replaced.when_loaded([_WORKERS], _watch_calls)
        if "groups" in parts:
            _replace_functions(parts["groups"].GroupCoordinator, our_groups.GroupOperations)
    except BaseException:
        uninstall()
        raise


def _replace_functions(coordinator: Any, operations: type) -> None:
    """Function by function. A subclass with an override of some function keeps vLLM's for the rest."""
    ours = {name: value for name, value in vars(operations).items() if not name.startswith("__")}
    theirs = {name: vars(coordinator)[name] for name in ours if name in vars(coordinator)}

    def keep(subclass: type) -> None:
        inherited = [name for name in theirs if inspect.getattr_static(subclass, name) is ours[name]]
        if len(inherited) < len(theirs):
            for name in inherited:
                _replaced.set(subclass, name, theirs[name])

    def init_subclass(subclass: Any, **arguments: Any) -> None:
        super(coordinator, subclass).__init_subclass__(**arguments)
        keep(subclass)

    for name, value in ours.items():
        _replaced.set(coordinator, name, value)
    if "__init_subclass__" not in vars(coordinator):
        _replaced.set(coordinator, "__init_subclass__", classmethod(init_subclass))  # type: ignore[arg-type]
    for known in _subclasses(coordinator):
        keep(known)


def _subclasses(cls: type) -> List[type]:
    found: List[type] = []
    children: List[type] = cls.__subclasses__()
    for below in children:
        found += [below, *_subclasses(below)]
    return found


# ---- The exceptions of calls -----------------------------------------------------------------------------------------


def _watch_calls(module: Any) -> None:
    """Before its loop each worker lets ringcast see its calls. The loop itself is vLLM's. If the code is of no known
    version, exceptions go as in vLLM."""
    if _unknown(module):
        return
    from ringcast.vllm._calls import watch

    loop = module.WorkerProc.worker_busy_loop

    @functools.wraps(loop)
    def worker_busy_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch(self)
        return loop(self, *args, **kwargs)

    _replaced.set(module.WorkerProc, "worker_busy_loop", worker_busy_loop)


# ---- Handles that reach a process without ringcast in place ----------------------------------------------------------


def _reduce(handle: Any) -> Tuple[Callable[..., Any], Tuple[Dict[str, Any]]]:
    return _receive, (vars(handle),)


def _receive(fields: Dict[str, Any]) -> Any:
    from ringcast.vllm.queue import Handle

    if _has_vllm() and not (install() and getattr(sys.modules.get(_QUEUES), "Handle", None) is Handle):
        raise RuntimeError(
            "the handle of a ringcast queue has come to a process where ringcast can't be put in place in vLLM: take "
            "the same versions of vLLM and ringcast in all processes, or none of ringcast"
        )
    return Handle(**fields)
