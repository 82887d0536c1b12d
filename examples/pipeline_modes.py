# SPDX-License-Identifier: Apache-2.0
"""For pipeline.py: the modes of one process (sequential, threads, asyncio), and the record of a worker's times.

Every run starts a process (`host`), so that no mode inherits memory of an earlier run.
"""

import asyncio
import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
from pipeline_graph import KINDS, Array, Plan, Settings, Worker, begin, blank, joined, load, make_dataset, make_plans
from pipeline_graph import rows_of, workers_of

# ---- The record of a worker ------------------------------------------------------------------------------------------


class Span(NamedTuple):
    worker: str
    block: str
    kind: str  # "wait" (for input), "load", "stage", "block" (all its stages), "send", "recv"
    subgraph: int
    stage: int  # 0: none
    start: float  # seconds of the clock that all processes share
    end: float
    cpu: float  # CPU seconds of the thread
    queue: float  # of a block: seconds in which the thread was ready to run and had no CPU


def queued() -> float:
    """The seconds for which the calling thread was ready to run and had no CPU; 0 if the kernel does not count."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Recorder:
    """The spans of a worker."""

    def __init__(self, worker: str) -> None:
        self.worker, self.block, self.spans = worker, worker.split()[0], []  # type: str, str, List[Span]

    def add(self, kind: str, subgraph: int, stage: int, start: float, end: float, cpu: float = 0, queue: float = 0):
        self.spans.append(Span(self.worker, self.block, kind, subgraph, stage, start, end, cpu, queue))

    @contextlib.contextmanager
    def measure(self, kind: str, subgraph: int, stage: int = 0) -> Iterator[None]:
        cpu, start = time.thread_time(), time.perf_counter()
        yield
        self.add(kind, subgraph, stage, start, time.perf_counter(), time.thread_time() - cpu)


class StageFailed(Exception):
    """The text names the worker, the subgraph and the stage."""


def run_stage(kernel: Any, stage: int, place: str) -> None:
    try:
        kernel.run(stage)
    except Exception as error:
        raise StageFailed(f"{place}, stage {stage}: {type(error).__name__}: {error}") from error


def compute(kernel: Any, stages: range, subgraph: int, recorder: Recorder) -> Array:
    """Runs the stages of a block, and returns the result: memory that the next run overwrites."""
    queue, cpu, start = queued(), time.thread_time(), time.perf_counter()
    for stage in stages:
        with recorder.measure("stage", subgraph, stage):
            run_stage(kernel, stage, f"{recorder.worker}, subgraph {subgraph}")
    end, cpu = time.perf_counter(), time.thread_time() - cpu
    recorder.add("block", subgraph, 0, start, end, cpu, queued() - queue)
    return kernel.result()


class Loader:
    """Loads each subgraph once: all in `preload`, or each at the first worker's request."""

    def __init__(self, dataset: Dict[str, Any], settings: Settings) -> None:
        self.dataset, self.settings = dataset, settings
        self.loaded: Dict[int, Dict[str, Array]] = {}
        self.locks = {subgraph: threading.Lock() for subgraph in dataset["parts"]}

    def preload(self, plans: List[Plan]) -> None:
        for plan in plans:
            for subgraph in plan.subgraphs:
                if subgraph in self.locks:
                    self.loaded[subgraph] = load(self.dataset, self.settings, plan, subgraph)

    def get(self, plan: Plan, subgraph: int, recorder: Recorder) -> Dict[str, Array]:
        if subgraph not in self.loaded:
            start = time.perf_counter()
            with self.locks[subgraph]:
                recorder.add("wait", subgraph, 0, start, time.perf_counter())
                if subgraph not in self.loaded:
                    with recorder.measure("load", subgraph):
                        self.loaded[subgraph] = load(self.dataset, self.settings, plan, subgraph)
        return self.loaded[subgraph]


# ---- One after another -----------------------------------------------------------------------------------------------


