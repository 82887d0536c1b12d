# SPDX-License-Identifier: Apache-2.0
"""The model of docs/scale.md: figures that are made of known constants give these constants back; the page is made of
its raw figures; machines are measured."""

import json
import math
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

import scale  # noqa: E402
import scale_machines  # noqa: E402
import scale_model as model  # noqa: E402
import scale_tables  # noqa: E402
from scale_model import Legs, Line, Ring  # noqa: E402

pytestmark = pytest.mark.alike

RING = Ring(
    2,
    25.0,
    *(Line(base, slope) for base, slope in [(60, 0.05), (20, 0.04), (15, 0.02), (30, 0.1), (40, 0.2)]),
    Line(3000, 4000),
    Line(9000, 3500),
)
LEGS = Legs(Line(150e3, 0.7), Line(90e3, 0.4), Line(20e3, 0.25), Line(80e3, 0.3))


def shared(size, readers):
    return (RING.write.at(size) + readers * RING.read.at(size)) / RING.cores


def run(way, machines, each, rate):
    found = [
        {
            "size": size,
            "last_ns": model.star(LEGS, size, machines, rate or math.inf, model.beside(RING, each), RING.cores),
            "cpu_ns": model.cost(LEGS, size, machines),
            "machine_cpu_ns": LEGS.take.at(size),
        }
        for size in scale.PLAN
    ]
    return {"way": way, "machines": machines, "each": each, "rate": rate, "found": found}


def figures():
    """What would be measured if the model were true."""
    sizes = scale_tables.SIZES
    return {
        "machine": {"cores": RING.cores},
        "latency": {str(n): {"one_way_ns": {"p50": RING.latency.at(n)}, "line_ns": {"p50": RING.line}} for n in sizes},
        "burst": {str(n): RING.burst.at(n) for n in sizes},
        "stream": {
            str(n): {str(r): 1e9 / (shared(n, r) if r > 1 else RING.period.at(n)) for r in scale_tables.READERS}
            for n in sizes
        },
        "wake": {
            str(r): {f"{key}_us": {"p50": getattr(RING, key).at(r) / 1e3} for key in ("commit", "slowest")}
            for r in scale.ASLEEP
        },
        "machines": [run(*each) for each in scale.RUNS],
    }


def test_figures_made_of_constants_give_the_constants_back():
    raw = figures()
    found = model.ring_of(raw)
    for mine, theirs in zip(RING, found):
        assert theirs == pytest.approx(mine)
    for legs in scale_tables.legs_by_way(raw).values():
        for mine, theirs in zip(LEGS, legs):
            assert theirs == pytest.approx(mine)
    rows = scale_tables.compared(raw)
    assert len(rows) == 4 + 4 * len(scale_tables.READERS) + 2 * len(scale.ASLEEP) + 3 * (len(scale.RUNS) + 9)
    assert all(row[3] == pytest.approx(row[4]) for row in rows)


def test_a_negative_fit_is_taken_as_0_and_its_figures_count_as_misses():
    raw = figures()
    exact = scale_tables.accuracy(raw).splitlines()
    raw["stream"]["64"]["2"] *= 4
    clamped = scale_tables.accuracy(raw).splitlines()
    assert model.ring_of(raw).write.at(model.SMALL) == 0
    title = "| one machine, readers that share the cores | "
    counts = [int(line.split("|")[2]) for lines in (exact, clamped) for line in lines if line.startswith(title)]
    assert counts[1] == counts[0] + 2


def test_a_link_with_a_rate_carries_each_message_once_for_each_machine():
    alone = model.star(LEGS, 1 << 20, 8, 10**9) - LEGS.first.at(1 << 20)
    assert alone == pytest.approx(7 * (1 << 23) / 1e9 * 1e9)


def test_more_of_anything_takes_no_less():
    for size, more in ((64, 65), (1 << 20, 1 << 21)):
        for count in range(2, 40):
            assert model.period(RING, size, count) <= model.period(RING, size, count + 1)
            assert model.star(LEGS, size, count) < model.star(LEGS, size, count + 1)
            assert model.star(LEGS, size, count) < model.star(LEGS, more, count)
            assert model.star(LEGS, size, count, 10**8) >= model.star(LEGS, size, count, 10**9)
            assert model.star(LEGS, size, count, cores=2) >= model.star(LEGS, size, count)
            for cores in (None, 2):
                times = [model.star(LEGS, size, count, later=later, cores=cores) for later in (0, 1)]
                assert times[0] < times[1]
        once, published, in_turn = model.latencies(RING, size, 64, 200)
        assert once < (published or in_turn) <= in_turn and (published is None) == (size > 64)
        assert model.latencies(RING, size, 64, 100)[0] < once


def test_a_tree_is_faster_from_the_crossing_on():
    for size in scale.PLAN:
        crossing = model.crossing(LEGS, size)
        assert model.tree(LEGS, size, crossing)[0] < model.star(LEGS, size, crossing)
        assert model.tree(LEGS, size, crossing - 1)[0] >= model.star(LEGS, size, crossing - 1)
    assert model.tree_of(LEGS, 64, 13, 3, math.inf) == 2 * model.star(LEGS, 64, 4)  # 1 + 3 + 9
    assert model.tree_of(LEGS, 64, 14, 3, math.inf) == 3 * model.star(LEGS, 64, 4)


def test_the_page_is_made_of_its_raw_figures():
    raw, text = json.loads(scale.RAW.read_text(encoding="utf-8")), scale.PAGE.read_text(encoding="utf-8")
    assert scale.written(raw, text) == text
    assert scale.written(raw, text.replace("| --- |", "| -- |")) == text


def test_machines_are_measured():
    pytest.importorskip("zmq", reason="pyzmq is not installed here")
    for found, size in zip(scale_machines.run("zmq", 2, 2, [(64, 1), (5000, 2)]), (64, 5000)):
        assert found["size"] == size
        assert min(found[of] for of in ("last_ns", "call_ns", "cpu_ns", "machine_cpu_ns")) > 0
