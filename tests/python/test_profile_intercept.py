# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile and the functions of torch.distributed, vLLM and SGLang: timed in their places,
then put back."""

import importlib
import sys
import time
import types
from typing import Any, Dict

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import on_ranks
from profiles import Clock
from profiles import profiled as profiled_by
from vllm_stubs import write

import ringcast.torch as rt
from ringcast.profile.intercept import METHODS, TORCH
from ringcast.profile.intercept import MEASURES

pytestmark = pytest.mark.alike


def profiled(**options: Any) -> Any:
    """
    With a clock that moves a little, as calls one after the other do not all happen at one time.
    """
    return profiled_by(tick=1, **options)


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-6)


def by_type(p: Any) -> Dict[str, Any]:
    p.step()
    return p.stop()["comm_analysis"]["by_operation_type"]


def all_names() -> Dict[Any, Any]:
    """Every function of torch.distributed that is timed, in every module, by its place."""
    functions = {id(vars(sys.modules[TORCH])[name]) for name in MEASURES}
    modules = [
        (name, module)
        for name, module in sys.modules.items()
        if isinstance(module, types.ModuleType)
    ]
    return {
        (module_name, name): value
        for module_name, module in modules
        for name, value in list(vars(module).items())
        if id(value) in functions and module_name.partition(".")[0] != "ringcast"
    }


# ---- In, and out again ---------------------------------------------------------------------------


def test_every_function_is_put_back_under_every_name(tmp_path, monkeypatch):
    holder = types.ModuleType("holder")
    holder.reduce_it = dist.all_reduce
    monkeypatch.setitem(sys.modules, "holder", holder)
    (tmp_path / "late_holder.py").write_text("from torch.distributed import all_reduce as late\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = all_names()
    finders = list(sys.meta_path)
    with profiled():
        put = all_names()
        assert set(put) == set(before) and len(before) > 40
        assert all(put[place] is not before[place] for place in before)
        assert holder.reduce_it is dist.all_reduce is sys.modules[TORCH].all_reduce
        late = importlib.import_module("late_holder")
        assert late.late is dist.all_reduce
    after = all_names()
    assert {place: after[place] for place in before} == before
    assert late.late is holder.reduce_it is dist.all_reduce
    assert sys.meta_path == finders
    del sys.modules["late_holder"]


def test_nothing_is_replaced_unless_asked():
    before, finders = all_names(), list(sys.meta_path)
    profiled()  # not started
    assert all_names() == before and sys.meta_path == finders
    with profiled(intercept=False):
        assert all_names() == before and sys.meta_path == finders


@pytest.mark.parametrize("intercept", [True, False])
def test_the_function_that_ends_steps_is_put_back(intercept):
    before = vars(torch.nn.Module)["apply"]
    with profiled(intercept=intercept, step_at="torch.nn.modules.module:Module.apply") as p:
        assert vars(torch.nn.Module)["apply"] is not before
        module = torch.nn.Linear(1, 1)
        assert module.apply(lambda each: None) is module
        assert p.stop()["analysis_report"]["steps"]["count"] == 1
    assert vars(torch.nn.Module)["apply"] is before


def test_torch_compile_sees_the_original():
    def wrapped(tensor: Any) -> Any:
        return tensor * 2

    with profiled() as p:
        timed = p._interceptor.wrap(wrapped, "double", "torch", lambda args, kwargs, result: 1)
        compiled = torch.compile(lambda tensor: timed(tensor) + 1, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [3, 3]
        assert timed(torch.ones(1)).item() == 2
        assert by_type(p)["double"]["count"] == 1


# ---- torch.distributed ---------------------------------------------------------------------------


@on_ranks(2)
def test_each_operation_counts_with_its_bytes() -> None:
    rank = dist.get_rank()
    tensor, halves = torch.ones(8), list(torch.ones(8).chunk(2))
    with profiled() as p:
        dist.all_reduce(tensor)
        dist.all_gather([torch.empty(8), torch.empty(8)], tensor)
        dist.all_gather_into_tensor(torch.empty(16), tensor)
        dist.reduce_scatter_tensor(torch.empty(4), tensor)
        dist.reduce_scatter(torch.empty(4), halves)
        dist.broadcast(tensor=tensor, src=0)
        dist.reduce(tensor, 0)
        dist.gather(tensor, [torch.empty(8), torch.empty(8)] if rank == 0 else None)
        dist.scatter(torch.empty(4), halves if rank == 0 else None)
        dist.all_to_all_single(torch.empty(8), tensor)
        dist.send(tensor, 1 - rank) if rank == 0 else dist.recv(tensor, 1 - rank)
        told = [{"some": "object"}] if rank == 0 else [None]
        dist.broadcast_object_list(told)
        dist.barrier()
        found = by_type(p)
    assert told == [{"some": "object"}]
    wanted = {
        "all_reduce": 32, "all_gather": 64, "all_gather_into_tensor": 64, "reduce_scatter_tensor": 32,
        "reduce_scatter": 32, "broadcast": 32, "reduce": 32, "gather": 64 if rank == 0 else 32,
        "scatter": 32 if rank == 0 else 16, "all_to_all_single": 32, ("recv" if rank else "send"): 32, "barrier": 0,
    }  # fmt: skip
    assert {name: each["total_data"] for name, each in found.items() if name in wanted} == wanted
    assert all(each["count"] == 1 for each in found.values()), found
    assert found["broadcast_object_list"]["total_data"] > 8, "those of the broadcasts within"
    assert found["barrier"]["waiting_time"] == found["barrier"]["total_time"]
    assert found["all_reduce"]["waiting_time"] is None, "its waiting is not told from its working"


@on_ranks(2)
def test_a_handle_is_timed_to_its_wait() -> None:
    tensor = torch.ones(250)
    with profiled() as p:
        with p.region("call"):
            work = dist.all_reduce(tensor, async_op=True)
        assert isinstance(work, dist.Work)
        p.clock.passes(5)
        with p.region("computing"):
            p.clock.passes(2)
        with p.region("wait"):
            passed = work.wait
            p._recorder.clock = timely(p.clock, 3)
            assert passed() in (True, None)
            p._recorder.clock = p.clock
            assert work.wait() in (True, None) and work.is_completed()
        p.clock.passes(10)
        p.step()
        told = p.stop()
    assert tensor.tolist() == [2.0] * 250
    found = told["comm_analysis"]["by_operation_type"]["all_reduce"]
    assert (found["count"], found["total_data"]) == (1, 1000)
    assert found["total_time"] == close(0.010) and found["avg_bandwidth_gbps"] == close(1e-4)
    assert found["exposed_time"] == close(0.003) and found["waiting_time"] == close(0.003)
    summary = told["comm_analysis"]["summary"]
    assert summary["comm_percentage"] == close(15) and summary["overlapped_comm_time"] == close(
        0.007
    )
    layers = told["analysis_report"]["layer_breakdown"]
    assert layers["wait"]["operations"] == {"all_reduce": close(0.003)}
    assert (
        layers["call"]["operations"] == {"all_reduce": close(0)}
        and layers["computing"]["operations"] == {}
    )


def timely(clock: Clock, milliseconds: float) -> Any:
    """A clock that moves on between its first call and its second."""
    calls = []

    def read() -> int:
        if calls:
            clock.passes(milliseconds)
        calls.append(1)
        return clock()

    return read


@on_ranks(2)
def test_a_refused_call_counts_as_failed() -> None:
    with profiled() as p:
        with pytest.raises(RuntimeError, match="root rank"):
            dist.broadcast(torch.ones(1), src=7)
        with pytest.raises(TypeError):
            dist.all_reduce()
        dist.all_reduce(torch.ones(1))
        found = by_type(p)
    assert (
        found["broadcast"]["failed"],
        found["all_reduce"]["failed"],
        found["all_reduce"]["count"],
    ) == (1, 1, 2)


@on_ranks(2)
def test_a_drop_in_counts_once() -> None:
    rt.broadcast_object(0)
    with profiled(clock=time.monotonic_ns) as p:
        assert rt.broadcast_object({"step": 7} if dist.get_rank() == 0 else None) == {"step": 7}
        p.step()
        found = p.stop()["comm_analysis"]
    (name,) = found["by_operation_type"]
    assert name == ("ringcast.send" if dist.get_rank() == 0 else "ringcast.recv")
    assert found["nested"] == {}
    rt.close()


# ---- Engines -------------------------------------------------------------------------------------

COORDINATOR = """
import torch
import torch.distributed as dist
class GroupCoordinator:
    def all_reduce(self, input_):
        return self._all_reduce_out_place(input_)
    def _all_reduce_out_place(self, input_):
        result = input_.clone()
        dist.all_reduce(result)
        return result
    def all_gather(self, input_, dim=-1):
        parts = [torch.empty_like(input_) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, input_)
        return torch.cat(parts, dim)
    def broadcast_object(self, obj=None, src=0):
        told = [obj]
        dist.broadcast_object_list(told, src=src)
        return told[0]
    def broadcast_tensor_dict(self, tensor_dict=None, src=0):
        dist.broadcast(tensor_dict["a"], src)
        return tensor_dict
    def barrier(self): dist.barrier()
    def send(self, tensor, dst=None): pass
    def recv(self, size, dtype, src=None): return torch.zeros(size, dtype=dtype)
    def isend_tensor_dict(self, tensors): return [dist.isend(tensors["a"], 1 - dist.get_rank())]
    @staticmethod
    def gather(): pass
    @property
    def dispatch(self): return None