class Whole:
    """One thread runs all blocks of a subgraph, unsplit, then the next subgraph."""

    def __init__(self, settings: Settings, loader: Loader, subgraphs: Optional[range] = None) -> None:
        self.settings, self.loader = settings, loader
        self.work = [
            (plan, subgraph)
            for plan in make_plans(settings)
            for subgraph in plan.subgraphs
            if subgraphs is None or subgraph in subgraphs
        ]
        self.kernel = KINDS[settings.gil](settings)
        self.recorders = {
            f"{plan.name}{number + 1}": Recorder(f"{plan.name}{number + 1}")
            for plan in make_plans(settings)
            for number in range(len(plan.blocks))
        }
        self.results: Dict[int, Array] = {}

    def warm(self) -> None:
        loaded = blank(self.settings)
        self.kernel.begin(loaded["x"], loaded["edges"], 0, self.settings.nodes)
        for stage in range(1, 8):
            run_stage(self.kernel, stage, "warming up")

    def run(self) -> None:
        for plan, subgraph in self.work:
            for number, block in enumerate(plan.blocks):
                recorder = self.recorders[f"{plan.name}{number + 1}"]
                if number == 0:
                    loaded = self.loader.get(plan, subgraph, recorder)
                    self.kernel.begin(loaded["x"], loaded["edges"], 0, self.settings.nodes)
                result = compute(self.kernel, block.stages, subgraph, recorder)
            self.results[subgraph] = result.copy()

    def spans(self) -> List[Span]:
        return [span for recorder in self.recorders.values() for span in recorder.spans]


# ---- Workers of one process ------------------------------------------------------------------------------------------


class Team:
    """The workers of all plans, their work for a subgraph, and their results by subgraph. A plan begins when the first
    block of the plan before has ended."""

    def __init__(self, settings: Settings, loader: Loader) -> None:
        self.settings, self.loader, self.plans = settings, loader, make_plans(settings)
        self.workers = [worker for plan in self.plans for worker in workers_of(plan)]
        self.kernels = {worker: KINDS[settings.gil](settings) for worker in self.workers}
        self.recorders = {worker: Recorder(str(worker)) for worker in self.workers}
        self.rows = {
            worker: rows_of(worker, plan, settings.nodes) for plan in self.plans for worker in workers_of(plan)
        }
        self.outputs: Dict[Tuple[Worker, int], Array] = {}

    def warm(self) -> None:
        """Runs each worker's stages once, and makes room for all results."""
        for plan in self.plans:
            for worker in workers_of(plan):
                kernel = self.kernels[worker]
                warm_up(kernel, self.settings, plan, worker)
                for subgraph in plan.subgraphs:
                    self.outputs[worker, subgraph] = kernel.result().copy()

    def before(self, worker: Worker) -> List[Worker]:
        return [other for other in self.workers if other[:2] == (worker.plan, worker.block - 1)]

    def do(self, plan: Plan, worker: Worker, subgraph: int) -> None:
        kernel, recorder = self.kernels[worker], self.recorders[worker]
        if worker.block == 0:
            begin(kernel, self.loader.get(plan, subgraph, recorder), worker, plan, self.settings.nodes)
        else:
            with recorder.measure("recv", subgraph):
                parts = [(self.rows[other][0], self.outputs[other, subgraph]) for other in self.before(worker)]
                kernel.resume(joined(parts, *self.rows[worker]))
        result = compute(kernel, plan.blocks[worker.block].stages, subgraph, recorder)
        with recorder.measure("send", subgraph):
            self.outputs[worker, subgraph][...] = result

    @property
    def results(self) -> Dict[int, Array]:
        found = {}
        for plan in self.plans:
            last = [worker for worker in workers_of(plan) if worker.block == len(plan.blocks) - 1]
            for subgraph in plan.subgraphs:
                parts = [(self.rows[worker][0], self.outputs[worker, subgraph]) for worker in last]
                found[subgraph] = joined(parts, 0, self.settings.nodes)
        return found

    def spans(self) -> List[Span]:
        return [span for recorder in self.recorders.values() for span in recorder.spans]


