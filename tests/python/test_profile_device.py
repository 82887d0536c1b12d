# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile on a CUDA device: its own events give the times, and nothing waits for it before
the end. The device is a stand-in."""

import sys
import types

import pytest
from profiles import profiled

pytestmark = pytest.mark.alike


class Event:
    """The device moves `now` on when work is queued, in milliseconds; `reached` follows later."""

    def __init__(self, device):
        self.device = device
        device.made += 1

    def record(self):
        self.at = self.device.now

    def query(self):
        return self.at <= self.device.reached

    def synchronize(self):
        self.device.waits += 1
        self.device.reached = max(self.device.reached, self.at)

    def elapsed_time(self, other):
        assert self.query() and other.query(), "read before the device has passed it"
        return other.at - self.at


@pytest.fixture
def dist(monkeypatch):
    """torch.distributed, whose all_reduce takes 4 ms of the device, or 3 ms of a wait."""
    dist = types.ModuleType("torch.distributed")
    device = types.SimpleNamespace(now=0.0, reached=0.0, waits=0, made=0)
    device.Event = lambda enable_timing: Event(device)
    device.is_initialized = device.is_available = lambda: True
    device.is_current_stream_capturing = lambda: False
    device.memory_allocated = device.max_memory_allocated = lambda: 7 << 20

    class Work:
        def wait(self):
            device.now += 3

    def all_reduce(tensor, async_op=False):
        device.now += 0 if async_op else 4
        return Work() if async_op else None

    dist.Work, dist.all_reduce, dist.is_available, dist.device = Work, all_reduce, bool, device
    torch, c10d = types.ModuleType("torch"), types.ModuleType("torch.distributed.distributed_c10d")
    torch.cuda, c10d.all_reduce = device, all_reduce
    for module in torch, dist, c10d:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("ringcast.profile.intercept._class", None)  # of the torch that is here
    return dist


TENSOR = types.SimpleNamespace(is_cuda=True, nbytes=2_000_000)
HOSTS = types.SimpleNamespace(is_cuda=False, nbytes=2_000_000)


def test_the_time_is_the_device_s_and_nothing_waits_for_it_before_the_end(dist):
    device = dist.device
    with profiled() as p:
        p.step()  # from here on the device is known
        with p.region("layer"):
            dist.all_reduce(TENSOR)
            device.now += 1
        p.clock.passes(10)
        p.step("decode")
        device.reached = device.now
        work = dist.all_reduce(TENSOR, async_op=True)
        device.now += 5
        work.wait()
        p.clock.passes(10)
        p.step("decode")
        assert device.waits == 0
        report = p.stop()["analysis_report"]
    assert device.waits > 0
    found, layer = report["communication_analysis"], report["layer_breakdown"]["layer"]
    operation = found["by_operation_type"]["all_reduce"]
    assert (operation["count"], operation["total_time"]) == (2, pytest.approx(0.012))
    assert found["exposed_comm_time"] == pytest.approx(0.007)  # of the second, its wait
    assert layer["total_time"] == pytest.approx(0.005)
    assert layer["self_time"] == pytest.approx(0.001)
    (decode,) = report["steps"]["by_label"].values()
    assert decode["comm_percentage"] == pytest.approx(35)
    (memory,) = report["memory"]["by_rank"].values()
    assert memory["device_max"] == 7 << 20


@pytest.mark.parametrize("reason", ["not used", "captures a graph", "on the CPU"])
def test_without_events_the_host_s_time_counts(dist, reason):
    dist.device.is_initialized = lambda: reason != "not used"
    dist.device.is_current_stream_capturing = lambda: reason == "captures a graph"
    with profiled() as p:
        p.step()
        dist.all_reduce(HOSTS if reason == "on the CPU" else TENSOR)
        p.step()
        found = p.stop()["analysis_report"]["communication_analysis"]
    assert found["by_operation_type"]["all_reduce"]["count"] == 1
    assert dist.device.made == 0
