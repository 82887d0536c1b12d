# SPDX-License-Identifier: Apache-2.0
"""
Wrappers in the places of functions of torch.distributed, vLLM and SGLang, which time the originals.

A function is replaced in every loaded module that holds the function, under any name, and put back
there in the end. A module that is imported later is noticed by name, before anything is imported
from the module. While torch.compile traces, a wrapper calls the original, so compiled code is the
same with and without a profile.
"""

import functools
import inspect
import sys
import types
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ringcast._install import Replacements
from ringcast.profile.recorder import MOST_WAITING, Recorder
from ringcast.profile.store import Operation

# ---- Bytes: the tensor's; for a gathering the output's, for a scattering the input's -------------

Measure = Callable[[Tuple[Any, ...], Mapping[str, Any], Any], Optional[int]]


def bytes_of(value: Any) -> int:
    """The bytes of a tensor, or of all tensors in lists, tuples and the values of dicts."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, dict):
        return sum(bytes_of(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(bytes_of(each) for each in value)
    return 0


def argument(index: int, *names: str) -> Measure:
    def measure(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
        if len(args) > index:
            return bytes_of(args[index])
        return sum(bytes_of(kwargs.get(name)) for name in names)

    return measure


def larger(*measures: Measure) -> Measure:
    def measure(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
        return max(each(args, kwargs, result) or 0 for each in measures)

    return measure


def nothing(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    return 0


def by_those_within(args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    return None


# Of torch.distributed.
MEASURES: Dict[str, Measure] = {
    "all_reduce": argument(0, "tensor"),
    "reduce": argument(0, "tensor"),
    "broadcast": argument(0, "tensor"),
    "all_gather": argument(0, "tensor_list"),
    "all_gather_into_tensor": argument(0, "output_tensor"),
    "gather": larger(argument(0, "tensor"), argument(1, "gather_list")),
    "scatter": larger(argument(0, "tensor"), argument(1, "scatter_list")),
    "reduce_scatter": argument(1, "input_list"),
    "reduce_scatter_tensor": argument(1, "input"),
    "all_to_all": argument(1, "input_tensor_list"),
    "all_to_all_single": argument(1, "input"),
    "send": argument(0, "tensor"),
    "recv": argument(0, "tensor"),
    "isend": argument(0, "tensor"),
    "irecv": argument(0, "tensor"),
    "barrier": nothing,
    "monitored_barrier": nothing,
    **{
        name: by_those_within
        for name in (
            "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
            "send_object_list",
            "recv_object_list", "batch_isend_irecv",
        )
    },
}  # fmt: skip


def of_coordinator(operation: str, first: int) -> Measure:
    """The measure of an engine's method (first=1) or function (first=0); `first`: the index of the
    first argument."""
    if operation == "barrier":
        return nothing
    if operation in ("all_gather", "all_gatherv", "all_gather_into_tensor", "recv"):
        return lambda args, kwargs, result: bytes_of(result) or _of_all(args[first:], kwargs)
    if "object" in operation or "pyobj" in operation or "dict" in operation:
        return by_those_within
    return lambda args, kwargs, result: _of_all(args[first : first + 1], kwargs) or bytes_of(result)


def _of_all(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return (
        bytes_of(args[0])
        if args
        else max((bytes_of(value) for value in kwargs.values()), default=0)
    )


# ---- Functions -----------------------------------------------------------------------------------

TORCH = "torch.distributed.distributed_c10d"
COORDINATORS = {
    "vllm.distributed.parallel_state": "vllm",
    "sglang.srt.distributed.parallel_state": "sglang",
    "sglang.multimodal_gen.runtime.distributed.group_coordinator": "sglang",
}
# Methods of GroupCoordinator. isend_* and irecv_* are left out: the handles are those of torch's
# isend and irecv, which are timed. Compiled models call the methods that end in _out_place, and not
# the plain method.
METHODS = {
    **{name: name for name in (
        "all_reduce", "all_gather", "all_gatherv", "all_gather_into_tensor", "reduce_scatter",
        "reduce_scatterv",
        "reduce_scatter_tensor", "gather", "broadcast", "broadcast_object", "broadcast_object_list",
        "broadcast_tensor_dict", "all_gather_object", "send", "recv", "send_object", "recv_object",
        "send_tensor_dict", "recv_tensor_dict", "barrier", "dispatch", "combine",
        "fused_allreduce_rmsnorm",
    )},
    "_all_reduce_out_place": "all_reduce", "_all_gather_out_place": "all_gather",
    "_reduce_scatter_out_place": "reduce_scatter",
}  # fmt: skip
# Functions by module: the function's name -> the operation's name.
CALLS = {
    "tensor_model_parallel_all_reduce": "all_reduce",
    "tensor_model_parallel_all_gather": "all_gather",
    "tensor_model_parallel_reduce_scatter": "reduce_scatter",
    "tensor_model_parallel_gather": "gather",
    "tensor_model_parallel_fused_allreduce_rmsnorm": "fused_allreduce_rmsnorm",
    "broadcast_tensor_dict": "broadcast_tensor_dict",
    "attention_tensor_model_parallel_all_reduce": "all_reduce",
    "moe_tensor_model_parallel_all_reduce": "all_reduce",
    "moe_expert_parallel_all_reduce": "all_reduce",
}  # fmt: skip
PYOBJ = {"broadcast_pyobj": "broadcast_pyobj", "point_to_point_pyobj": "point_to_point_pyobj"}
FUNCTIONS: Dict[str, Tuple[str, Mapping[str, str]]] = {
    "vllm.distributed.communication_op": ("vllm", CALLS),
    "sglang.srt.distributed.communication_op": ("sglang", CALLS),
    "sglang.srt.utils.common": ("sglang", PYOBJ),
    "sglang.multimodal_gen.runtime.utils.distributed": ("sglang", PYOBJ),
    "sglang.multimodal_gen.runtime.distributed.utils": ("sglang", PYOBJ),
}


class Interceptor:
    def __init__(self, recorder: Recorder, joined: Callable[[], Any]) -> None:
        self._recorder = recorder
        self._joined = joined  # called when the process has joined a group
        self._replaced = {name: Replacements(name) for name in ("torch", "vllm", "sglang")}
        self._made: List[Tuple[Any, Any]] = []  # a function's original, ours
        self._steps = Replacements("")

    def put_in(self) -> None:
        torch, vllm, sglang = (self._replaced[name] for name in ("torch", "vllm", "sglang"))
        for replaced in (torch, vllm, sglang):
            replaced.at_end(lambda: None)  # when_loaded() does nothing in an empty one
        torch.when_loaded([TORCH], self._put_torch)
        for engine, replaced in (("vllm", vllm), ("sglang", sglang)):
            names = [name for name in (*COORDINATORS, *FUNCTIONS) if name.startswith(engine + ".")]
            replaced.when_loaded(names, self._put_engine)

    def step_after(self, place: str, step: Callable[[], None]) -> None:
        """Have step() called after each call of the function at `place`, module:name or
        module:Class.name."""
        module_name, _, path = place.partition(":")

        def put(module: types.ModuleType) -> None:
            *owners, name = path.split(".")
            owner: Any = module
            for part in owners:
                owner = getattr(owner, part, None)
            original = vars(owner).get(name) if owner is not None else None
            if not inspect.isfunction(original) or inspect.iscoroutinefunction(original):
                text = (
                    f"no step will end: {place} is no function; name one of {module_name} that "
                    "each step calls once"
                )
                warnings.warn(text, RuntimeWarning, stacklevel=2)
                return
            self._set(self._steps, owner, name, original, _followed(original, step))

        self._steps.at_end(lambda: None)
        self._steps.when_loaded([module_name], put)

    def take_out(self) -> None:
        self._steps.take_out()
        for replaced in self._replaced.values():
            replaced.take_out()
        _swap([(ours, original) for original, ours in self._made])
        self._made.clear()

    def _put_torch(self, module: types.ModuleType) -> None:
        self._put_functions(
            module, "torch", {name: (name, measure) for name, measure in MEASURES.items()}
        )
        joins = getattr(module, "init_process_group", None)
        if inspect.isfunction(joins):
            self._put([(joins, _followed(joins, self._joined))])

    def _put_engine(self, module: types.ModuleType) -> None:
        if module.__name__ in COORDINATORS:
            self._put_class(
                getattr(module, "GroupCoordinator", None), COORDINATORS[module.__name__]
            )
        else:
            source, names = FUNCTIONS[module.__name__]
            found = {
                name: (operation, of_coordinator(operation, 0)) for name, operation in names.items()
            }
            self._put_functions(module, source, found)

    def _put_functions(
        self, module: types.ModuleType, source: str, names: Mapping[str, Tuple[str, Measure]]
    ) -> None:
        made = []
        for name, (operation, measure) in names.items():
            original = getattr(module, name, None)
            if inspect.isfunction(original) and not inspect.iscoroutinefunction(original):
                made.append((original, self.wrap(original, operation, source, measure)))
        self._put(made)

    def _put(self, made: List[Tuple[Any, Any]]) -> None:
        _swap(made)
        self._made += made

    def _put_class(self, cls: Any, source: str) -> None:
        for name, operation in METHODS.items():
            original = vars(cls).get(name) if inspect.isclass(cls) else None
            if inspect.isfunction(original) and not inspect.iscoroutinefunction(original):
                ours = self.wrap(original, operation, source, of_coordinator(operation, 1))
                self._set(self._replaced[source], cls, name, original, ours)

    def _set(self, replaced: Replacements, cls: Any, name: str, original: Any, ours: Any) -> None:
        """As Replacements.set(), but a later replacement of `ours` by other code stays."""

        def undo() -> None:
            if vars(cls).get(name) is ours:
                setattr(cls, name, original)

        setattr(cls, name, ours)
        replaced.at_end(undo)

    def wrap(
        self, original: Callable[..., Any], name: str, source: str, measure: Measure
    ) -> Callable[..., Any]:
        recorder = self._recorder
        clock, device = recorder.clock, recorder.device
        compiling = _is_compiling()
        is_barrier = name in ("barrier", "monitored_barrier")

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not recorder.on:
                return original(*args, **kwargs)
            buffer = recorder.buffer()
            on_device = device.cuda is not None and _on_device(args, kwargs) and device.wait()
            buffer.depth += 1
            start = clock()
            try:
                result = original(*args, **kwargs)
            except BaseException:
                end = clock()
                buffer.depth -= 1
                buffer.items.append(
                    Operation(start, end, end, end, name, source, 0, None, on_device, True)
                )
                raise
            is_work = _is_work(result)
            if on_device and not is_work:
                device.wait()
            end = clock()
            buffer.depth -= 1
            nbytes = _measured(measure, args, kwargs, result)
            waiting = end - start if is_barrier else None
            record = Operation(start, end, end, end, name, source, nbytes, waiting, on_device)
            if is_work:
                return timed_work_class()(result, recorder, record)
            buffer.items.append(record)
            if (len(buffer.items) >= MOST_WAITING or end > recorder.due) and not buffer.depth:
                recorder.overflow()
            return result

        return timed


def _measured(
    measure: Measure, args: Tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> Optional[int]:
    try:
        return measure(args, kwargs, result)
    except Exception:  # a tensor of a kind that has no size must not end a call that has succeeded
        return 0


def _followed(original: Callable[..., Any], call: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            call()

    return followed


def _swap(pairs: List[Tuple[Any, Any]]) -> None:
    """
    Replace the first of each pair by the second in every module outside ringcast, under any name.
    """
    news = {id(old): new for old, new in pairs}
    for module_name, module in list(sys.modules.items()) if news else ():
        if isinstance(module, types.ModuleType) and module_name.partition(".")[0] != "ringcast":
            names = vars(module)
            for name, value in list(names.items()):
                if id(value) in news:
                    names[name] = news[id(value)]


def _on_device(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the first tensor among the arguments is on a CUDA device."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        is_cuda = getattr(value, "is_cuda", None)
        if is_cuda is not None:
            return bool(is_cuda)
    return False


def _is_compiling() -> Callable[[], bool]:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    found: Callable[[], bool] = getattr(compiler, "is_compiling", lambda: False)
    return found


# ---- The handle of an asynchronous operation, which ends when wait() returns ---------------------


def _is_work(result: Any) -> bool:
    base = getattr(sys.modules.get("torch.distributed"), "Work", None)
    return base is not None and isinstance(result, base) and not isinstance(result, _TimedWork)


@functools.lru_cache(1)
def timed_work_class() -> Any:
    """A subclass of torch.distributed.Work, too."""
    work = sys.modules["torch.distributed"].Work
    forwarded = {name: _forwarded(name) for name in FORWARDED}
    return type("TimedWork", (_TimedWork, work), forwarded)


class _TimedWork:
    """Passes every call on to torch's own handle."""

    def __init__(self, work: Any, recorder: Recorder, call: Operation) -> None:
        super().__init__()  # torch's class needs it
        self._work, self._recorder = work, recorder
        self._call: Optional[Operation] = call  # None: recorded

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        call, recorder = self._call, self._recorder
        if call is None or not recorder.on:
            return self._work.wait(*args, **kwargs)
        start, failed = recorder.clock(), True
        try:
            result = self._work.wait(*args, **kwargs)
            if call.on_device:
                recorder.device.wait()
            failed = False
            return result
        finally:
            self._note(start, recorder.clock(), failed)

    def _note(self, wait_start: int, end: int, failed: bool = False) -> None:
        call, self._call = self._call, None
        if call is not None:
            waiting = end - wait_start
            record = call._replace(end=end, wait_start=wait_start, waiting=waiting, failed=failed)
            self._recorder.buffer().items.append(record)

    def __del__(self) -> None:
        # Nobody waited: of what is known, the call.
        if self._call is not None and self._recorder.on:
            self._note(self._call.call_end, self._call.call_end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


# What torch's class has, so that __getattr__ is never asked.
FORWARDED = (
    "is_completed", "is_success", "exception", "source_rank", "result", "synchronize", "get_future",
    "get_future_result", "block_current_stream", "boxed", "_get_duration", "_get_op_type",
)  # fmt: skip


def _forwarded(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    method.__name__ = name
    return method