def warm_up(kernel: Any, settings: Settings, plan: Plan, worker: Worker) -> None:
    """Runs the stages of a worker once, on zeros, so that later runs find the memory touched."""
    first, last = rows_of(worker, plan, settings.nodes)
    if worker.block == 0:
        loaded = blank(settings)
        targets = loaded["edges"][1]
        kernel.begin(loaded["x"], loaded["edges"][:, (targets >= first) & (targets < last)], first, last)
    else:
        kernel.resume(np.zeros((last - first, settings.hidden), np.float32))
    for stage in plan.blocks[worker.block].stages:
        run_stage(kernel, stage, f"{worker}, warming up")


class Threads(Team):
    """A thread for each worker. An Event for each worker and subgraph says that the result is there."""

    def run(self) -> None:
        self.events = {key: threading.Event() for key in self.outputs}
        self.failures: List[BaseException] = []
        started: List[threading.Thread] = []
        for plan in self.plans:
            threads = {worker: threading.Thread(target=self.work, args=(plan, worker)) for worker in workers_of(plan)}
            for thread in threads.values():
                thread.start()
            started += threads.values()
            for worker, thread in threads.items():
                if worker.block == 0:
                    thread.join()
        for thread in started:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def work(self, plan: Plan, worker: Worker) -> None:
        try:
            for subgraph in plan.subgraphs:
                with self.recorders[worker].measure("wait", subgraph):
                    for other in self.before(worker):
                        self.events[other, subgraph].wait()
                if self.failures:
                    return
                self.do(plan, worker, subgraph)
                self.events[worker, subgraph].set()
        except BaseException as error:
            self.failures.append(error)
            for event in self.events.values():  # all threads see the failure
                event.set()


class Asyncio(Team):
    """A task for each worker in one event loop; a thread of an executor runs each block."""

    def run(self) -> None:
        asyncio.run(self.run_tasks())

    async def run_tasks(self) -> None:
        self.events = {key: asyncio.Event() for key in self.outputs}
        tasks: List[Any] = []
        with ThreadPoolExecutor(len(self.workers)) as self.pool:
            try:
                for plan in self.plans:
                    own = {worker: asyncio.create_task(self.work(plan, worker)) for worker in workers_of(plan)}
                    tasks += own.values()
                    await asyncio.gather(*(task for worker, task in own.items() if worker.block == 0))
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    async def work(self, plan: Plan, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        for subgraph in plan.subgraphs:
            began = time.perf_counter()
            for other in self.before(worker):
                await self.events[other, subgraph].wait()
            await loop.run_in_executor(self.pool, self.in_thread, plan, worker, subgraph, began)
            self.events[worker, subgraph].set()

    def in_thread(self, plan: Plan, worker: Worker, subgraph: int, began: float) -> None:
        self.recorders[worker].add("wait", subgraph, 0, began, time.perf_counter())
        self.do(plan, worker, subgraph)


# ---- A run in one process --------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    seconds: float
    prepare_seconds: float
    began: float
    results: Dict[int, Array]
    spans: List[Span]
    memory: List[Dict[str, Any]]  # of each process: name, pid, rss, pss; bytes
    sent_bytes: int  # through rings
    stolen: float  # CPU seconds that the host of a virtual machine took from all CPUs during the run


def stolen() -> float:
    """CPU seconds that the host of a virtual machine has taken so far; 0 if the kernel does not count."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def memory_of(name: str, pid: int) -> Dict[str, Any]:
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, value = line.split(":")
        fields[key] = int(value.split()[0]) * 1024
    return {"name": name, "pid": pid, "rss": fields["Rss"], "pss": fields["Pss"]}


def run_here(make: Callable[..., Any], settings: Settings) -> Outcome:
    """A run of a mode of one process: of Whole, Threads or Asyncio."""
    began = time.perf_counter()
    plans = make_plans(settings)
    loader = Loader(make_dataset(settings, [number for plan in plans for number in plan.subgraphs]), settings)
    if settings.prepare == "preloaded":
        loader.preload(plans)
    team = make(settings, loader)
    team.warm()
    taken, start = stolen(), time.perf_counter()
    team.run()
    seconds, taken = time.perf_counter() - start, stolen() - taken
    memory = [memory_of("all", os.getpid())]
    return Outcome(seconds, start - began, start, team.results, team.spans(), memory, 0, taken)
