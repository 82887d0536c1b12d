# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile on a CUDA device: events, and no waiting for the device. The device is a stand-in."""

import sys
import types
from typing import Any, List

import pytest
from profiles import profiled

from ringcast.profile import intercept, recorder

pytestmark = pytest.mark.alike


class Event:
    """The device passes events in their order, when it gets to them, at a time of its own."""

    made: List["Event"] = []
    reached = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = self.synchronized = None
        Event.made.append(self)

    def record(self) -> None:
        self.at = Cuda.now

    def query(self) -> bool:
        return self.at <= Event.reached

    def synchronize(self) -> None:
        self.synchronized = True
        Event.reached = max(Event.reached, self.at)

    def elapsed_time(self, other: "Event") -> float:
        assert self.query() and other.query(), "read before the device has passed it"
        return other.at - self.at


class Cuda(types.SimpleNamespace):
    now = 0.0  # milliseconds, of the work that is queued
    capturing = False

    def __init__(self) -> None:
        super().__init__(Event=Event, is_initialized=lambda: True, is_available=lambda: True)
        self.is_current_stream_capturing = lambda: Cuda.capturing
        self.memory_allocated, self.max_memory_allocated = lambda: 5 << 20, lambda: 7 << 20


class Tensor:
    is_cuda, nbytes = True, 2_000_000


class Work:
    def wait(self) -> None:
        Cuda.now += 3


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    torch, dist = types.ModuleType("torch"), types.ModuleType("torch.distributed.distributed_c10d")
    package = types.ModuleType("torch.distributed")
    torch.cuda, package.Work = Cuda(), Work
    package.is_available = lambda: False

    def all_reduce(tensor: Any, async_op: bool = False) -> Any:
        Cuda.now += 0 if async_op else 4
        return Work() if async_op else None

    dist.all_reduce = package.all_reduce = all_reduce
    for module in torch, package, dist:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    intercept.timed_work_class.cache_clear()
    Event.made, Event.reached, Cuda.now, Cuda.capturing = [], 0.0, 0.0, False
    yield package
    intercept.timed_work_class.cache_clear()


@pytest.fixture
def p(stand_in):
    with profiled() as p:
        p.step()  # from here on the device is known
        yield p


def told(p: Any) -> Any:
    report = p.stop()["analysis_report"]
    return report["communication_analysis"], report


def test_the_devices_time_counts_and_nothing_waits_for_the_device(p, stand_in):
    stand_in.all_reduce(Tensor())
    Cuda.now += 1
    p.clock.passes(10)
    p.step()
    assert p._store.operations == {} and not any(event.synchronized for event in Event.made)
    Event.reached = Cuda.now
    p.step()
    assert len(p._store.operations) == 1 and not any(event.synchronized for event in Event.made)
    communication, report = told(p)
    found = communication["by_operation_type"]["all_reduce"]
    assert found["total_time"] == pytest.approx(0.004) and found["avg_bandwidth_gbps"] == pytest.approx(0.5)
    assert communication["comm_percentage"] == pytest.approx(40)
    (memory,) = report["memory"]["by_rank"].values()
    assert memory["device_max"] == 7 << 20


def test_what_the_device_has_not_passed_is_waited_for_at_the_end(p, stand_in):
    for _ in range(3):
        stand_in.all_reduce(Tensor())
        p.clock.passes(5)
        p.step()
    assert p._store.operations == {}
    assert told(p)[0]["by_operation_type"]["all_reduce"]["total_time"] == pytest.approx(0.012)


def test_a_handle_has_events_around_its_wait(p, stand_in):
    work = stand_in.all_reduce(Tensor(), async_op=True)
    Cuda.now += 5
    work.wait()
    p.clock.passes(10)
    p.step()
    communication, _ = told(p)
    assert communication["by_operation_type"]["all_reduce"]["total_time"] == pytest.approx(0.008)
    assert communication["exposed_comm_time"] == pytest.approx(0.003)


def test_a_step_s_communication_on_the_device_counts_to_the_step_when_it_is_known(p, stand_in):
    for communicates in True, True, False:
        if communicates:
            stand_in.all_reduce(Tensor())
        p.clock.passes(10)
        p.step()
    told(p)
    (series,) = p._store.series.values()
    assert [row[2] for row in series.kept] == [0, 4_000_000, 4_000_000, 0]


def test_regions_have_the_devices_time_too(p, stand_in):
    with p.region("layer"):
        Cuda.now += 2
        stand_in.all_reduce(Tensor())
        p.step()
        Cuda.now += 1
    p.step()
    layer = told(p)[1]["layer_breakdown"]["layer"]
    assert layer["total_time"] == pytest.approx(0.007) and layer["operations"] == {"all_reduce": pytest.approx(0.004)}
    assert layer["self_time"] == pytest.approx(0.003) and layer["count"] == 1


def test_events_are_used_again(p, stand_in):
    for _ in range(50):
        stand_in.all_reduce(Tensor())
        p.step()
        Event.reached = Cuda.now
    assert len(Event.made) <= 4


def test_a_device_that_does_not_get_on_does_not_fill_the_memory(p, stand_in, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_PENDING", 5)
    for _ in range(20):
        stand_in.all_reduce(Tensor())
        p.clock.passes(1)
        p.step()
        assert len(Event.made) <= 14
    assert told(p)[0]["by_operation_type"]["all_reduce"]["count"] == 20


@pytest.mark.parametrize("why", ["capturing", "on the CPU"])
def test_the_hosts_time_counts_where_there_are_no_events(p, stand_in, monkeypatch, why):
    if why == "capturing":
        Cuda.capturing = True
    else:
        monkeypatch.setattr(Tensor, "is_cuda", False)
    stand_in.all_reduce([Tensor()])
    p.step()
    assert Event.made == [] and told(p)[0]["by_operation_type"]["all_reduce"]["count"] == 1


def test_a_device_that_the_program_does_not_use_is_left_alone(stand_in):
    sys.modules["torch"].cuda.is_initialized = lambda: False
    with profiled() as p:
        p.step()
        stand_in.all_reduce(Tensor())
        p.step()
        assert Event.made == [] and told(p)[0]["by_operation_type"]["all_reduce"]["count"] == 1


def test_point_to_point_bandwidth_is_rated_on_a_device_alone(p, stand_in):
    def send(tensor: Any) -> None:
        Cuda.now += 0.01

    timed = p._interceptor.wrap(send, "send", "torch", lambda args, kwargs, result: args[0].nbytes)
    timed(Tensor())
    p.step()
    (measure,) = (each for each in told(p)[1]["rating"] if each["measure"] == "P2P bandwidth")
    assert (measure["value"], measure["rating"]) == (pytest.approx(200, rel=1e-3), "good")
