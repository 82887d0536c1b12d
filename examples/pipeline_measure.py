# SPDX-License-Identifier: Apache-2.0
"""For pipeline.py: figures of single parts, before the runs. The time of a stage, the time for
which the stage holds the GIL, the rounds of the stages in pure Python, and the two ways to map the edges. Durations are
CPU time, which depends little on the load of the machine.
"""

import statistics
import threading
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
from pipeline_graph import KINDS, LAYERS, MAPPINGS, STAGES, Array, Settings, load, make_dataset, make_plans
from pipeline_modes import queued

TIMES = 5
PROBE = 0.0005  # seconds of a sleep of the thread that probes the GIL
LONG_ENOUGH = 0.05


class Unequal(Exception):
    """Two ways to compute one thing have given different results."""


def cpu_time(call: Callable[..., Any], *arguments: Any) -> float:
    start = time.thread_time()
    call(*arguments)
    return time.thread_time() - start


def stage_times(kernel: Any, loaded: Dict[str, Array], nodes: int, times: int = TIMES) -> List[float]:
    """CPU seconds of each stage: the median of some runs after the first."""
    found: List[List[float]] = [[] for _ in STAGES]
    for _ in range(times + 1):
        kernel.begin(loaded["x"], loaded["edges"], 0, nodes)
        for stage in range(1, 8):
            found[stage - 1].append(cpu_time(kernel.run, stage))
    return [statistics.median(seconds[1:]) for seconds in found]


def rounds_for(wanted: List[float], settings: Settings, loaded: Dict[str, Array]) -> Tuple[int, ...]:
    """The rounds with which the stages in pure Python take the wanted times."""
    few, many = (
        stage_times(KINDS["hold"](settings._replace(rounds=(rounds,) * 7)), loaded, settings.nodes, 3)
        for rounds in (1, 6)
    )
    return tuple(
        max(1, round(1 + (seconds - short) / max((long - short) / 5, 1e-9)))
        for seconds, short, long in zip(wanted, few, many)
    )


def lateness(until: Callable[[], bool]) -> Tuple[List[float], float]:
    """The lateness of each wake-up of a sleeping thread, in seconds, and the thread's wait for a CPU."""
    late, queue = [], queued()
    while not until():
        start = time.perf_counter()
        time.sleep(PROBE)
        late.append(time.perf_counter() - start - PROBE)
    return late or [0.0], queued() - queue


def gil_share(kernel: Any, stage: int) -> float:
    """The share of a stage's time in which a second thread waits for the GIL, if the thread asks for it every half
    millisecond. The usual lateness of a wake-up, and the wait for a CPU, are taken off."""
    idle_until = time.perf_counter() + LONG_ENOUGH / 2
    usual = statistics.median(lateness(lambda: time.perf_counter() > idle_until)[0])

    def work() -> None:
        end = time.perf_counter() + LONG_ENOUGH
        kernel.run(stage)
        while time.perf_counter() < end:
            kernel.run(stage)

    thread = threading.Thread(target=work)
    start = time.perf_counter()
    thread.start()
    late, queue = lateness(lambda: not thread.is_alive())
    seconds = time.perf_counter() - start
    return min(1.0, max(0.0, (sum(late) - len(late) * usual - queue) / seconds))


def gil_shares(kernel: Any, loaded: Dict[str, Array], nodes: int) -> List[float]:
    kernel.begin(loaded["x"], loaded["edges"], 0, nodes)
    found = []
    for stage in range(1, 8):
        kernel.run(stage)
        found.append(gil_share(kernel, stage))
    return found


def mapping_times(dataset: Dict[str, Any], settings: Settings) -> Dict[str, Any]:
    part, total = dataset["parts"][0], len(dataset["features"])
    limits = [0, settings.nodes // 2, settings.nodes]
    found, seconds = {}, {}
    for name, times in (("loop", 3), ("vectorised", 20)):
        call = MAPPINGS[name], part["edges"], part["nodes"], total, limits
        found[name] = call[0](*call[1:])
        seconds[name] = statistics.median(cpu_time(*call) for _ in range(times))
    if not all(np.array_equal(left, right) for left, right in zip(found["loop"], found["vectorised"])):
        raise Unequal("the two ways to map the edges have given different results")
    return {
        "loop_ms": seconds["loop"] * 1e3,
        "vectorised_ms": seconds["vectorised"] * 1e3,
        "ratio": seconds["loop"] / max(seconds["vectorised"], 1e-9),
    }


def measure(settings: Settings) -> Dict[str, Any]:
    """All figures of the first subgraph. `rounds` belongs into the Settings of the runs."""
    dataset = make_dataset(settings, [0])
    loaded = load(dataset, settings._replace(mapping="vectorised"), make_plans(settings._replace(plans="a"))[0], 0)
    release = KINDS["release"](settings)
    seconds = stage_times(release, loaded, settings.nodes)
    rounds = rounds_for(seconds, settings, loaded)
    hold = KINDS["hold"](settings._replace(rounds=rounds))
    held = {"hold": stage_times(hold, loaded, settings.nodes, 3), "release": seconds}
    shares = {"hold": gil_shares(hold, loaded, settings.nodes), "release": gil_shares(release, loaded, settings.nodes)}
    return {
        "rounds": rounds,
        "layers": LAYERS,
        "stage_ms": {gil: [value * 1e3 for value in values] for gil, values in held.items()},
        "gil_held": shares,
        "mapping": mapping_times(dataset, settings),
    }
