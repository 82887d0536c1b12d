# SPDX-License-Identifier: Apache-2.0
"""ringcast in the place of SGLang's own functions, and out of that place again. docs/sglang.md.

A function is replaced in the defining module and wherever the function was imported by name. In a
module that is loaded later, functions are replaced as soon as the module has run, before any import
from the module.

The functions are of four parts: requests, groups, queues and hashes. Each part stands or falls
alone.
"""

import functools
import importlib.util
import logging
import sys
import types
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
import torch.distributed

import ringcast
import ringcast.torch
from ringcast._group.endpoint import broadcast_into, is_of_one_call
from ringcast._install import Caller, Replacements, signature_of
from ringcast._group.gather import is_of_ranks_here
from ringcast.sglang import ahead, transports
from ringcast.sglang.pyobj import (
    broadcast_pyobj,
    broadcast_tensor_dict,
    end_for_lists,
    point_to_point_pyobj,
)

# ---- What is replaced ----------------------------------------------------------------------------


def _instead_of_pyobj(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(
        data: Any, rank: int, dist_group: Any = None, src: int = 0, force_cpu_device: bool = True
    ) -> Any:
        return broadcast_pyobj(data, rank, dist_group, src, force_cpu_device)

    return replacement


def _instead_of_tensor_dict(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(
        self: Any,
        tensor_dict: Any = None,
        src: int = 0,
        group: Any = None,
        metadata_group: Any = None,
    ) -> Any:
        # SGLang's function also ignores the given groups.
        return broadcast_tensor_dict(tensor_dict, src, self.device_group, self.cpu_group)

    return replacement


class _Names(Dict[str, Any]):
    """The names of a module, a few replaced."""

    def __init__(self, module: Dict[str, Any], replaced: Dict[str, Any]) -> None:
        super().__init__(replaced)
        self._module = module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


class _Replaced:
    """An object with some attributes replaced."""

    def __init__(self, original: Any, **values: Any) -> None:
        self._original = original
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _with(original: Any, **transports: Any) -> Any:
    """SGLang's own function, with other functions in place of the named functions of
    torch.distributed."""
    distributed = _Replaced(torch.distributed, **transports)
    instead = [(torch, _Replaced(torch, distributed=distributed)), (torch.distributed, distributed)]
    instead += [
        (getattr(torch.distributed, name), transport) for name, transport in transports.items()
    ]
    module = original.__globals__
    replaced = {name: new for name, value in module.items() for old, new in instead if value is old}
    function = types.FunctionType(
        original.__code__,
        _Names(module, replaced),
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    return functools.wraps(original)(function)


def _by_rings(original: Any) -> Any:
    names = "broadcast_object_list", "all_gather_object", "barrier", "all_reduce"
    return _with(original, **{name: getattr(transports, name) for name in names})


def _instead_of_mm_inputs(original: Any) -> Any:
    """SGLang's own method decides which error ends only the request. An error of ringcast that
    concerns the value, and not the ring, ends only the request, too."""
    module = original.__globals__

    def broadcast(object_list: List[Any], src: int = 0, group: Any = None) -> None:
        end = end_for_lists(group, src)
        try:
            broadcast_into(end, object_list)
        except Exception as error:
            request_error = module.get("_MultimodalInputProcessingError")
            if end is not None and request_error is not None and is_of_one_call(error, end):
                raise request_error(f"The multimodal inputs can't be broadcast: {error}") from error
            raise

    return _with(original, broadcast_object_list=broadcast)


def _instead_of_hash(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(f: Any) -> Any:
        return ahead.hash_of(f, original)

    return replacement


def _sharing_hashes(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(self: Any, recv_reqs: Any) -> Any:
        hash_feature = getattr(sys.modules.get(_FEATURES), "hash_feature", None)
        own = getattr(hash_feature, "__wrapped__", None)
        if own is None:
            return original(self, recv_reqs)
        with ahead.sharing(getattr(self, "dp_tp_cpu_group", None), recv_reqs, own):
            return original(self, recv_reqs)

    return replacement


def _instead_of_p2p(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(
        data: Any,
        rank: int,
        group: Any = None,
        src: int = 0,
        dst: int = 1,
        async_send: bool = False,
    ) -> Any:
        if rank in (src, dst) and not is_of_ranks_here(
            torch.distributed.group.WORLD if group is None else group
        ):
            return original(data, rank, group, src, dst, async_send)
        return point_to_point_pyobj(data, rank, group, src, dst, async_send)

    return replacement


def _instead_of_class(original: Any) -> Any:
    from ringcast.sglang import queue

    return getattr(queue, original.__name__)


def _before_new_rings(original: Any) -> Any:
    """An elastic group takes in ranks without rings: all ranks then make new rings."""

    @functools.wraps(original)
    def replacement(group: Any) -> Any:
        for each in group.device_group, group.cpu_group:
            ringcast.torch.close(each)
        return original(group)

    return replacement


def _before_new_rings_of_all(original: Any) -> Any:
    """The same for the default group."""

    @functools.wraps(original)
    def replacement(*args: Any) -> Any:
        result = original(*args)
        if result is not False:  # False: no rank was taken in
            ringcast.torch.close()
        return result

    return replacement


class _Target(NamedTuple):
    module: str
    name: str  # of a function, a class, or a class's method
    signature: str
    replace: Optional[Callable[[Any], Any]] = None  # None: only compared

    def found(self) -> Tuple[Any, str, Any]:
        """The owner, which is a class or the module; the name there; what SGLang has, or None."""
        module = sys.modules[self.module]
        of, _, name = self.name.rpartition(".")
        owner = vars(module).get(of) if of else module
        return owner, name, None if owner is None else vars(owner).get(name)


_PYOBJ = "(data, rank, dist_group=None, src=0, force_cpu_device=True)"
_P2P = "(data, rank, group=None, src=0, dst=1, async_send=False)"
_DICT = "(self, tensor_dict=None, src=0, group=None, metadata_group=None)"
_SRT, _GEN = "sglang.srt.", "sglang.multimodal_gen.runtime."
_GROUPS, _GEN_GROUPS = _SRT + "distributed.parallel_state", _GEN + "distributed.group_coordinator"
_QUEUES, _ELASTIC = (
    _SRT + "distributed.device_communicators.shm_broadcast",
    _SRT + "elastic_ep.elastic_ep",
)
_QUEUE = (
    "(n_reader, n_local_reader, local_reader_ranks=None, max_chunk_bytes=10485760, max_chunks=10, "
    "connect_ip=None)"
)
_HANDLE = (
    "(connect_ip, local_reader_ranks=<factory>, buffer=None, local_subscribe_port=None, "
    "remote_subscribe_port=None)"
)
_SPLIT = {_GROUPS: "(tensor_dict)", _GEN_GROUPS: "(tensor_dict, prefix='')"}
_RECEIVER = _SRT + "managers.scheduler_components.request_receiver"
_FEATURES, _LISTS = _SRT + "managers.mm_utils", "Scheduler.process_input_requests"
_OF_INPUTS = "Scheduler._process_and_broadcast_mm_inputs"
# As in SGLang of August 2026. A name that a version lacks is skipped.
_TARGETS = (
    _Target(_SRT + "utils.common", "broadcast_pyobj", _PYOBJ, _instead_of_pyobj),
    _Target(_GEN + "utils.distributed", "broadcast_pyobj", _PYOBJ, _instead_of_pyobj),
    _Target(
        _GEN + "distributed.utils", "broadcast_pyobj", _PYOBJ, _instead_of_pyobj
    ),  # where 0.5.23 has it
    _Target(_SRT + "utils.common", "point_to_point_pyobj", _P2P, _instead_of_p2p),
    *(
        _Target(module, f"GroupCoordinator.{name}", signature, replace)
        for module in (_GROUPS, _GEN_GROUPS)
        for name, signature, replace in (
            ("broadcast_tensor_dict", _DICT, _instead_of_tensor_dict),
            ("broadcast_object", "(self, obj=None, src=0)", _by_rings),
            ("all_gather_object", "(self, obj)", _by_rings),
            ("barrier", "(self)", _by_rings),
        )
    ),
    *(_Target(module, "_split_tensor_dict", _SPLIT[module]) for module in (_GROUPS, _GEN_GROUPS)),
    _Target(_QUEUES, "MessageQueue", _QUEUE, _instead_of_class),
    _Target(_QUEUES, "Handle", _HANDLE, _instead_of_class),
    _Target(_QUEUES, "MessageQueue.export_handle", "(self)"),
    _Target(_QUEUES, "MessageQueue.create_from_handle", "(handle, rank)"),
    _Target(_QUEUES, "MessageQueue.wait_until_ready", "(self)"),
    _Target(_QUEUES, "MessageQueue.enqueue", "(self, obj)"),
    _Target(_QUEUES, "MessageQueue.dequeue", "(self)"),
    _Target(_QUEUES, "MessageQueue.broadcast_object", "(self, obj=None)"),
    _Target(
        _QUEUES,
        "MessageQueue.create_from_process_group",
        "(pg, max_chunk_bytes, max_chunks, writer_rank=0)",
    ),
    _Target(_ELASTIC, "_maybe_create_message_queue", "(group)", _before_new_rings),
    _Target(_ELASTIC, "_try_recover_world", "(global_ranks)", _before_new_rings_of_all),
    _Target(_ELASTIC, "_join_world_group", "()", _before_new_rings_of_all),
    _Target(
        _SRT + "managers.scheduler", _OF_INPUTS, "(self, raw_mm_inputs)", _instead_of_mm_inputs
    ),
    _Target(_SRT + "managers.scheduler", _LISTS, "(self, recv_reqs)", _sharing_hashes),
    _Target(_FEATURES, "hash_feature", "(f)", _instead_of_hash),
    _Target(
        _RECEIVER, "SchedulerRequestReceiver._finalize_shm_features", "(self, recv_reqs)", _by_rings
    ),
)


# ---- In, and out ---------------------------------------------------------------------------------

_caller = Caller("SGLang", "RINGCAST_SGLANG", lambda: logging.getLogger("sglang.ringcast"))
# The finder and elastic groups' functions; its lock guards the following as well.
_replaced = Replacements("sglang")
_parts = {part: Replacements("sglang") for part in ("requests", "groups", "queues", "hashes")}
_left: Set[str] = set()  # parts that SGLang keeps


def _parts_of(target: _Target) -> List[str]:
    """The parts that a function belongs to. Elastic groups close the rings of all parts."""
    if target.name == _LISTS:
        return ["hashes"]
    return {
        _GROUPS: ["groups"],
        _GEN_GROUPS: ["groups"],
        _QUEUES: ["queues"],
        _FEATURES: ["hashes"],
        _ELASTIC: [*_parts],
    }.get(target.module, ["requests"])


def install() -> bool:
    """
    Put ringcast's functions in the place of SGLang's, in this process; return whether any part is
    in place.

    Call install() in each process, before or after SGLang is imported, on all ranks or none; a
    second call changes nothing. With RINGCAST_SGLANG=1 in the environment, SGLang itself makes the
    call. If a function of SGLang's has other parameters than expected, SGLang keeps its own part
    (requests, groups, queues, or hashes), and a RuntimeWarning says why. If the version of SGLang
    is not among the tested versions (ringcast._install.TESTED), a RuntimeWarning says so; with
    RINGCAST_SGLANG=strict, SGLang keeps all its own, and the result is False.

    ImportError: SGLang is not installed.
    """
    if "sglang" not in sys.modules and importlib.util.find_spec("sglang") is None:
        raise ImportError("ringcast.sglang.install() needs SGLang: python -m pip install sglang")
    with _replaced.lock:
        if not _replaced:
            if not _caller.is_tested():
                _caller.tell_untested(2)
                if _caller.is_strict():
                    return False
            _replaced.when_loaded(dict.fromkeys(target.module for target in _TARGETS), _put)
            _caller.tell_in_place(", ".join(part for part in _parts if part not in _left))
        return len(_left) < len(_parts)


def uninstall() -> None:
    """Undo install(). Rings stay until their groups are destroyed."""
    with _replaced.lock:
        for part in _parts:
            _leave(part)
        _left.clear()
        _replaced.take_out()


def _leave(part: str) -> None:
    _left.add(part)
    _parts[part].take_out()


def _put(module: types.ModuleType) -> None:
    """
    Replace the functions of a module. After a mismatch, no function of the same part is replaced in
    any module.
    """
    by_parts: Dict[Any, List[_Target]] = {}
    for target in _TARGETS:
        if target.module == module.__name__ and target.found()[2] is not None:
            by_parts.setdefault(tuple(_parts_of(target)), []).append(target)
    for parts, targets in by_parts.items():
        left = [part for part in parts if part not in _left]
        if left:
            _put_part(left, targets)


def _put_part(parts: List[str], targets: List[_Target]) -> None:
    for target in targets:
        signature = signature_of(target.found()[2])
        if signature != target.signature:
            for part in parts:
                _leave(part)
            warnings.warn(
                f"ringcast.sglang leaves SGLang's {' and '.join(parts)} as they are: "
                f"{target.module}.{target.name} takes {signature or 'something else'}, and what is "
                f"known here takes {target.signature}; a newer ringcast may know it",
                RuntimeWarning,
                stacklevel=2,
            )
            return
    for target in targets:
        owner, name, original = target.found()
        replaced = _replaced if target.module == _ELASTIC else _parts[parts[0]]
        if target.replace is None:
            continue
        if isinstance(owner, types.ModuleType):
            replaced.replace(original, target.replace(original))
        else:
            replaced.set(owner, name, target.replace(original))
