# SPDX-License-Identifier: Apache-2.0
"""Puts ringcast in place in a running vLLM, and takes ringcast out again. docs/vllm.md.

    import ringcast.vllm
    ringcast.vllm.install()      # or RINGCAST_VLLM=1, which the plugin for vLLM checks

install() replaces vLLM's MessageQueue and Handle in the defining module and in every module that
has imported the name, and the group functions on GroupCoordinator. These are two parts, queues and
groups, and each stands or falls alone. install() compares each signature of a part with the known
signatures (SIGNATURES). If a signature differs, vLLM keeps its own part, and a RuntimeWarning tells
the difference. If the signatures fit, and the version of vLLM is not among the tested versions
(ringcast._install.TESTED), a RuntimeWarning says so; with RINGCAST_VLLM=strict, vLLM keeps all its
own.

Existing queues and groups stay unchanged: install before vLLM makes any, in each process. vLLM
loads plugins in time: in an engine core before the executor makes a queue, in a worker before the
worker makes a group. If a Handle reaches a process of vLLM without ringcast in place (a worker of
Ray that did not inherit RINGCAST_VLLM), unpickling the Handle installs ringcast there.
"""

import copyreg
import dataclasses
import importlib
import importlib.util
import inspect
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

from ringcast._install import Caller, Replacements, signature_of

__all__ = ["SIGNATURES", "install", "installed", "uninstall"]

_QUEUES = "vllm.distributed.device_communicators.shm_broadcast"
_GROUPS = "vllm.distributed.parallel_state"
_PARTS = {"queues": _QUEUES, "groups": _GROUPS}  # each is replaced as a whole, or not at all

_QUEUE_BASE = (
    "(self, n_reader, n_local_reader, local_reader_ranks=None, max_chunk_bytes=25165824, "
    "max_chunks=10, connect_ip=None"
)
_HANDLE_BASE = (
    "local_reader_ranks, buffer_handle, local_subscribe_addr, local_notify_addr, "
    "remote_subscribe_addr, "
    "remote_addr_ipv6"
)
_TENSOR_DICT = "(self, tensor_dict, dst=None, all_gather_group=None, all_gather_tensors=None)"

# A name of vLLM's -> the signatures that fit ringcast's, without annotations, the oldest first (of
# 0.30 and 0.31, where there are two). For Handle the names of the fields; for GroupCoordinator the
# attributes that ringcast's functions need.
SIGNATURES: Dict[str, Tuple[str, ...]] = {
    "Handle": (f"({_HANDLE_BASE})", f"({_HANDLE_BASE}, tensor_arena_handle)"),
    "MessageQueue.__init__": (f"{_QUEUE_BASE})", f"{_QUEUE_BASE}, enable_shm_tensor_arena=False)"),
    "MessageQueue.export_handle": ("(self)",),
    "MessageQueue.create_from_handle": ("(handle, rank)",),
    "MessageQueue.wait_until_ready": ("(self)",),
    "MessageQueue.shutdown": ("(self)",),
    "MessageQueue.enqueue": ("(self, obj, timeout=None)",),
    "MessageQueue.dequeue": ("(self, timeout=None, indefinite=False)",),
    "MessageQueue.broadcast_object": ("(self, obj=None)",),
    "MessageQueue.create_from_process_group": (
        "(pg, max_chunk_bytes, max_chunks, writer_rank=0, external_writer_handle=None, "
        "blocking=True)",
    ),
    "MessageQueue.create_from_process_group_single_reader": (
        "(pg, max_chunk_bytes, max_chunks, reader_rank=0, blocking=False)",
    ),
    "GroupCoordinator": ("(cpu_group, device_group, rank_in_group, ranks, world_size)",),
    "GroupCoordinator.broadcast": ("(self, input_, src=0)",),
    "GroupCoordinator.broadcast_object": ("(self, obj=None, src=0)",),
    "GroupCoordinator.broadcast_object_list": ("(self, obj_list, src=0, group=None)",),
    "GroupCoordinator.broadcast_tensor_dict": (
        "(self, tensor_dict=None, src=0, group=None, metadata_group=None)",
    ),
    "GroupCoordinator.send_object": ("(self, obj, dst)",),
    "GroupCoordinator.recv_object": ("(self, src)",),
    "GroupCoordinator.isend_object": ("(self, obj, dst)",),
    "GroupCoordinator.send_tensor_dict": (_TENSOR_DICT,),
    "GroupCoordinator.isend_tensor_dict": (_TENSOR_DICT,),
    "GroupCoordinator.recv_tensor_dict": (_TENSOR_DICT.replace("tensor_dict, dst", "src"),),
    "GroupCoordinator.irecv_tensor_dict": (_TENSOR_DICT.replace("tensor_dict, dst", "src"),),
}


def _logger() -> Any:
    from ringcast.vllm._endpoints import engine_logger

    return engine_logger()


_caller = Caller("vLLM", "RINGCAST_VLLM", _logger)
_replaced = Replacements("vllm")
_warned = False


