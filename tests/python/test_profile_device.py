# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile on a CUDA device, which it waits for before and after: a stand-in."""

import sys
import types
from typing import Any

import pytest
from profiles import profiled

from ringcast.profile import intercept

pytestmark = pytest.mark.alike


class Cuda(types.SimpleNamespace):
    queued = 0.0  # milliseconds of work that the device has not done
    clock: Any = None
    waits = 0
    capturing = False

    def __init__(self) -> None:
        super().__init__(is_initialized=lambda: True, is_available=lambda: True)
        self.current_stream = lambda: self
        self.is_current_stream_capturing = lambda: Cuda.capturing
        self.memory_allocated, self.max_memory_allocated = lambda: 5 << 20, lambda: 7 << 20

    def synchronize(self) -> None:
        Cuda.waits += 1
        Cuda.clock.passes(Cuda.queued)
        Cuda.queued = 0.0


class Tensor:
    is_cuda, nbytes = True, 2_000_000


class Work:
    def wait(self) -> None:
        Cuda.queued += 3


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    torch, dist = types.ModuleType("torch"), types.ModuleType("torch.distributed.distributed_c10d")
    package = types.ModuleType("torch.distributed")
    torch.cuda, package.Work = Cuda(), Work
    package.is_available = lambda: False

    def all_reduce(tensor: Any, async_op: bool = False) -> Any:
        Cuda.queued += 0 if async_op else 4
        return Work() if async_op else None

    dist.all_reduce = package.all_reduce = all_reduce
    for module in torch, package, dist:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    intercept.timed_work_class.cache_clear()
    Cuda.queued, Cuda.waits, Cuda.capturing = 0.0, 0, False
    yield package
    intercept.timed_work_class.cache_clear()


@pytest.fixture
def p(stand_in):
    with profiled() as p:
        Cuda.clock = p.clock
        p.step()  # from here on the device is known
        yield p


def told(p: Any) -> Any:
    report = p.stop()["analysis_report"]
    return report["communication_analysis"], report


def test_the_devices_time_counts(p, stand_in):
    Cuda.queued += 1  # computing, in front of the operation
    stand_in.all_reduce(Tensor())
    Cuda.queued += 5
    p.step()
    communication, report = told(p)
    found = communication["by_operation_type"]["all_reduce"]
    assert found["total_time"] == pytest.approx(0.004) and found[
        "avg_bandwidth_gbps"
    ] == pytest.approx(0.5)
    assert communication["comm_percentage"] == pytest.approx(40)
    (memory,) = report["memory"]["by_rank"].values()
    assert memory["device_max"] == 7 << 20


def test_a_handle_is_timed_to_the_end_of_its_wait(p, stand_in):
    work = stand_in.all_reduce(Tensor(), async_op=True)
    p.clock.passes(5)
    work.wait()
    p.step()
    communication, _ = told(p)
    assert communication["by_operation_type"]["all_reduce"]["total_time"] == pytest.approx(0.008)
    assert communication["exposed_comm_time"] == pytest.approx(0.003)


def test_regions_have_the_devices_time_too(p, stand_in):
    with p.region("layer"):
        Cuda.queued += 2
        stand_in.all_reduce(Tensor())
        p.step()
        Cuda.queued += 1
    p.step()
    layer = told(p)[1]["layer_breakdown"]["layer"]
    assert layer["total_time"] == pytest.approx(0.007)
    assert layer["operations"] == {"all_reduce": pytest.approx(0.004)}
    assert layer["self_time"] == pytest.approx(0.003) and layer["count"] == 1


@pytest.mark.parametrize("why", ["capturing", "on the CPU", "not initialised"])
def test_without_a_device_nothing_is_waited_for(stand_in, monkeypatch, why):
    if why == "capturing":
        Cuda.capturing = True
    elif why == "on the CPU":
        monkeypatch.setattr(Tensor, "is_cuda", False)
    else:
        sys.modules["torch"].cuda.is_initialized = lambda: False
    with profiled() as p:
        Cuda.clock = p.clock
        p.step()
        before = Cuda.waits
        stand_in.all_reduce([Tensor()])
        assert Cuda.waits == before
        p.step()
        assert told(p)[0]["by_operation_type"]["all_reduce"]["count"] == 1


def test_point_to_point_bandwidth_is_rated_on_a_device_alone(p, stand_in):
    def send(tensor: Any) -> None:
        Cuda.queued += 0.01

    timed = p._interceptor.wrap(send, "send", "torch", lambda args, kwargs, result: args[0].nbytes)
    timed(Tensor())
    p.step()
    (measure,) = (each for each in told(p)[1]["rating"] if each["measure"] == "P2P bandwidth")
    assert (measure["value"], measure["rating"]) == (pytest.approx(200, rel=1e-3), "good")