group = GroupCoordinator()
"""
CALLS = """
from {package}.parallel_state import group
def tensor_model_parallel_all_reduce(input_): return group.all_reduce(input_)
def tensor_model_parallel_all_gather(input_, dim=-1): return group.all_gather(input_, dim)
def broadcast_tensor_dict(tensor_dict=None, src=0): return group.broadcast_tensor_dict(tensor_dict, src)
"""
MODEL = "from {package}.communication_op import tensor_model_parallel_all_reduce\n"
PYOBJ = "def broadcast_pyobj(data, rank, dist_group=None, src=0): return data\n"
ENGINES = {"vllm": "vllm.distributed", "sglang": "sglang.srt.distributed"}


class Stubs:
    """An engine's modules in a folder, to be imported from there; gone afterwards."""

    def __init__(self, folder: Any, engine: str) -> None:
        self.folder, self.engine, self.package = folder, engine, ENGINES[engine]
        modules = {
            f"{self.package}.parallel_state": COORDINATOR,
            f"{self.package}.communication_op": CALLS,
        }
        modules[f"{engine}.model"] = MODEL
        write(folder, {name: text.format(package=self.package) for name, text in modules.items()})
        if engine == "sglang":
            write(folder, {"sglang.srt.utils.common": PYOBJ})

    def __enter__(self) -> "Stubs":
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        return self

    def __exit__(self, *_: Any) -> None:
        sys.path.remove(str(self.folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == self.engine]:
            del sys.modules[name]

    def load(self, name: str) -> Any:
        return importlib.import_module(
            name if name.startswith(self.engine) else f"{self.package}.{name}"
        )


@pytest.fixture(params=ENGINES)
def stubs(tmp_path, request):
    with Stubs(tmp_path, request.param) as stubs:
        yield stubs


@pytest.mark.parametrize("loaded", [True, False])
def test_an_engines_functions_are_put_in_and_back_whether_loaded_before_or_after(stubs, loaded):
    def look() -> Dict[Any, Any]:
        cls = stubs.load("parallel_state").GroupCoordinator
        functions = vars(stubs.load("communication_op"))
        found = {**vars(cls), **functions}
        found = {
            name: value for name, value in found.items() if isinstance(value, types.FunctionType)
        }
        return {
            **found,
            "the model's": stubs.load(f"{stubs.engine}.model").tensor_model_parallel_all_reduce,
        }

    before = look() if loaded else {}
    with profiled():
        put = look()
        ours = {name for name, value in put.items() if hasattr(value, "__wrapped__")}
    after = look()
    assert not loaded or after == before
    assert not any(hasattr(value, "__wrapped__") for value in after.values())
    methods = set(METHODS) & set(put) - {"gather", "dispatch"}
    functions = {
        "tensor_model_parallel_all_reduce",
        "tensor_model_parallel_all_gather",
        "broadcast_tensor_dict",
    }
    assert ours == methods | functions | {"the model's"}


def test_a_later_replacement_of_a_method_stays(stubs):
    cls = stubs.load("parallel_state").GroupCoordinator
    with profiled():
        cls.barrier = own = lambda self: None
    assert cls.barrier is own


def ranks_engine(folder: Any, engine: str) -> Any:
    with Stubs(folder, engine) as stubs, profiled() as p:
        group = stubs.load("parallel_state").group
        calls = stubs.load("communication_op")
        tensor = torch.ones(8)
        assert calls.tensor_model_parallel_all_reduce(tensor).tolist() == [2] * 8
        assert group.all_reduce(tensor).tolist() == [2] * 8
        group._all_reduce_out_place(tensor)
        assert calls.tensor_model_parallel_all_gather(tensor, dim=0).shape == (16,)
        assert group.broadcast_object({"a": 1}) == {"a": 1}
        calls.broadcast_tensor_dict({"a": tensor})
        group.barrier()
        group.send(tensor)
        group.recv(torch.Size([4]), torch.float64)
        handles = group.isend_tensor_dict({"a": tensor})
        dist.recv(torch.empty(8), 1 - dist.get_rank())
        p.clock.passes(1)
        for handle in handles:
            handle.wait()
        if engine == "sglang":
            stubs.load("sglang.srt.utils.common").broadcast_pyobj([1], 0)
        p.step()
        return p.stop()["comm_analysis"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engines_calls_count_once_and_what_they_call_is_nested(ranks, tmp_path, engine):
    for found in ranks.run(2, ranks_engine, tmp_path, engine):
        told = {
            name: (each["count"], each["total_data"])
            for name, each in found["by_operation_type"].items()
        }
        objects = told.pop("broadcast_object")
        assert objects[0] == 1 and objects[1] > 8
        if engine == "sglang":
            assert told.pop("broadcast_pyobj") == (1, 0)
        assert told == {
            "all_reduce": (3, 96), "all_gather": (1, 64), "broadcast_tensor_dict": (1, 32), "barrier": (1, 0),
            "send": (1, 32), "recv": (2, 64), "isend": (1, 32),
        }  # fmt: skip
        nested = {name: each["count"] for name, each in found["nested"].items()}
        assert nested[f"all_reduce ({engine})"] == 3 and nested["all_reduce (torch)"] == 3
        assert nested["barrier (torch)"] == nested["broadcast_object_list (torch)"] == 1
        assert found["by_operation_type"]["isend"]["total_time"] == close(0.001)
        assert (
            sum(each["count"] for each in found["by_source"].values())
            == found["summary"]["total_operations"]
        )


# ---- Layers --------------------------------------------------------------------------------------


def test_the_modules_of_a_model_become_regions():
    layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)])
    model = torch.nn.ModuleDict({"layers": layers, "head": torch.nn.Linear(2, 2)})
    with profiled() as p:
        undo = p.watch(model)
        for layer in model["layers"]:
            layer(torch.ones(2))
        model["head"](torch.ones(2))
        with pytest.raises(RuntimeError):
            model["layers"][0](torch.ones(3))
        undo()
        model["layers"][1](torch.ones(2))
        p.step()
        found = p.stop()["analysis_report"]["layer_breakdown"]
    assert {name: each["count"] for name, each in found.items()} == {
        "layers.0": 2, "layers.0.0": 2, "layers.1": 1, "layers.1.0": 1,
    }  # fmt: skip
    assert found["layers.0.0"]["within_another"]