def install() -> bool:
    """
    Put ringcast in place in this process's vLLM; return whether any part of ringcast is in place.

    False: vLLM stays unchanged, because ringcast knows neither its queues nor its groups, or
    because the version is untested and RINGCAST_VLLM is strict. The first call warns
    (RuntimeWarning) of differences and of an untested version. The call may be repeated, from any
    thread, and imports the modules to change. ImportError: there is no vLLM here.
    """
    global _warned
    if installed():
        return True
    # Not under the lock, because of the imports: a module under import in another thread may call
    # install().
    if not _has_vllm():
        raise ImportError("there is no vLLM in this Python: pip install vllm", name="vllm")
    differences = {part: _differences(part, name) for part, name in _PARTS.items()}
    put = [part for part in _PARTS if not differences[part]]
    untested = bool(put) and not _caller.is_tested()
    if untested and _caller.is_strict():
        put = []
    if put:
        from ringcast.vllm import group, queue

    with _replaced.lock:
        if _replaced:
            return True
        if put:
            _replace({part: sys.modules[_PARTS[part]] for part in put}, queue, group)
        warn, _warned = not _warned, True
    for part, found in differences.items() if warn else ():
        if found:
            warnings.warn(
                f"ringcast is not put in place for vLLM's {part}, which stay as they are: "
                f"{'; '.join(found)}. Take a vLLM or a ringcast of another version",
                RuntimeWarning,
                stacklevel=2,
            )
    if warn and untested:
        _caller.tell_untested(2)
    if put:
        _caller.tell_in_place(" and ".join(put))
    return bool(put)


def installed() -> bool:
    """Whether any part of ringcast is in place in this process's vLLM."""
    with _replaced.lock:
        return bool(_replaced)


def uninstall() -> None:
    """
    Undo install(). Existing queues and groups stay unchanged, and so do names that modules outside
    vLLM have imported meanwhile.
    """
    _replaced.take_out()


# ---- Whether it fits -----------------------------------------------------------------------------


def _has_vllm() -> bool:
    return "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None


def _differences(part: str, name: str) -> List[str]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vllm."):
            raise  # a module that vLLM needs
        return [f"{name} can't be imported ({error})"]
    found = []
    for name, known in SIGNATURES.items():
        if name.startswith("GroupCoordinator") != (part == "groups"):
            continue
        signature = _signature(module, name)
        if signature not in known:
            has = "is missing" if signature is None else f"has {signature}"
            found.append(f"{name} {has}, but ringcast knows {' and '.join(known)}")
    return found


def _signature(module: Any, name: str) -> Optional[str]:
    """In the form of SIGNATURES. None: vLLM has no such name."""
    owner, _, method = name.partition(".")
    thing = getattr(module, owner, None)
    if not isinstance(thing, type):
        return None
    if owner == "Handle":
        return (
            _listed(field.name for field in dataclasses.fields(thing))
            if dataclasses.is_dataclass(thing)
            else "()"
        )
    if not method:
        (attributes,) = SIGNATURES[name]
        needed = attributes[1:-1].split(", ")
        known = {name for cls in thing.__mro__ for name in getattr(cls, "__annotations__", {})}
        return _listed(attribute for attribute in needed if attribute in known)
    return signature_of(getattr(thing, method, None))


def _listed(names: Any) -> str:
    return f"({', '.join(names)})"


# ---- Putting it in place -------------------------------------------------------------------------


def _replace(parts: Dict[str, Any], our_queues: Any, our_groups: Any) -> None:
    """All that fits, or nothing."""
    try:
        if "queues" in parts:
            _replaced.replace(parts["queues"].Handle, our_queues.Handle)
            _replaced.replace(parts["queues"].MessageQueue, our_queues.MessageQueue)
            copyreg.pickle(our_queues.Handle, _reduce)
            _replaced.at_end(lambda: copyreg.dispatch_table.pop(our_queues.Handle, None))
        if "groups" in parts:
            _replace_functions(parts["groups"].GroupCoordinator, our_groups.GroupOperations)
    except BaseException:
        uninstall()
        raise


def _replace_functions(coordinator: Any, operations: type) -> None:
    """
    Function by function. A subclass with an override of some function keeps vLLM's for the rest.
    """
    ours = {name: value for name, value in vars(operations).items() if not name.startswith("__")}
    theirs = {name: vars(coordinator)[name] for name in ours if name in vars(coordinator)}

    def keep(subclass: type) -> None:
        inherited = [
            name for name in theirs if inspect.getattr_static(subclass, name) is ours[name]
        ]
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


# ---- Handles that reach a process without ringcast in place --------------------------------------


def _reduce(handle: Any) -> Tuple[Callable[..., Any], Tuple[Dict[str, Any]]]:
    return _receive, (vars(handle),)


def _receive(fields: Dict[str, Any]) -> Any:
    from ringcast.vllm.queue import Handle

    if _has_vllm() and not (
        install() and getattr(sys.modules.get(_QUEUES), "Handle", None) is Handle
    ):
        raise RuntimeError(
            "the handle of a ringcast queue has come to a process where ringcast can't be put in "
            "place in vLLM: take "
            "the same versions of vLLM and ringcast in all processes, or none of ringcast"
        )
    return Handle(**fields)
