# SPDX-License-Identifier: Apache-2.0
"""For the tests of ringcast.profile: a clock that stands still, and what a profile has written."""

import json
import pathlib
from typing import Any, Callable, Dict, List

import pytest

from ringcast import _spans
from ringcast.profile import profile

MS = 1_000_000
FILES = {
    "analysis_report.json", "comm_analysis.json", "comprehensive_report.json", "detailed_timings.csv",
    "performance_report.md", "profile.json",
}  # fmt: skip
PICTURES = {
    "layer_performance_heatmap.png", "operation_time_distribution.png", "compute_vs_communication.png",
    "memory_usage_analysis.png", "performance_bottlenecks.png", "bandwidth_analysis.png",
}  # fmt: skip


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


class Clock:
    """Nanoseconds, which passes() moves on, and each reading by `tick`."""

    def __init__(self, tick: int) -> None:
        self.now, self._tick = 1_000_000_000, tick

    def __call__(self) -> int:
        self.now += self._tick
        return self.now

    def passes(self, milliseconds: float) -> None:
        self.now += round(milliseconds * MS)


def profiled(folder: Any = None, tick: int = 0, **options: Any) -> Any:
    """A profile with a clock of its own, p.clock, without warm-up and pictures."""
    clock = Clock(tick)
    made = profile(folder, **{"warmup": 0, "pictures": False, "clock": clock, **options})
    made.clock = clock
    return made


def told(script: Callable[[Any], Any], **options: Any) -> Any:
    """What a profile tells of a step in which `script` ran."""
    with profiled(**options) as p:
        script(p)
        p.step()
        return p.stop()


def takes(p: Any, milliseconds: float, name: str = "send", **more: Any) -> None:
    """An operation."""
    with p.operation(name, **more):
        p.clock.passes(milliseconds)


def operations(report: Any) -> Dict[str, Any]:
    return report["comm_analysis"]["by_operation_type"]


def summary(report: Any, *names: str) -> List[Any]:
    return [report["comm_analysis"]["summary"][name] for name in names]


def read(folder: Any, name: str) -> Dict[str, Any]:
    return json.loads((pathlib.Path(folder) / name).read_text())


def lines(folder: Any) -> List[Dict[str, str]]:
    first, *rest = (pathlib.Path(folder) / "detailed_timings.csv").read_text().splitlines()
    return [dict(zip(first.split(","), line.split(","))) for line in rest]


def named(folder: Any) -> Any:
    return {path.name for path in pathlib.Path(folder).iterdir()}


def span(p: Any, kind: str, start: float, end: float, thread: int, nbytes: int = 0) -> _spans.Span:
    """start, end: milliseconds from now on."""
    now = p.clock()
    return _spans.Span(kind, now + round(start * MS), now + round(end * MS), thread, 1, 0, nbytes)
