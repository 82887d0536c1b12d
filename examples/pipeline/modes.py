# SPDX-License-Identifier: Apache-2.0
"""The modes: one thread for all blocks, threads, asyncio, processes joined by ringcast, and bare
processes.

Each run starts processes (ranks.py), so that no mode inherits memory of an earlier run.
"""

import asyncio
import contextlib
import multiprocessing
import os
import re
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from graph import (
    KINDS,
    MAPPINGS,
    Array,
    Plan,
    Settings,
    Worker,
    begin,
    blank,
    joined,
    load,
    make_dataset,
    make_plans,
)
from graph import rows_of, workers_of
from ranks import run_ranks

import ringcast

FRAMES = 4  # results that a ring holds, so that a worker can be ahead of the next block
CONTEXT = multiprocessing.get_context("spawn")
Subgraph = Dict[str, Array]

# ---- The record of a worker ----------------------------------------------------------------------


class Span(NamedTuple):
    worker: str
    kind: str  # "wait" (for input), "load", "stage", "block" (all its stages), "send", "recv"
    subgraph: int
    stage: int  # 0: none
    start: float  # seconds of the clock that all processes share
    end: float
    cpu: float  # CPU seconds of the thread
    queue: float  # of a block: seconds in which the thread was ready to run and had no CPU

    @property
    def block(self) -> str:
        return self.worker.split()[0]


def queued() -> float:
    """The seconds for which this thread was ready to run and had no CPU; 0 if the kernel does not
    count."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Recorder:
    """The spans of a worker."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.spans: List[Span] = []

    def add(self, kind: str, subgraph: int, start: float, end: float) -> None:
        self.spans.append(Span(self.worker, kind, subgraph, 0, start, end, 0, 0))

    @contextlib.contextmanager
    def measure(self, kind: str, subgraph: int, stage: int = 0) -> Iterator[None]:
        queue = queued() if kind == "block" else 0
        cpu, start = time.thread_time(), time.perf_counter()
        yield
        end, cpu = time.perf_counter(), time.thread_time() - cpu
        queue = queued() - queue if kind == "block" else 0
        self.spans.append(Span(self.worker, kind, subgraph, stage, start, end, cpu, queue))

    @contextlib.contextmanager
    def call(self, kind: str, subgraph: int, end_of_ring: Any) -> Iterator[None]:
        """A send or a receipt: its waiting for the other side is apart."""
        before, start = end_of_ring.stats().waited_ns, time.perf_counter()
        yield
        waited = (end_of_ring.stats().waited_ns - before) / 1e9
        self.add("wait", subgraph, start, start + waited)
        self.add(kind, subgraph, start + waited, time.perf_counter())


class Failed(Exception):
    """The text names the worker, the subgraph and the stage."""


class Lost(Exception):
    """Another process of the run has failed."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """A failure is told by its text, without a traceback."""
    try:
        yield
    except (Failed, Lost) as error:
        raise SystemExit(str(error)) from None


def compute(kernel: Any, stages: range, subgraph: int, recorder: Recorder) -> Array:
    """Runs the stages of a block, and returns the result: memory that the next run overwrites."""
    with recorder.measure("block", subgraph):
        for stage in stages:
            with recorder.measure("stage", subgraph, stage):
                try:
                    kernel.run(stage)
                except Exception as error:
                    raise Failed(
                        f"{recorder.worker}, subgraph {subgraph}, stage {stage}: {error!r}"
                    ) from error
    return kernel.result()


def warm_up(kernel: Any, settings: Settings, plan: Plan, worker: Worker) -> None:
    """Runs the stages of a worker once, on zeros, so that later runs find the memory touched."""
    first, last = rows_of(worker, plan, settings.nodes)
    if worker.block == 0:
        loaded = blank(settings)
        targets = loaded["edges"][1]
        kernel.begin(
            loaded["x"], loaded["edges"][:, (targets >= first) & (targets < last)], first, last
        )
    else:
        kernel.resume(np.zeros((last - first, settings.hidden), np.float32))
    for stage in plan.blocks[worker.block].stages:
        kernel.run(stage)


class Loader:
    """Loads each subgraph once: all at once, or each at the first worker's request."""

    def __init__(self, settings: Settings, plans: Sequence[Plan], subgraphs: Sequence[int]) -> None:
        self.dataset, self.settings = make_dataset(settings, subgraphs), settings
        self.loaded: Dict[int, Subgraph] = {}
        self.lock = threading.Lock()
        if settings.prepare == "preloaded":
            for plan in plans:
                for subgraph in set(plan.subgraphs) & set(subgraphs):
                    self.loaded[subgraph] = load(self.dataset, settings, plan, subgraph)

    def get(self, plan: Plan, subgraph: int, recorder: Recorder) -> Subgraph:
        if subgraph not in self.loaded:
            start = time.perf_counter()
            with self.lock:
                recorder.add("wait", subgraph, start, time.perf_counter())
                if subgraph not in self.loaded:
                    with recorder.measure("load", subgraph):
                        self.loaded[subgraph] = load(self.dataset, self.settings, plan, subgraph)
        return self.loaded[subgraph]


# ---- Modes of one process ------------------------------------------------------------------------


class Whole:
    """One thread runs all blocks of a subgraph, unsplit, then the next subgraph."""

    def __init__(self, settings: Settings, subgraphs: Optional[Sequence[int]] = None) -> None:
        self.settings, self.plans = settings, make_plans(settings)
        self.subgraphs = range(settings.subgraphs) if subgraphs is None else subgraphs
        self.loader = Loader(settings, self.plans, self.subgraphs)
        self.kernel = KINDS[settings.gil](settings)
        blocks = [
            f"{plan.name}{number + 1}" for plan in self.plans for number in range(len(plan.blocks))
        ]
        self.recorders = {block: Recorder(block) for block in blocks}
        self.results: Dict[int, Array] = {}
        loaded = blank(settings)
        self.kernel.begin(loaded["x"], loaded["edges"], 0, settings.nodes)
        for stage in range(1, 8):
            self.kernel.run(stage)

    def run(self) -> None:
        for plan in self.plans:
            for subgraph in plan.subgraphs:
                if subgraph in self.subgraphs:
                    self.results[subgraph] = self.do(plan, subgraph).copy()

    def do(self, plan: Plan, subgraph: int) -> Array:
        result = None
        for number, block in enumerate(plan.blocks):
            recorder = self.recorders[f"{plan.name}{number + 1}"]
            if number == 0:
                loaded = self.loader.get(plan, subgraph, recorder)
                self.kernel.begin(loaded["x"], loaded["edges"], 0, self.settings.nodes)
            result = compute(self.kernel, block.stages, subgraph, recorder)
        return result


class Team:
    """
    Workers of one process, and their results by subgraph. A plan begins when the first block of the
    plan before has ended.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.plans = settings, make_plans(settings)
        self.loader = Loader(settings, self.plans, range(settings.subgraphs))
        self.workers = {worker: plan for plan in self.plans for worker in workers_of(plan)}
        self.kernels = {worker: KINDS[settings.gil](settings) for worker in self.workers}
        self.recorders = {worker: Recorder(str(worker)) for worker in self.workers}
        self.rows = {
            worker: rows_of(worker, plan, settings.nodes) for worker, plan in self.workers.items()
        }
        self.outputs: Dict[Tuple[Worker, int], Array] = {}
        for worker, plan in self.workers.items():
            warm_up(self.kernels[worker], settings, plan, worker)
            for subgraph in plan.subgraphs:
                self.outputs[worker, subgraph] = self.kernels[worker].result().copy()

    def before(self, worker: Worker) -> List[Worker]:
        return [other for other in self.workers if other[:2] == (worker.plan, worker.block - 1)]

    def do(self, worker: Worker, subgraph: int) -> None:
        plan, kernel, recorder = self.workers[worker], self.kernels[worker], self.recorders[worker]
        if worker.block == 0:
            begin(
                kernel, self.loader.get(plan, subgraph, recorder), worker, plan, self.settings.nodes
            )
        else:
            with recorder.measure("recv", subgraph):
                parts = [
                    (self.rows[other][0], self.outputs[other, subgraph])
                    for other in self.before(worker)
                ]
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


class Threads(Team):
    """
    A thread for each worker. An Event for each worker and subgraph says that the result is there.
    """

    def run(self) -> None:
        self.events = {key: threading.Event() for key in self.outputs}
        self.failed = False
        with ThreadPoolExecutor(len(self.workers)) as pool:
            futures = []
            for plan in self.plans:
                own = {worker: pool.submit(self.work, worker) for worker in workers_of(plan)}
                futures += own.values()
                for worker, future in own.items():
                    if worker.block == 0:
                        future.result()
            for future in futures:
                future.result()

    def work(self, worker: Worker) -> None:
        try:
            for subgraph in self.workers[worker].subgraphs:
                start = time.perf_counter()
                for other in self.before(worker):
                    self.events[other, subgraph].wait()
                self.recorders[worker].add("wait", subgraph, start, time.perf_counter())
                if self.failed:
                    return
                self.do(worker, subgraph)
                self.events[worker, subgraph].set()
        except BaseException:
            self.failed = True
            for event in self.events.values():
                event.set()
            raise


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
                    own = {
                        worker: asyncio.create_task(self.work(worker))
                        for worker in workers_of(plan)
                    }
                    tasks += own.values()
                    await asyncio.gather(
                        *(task for worker, task in own.items() if worker.block == 0)
                    )
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    async def work(self, worker: Worker) -> None:
        for subgraph in self.workers[worker].subgraphs:
            began = time.perf_counter()
            for other in self.before(worker):
                await self.events[other, subgraph].wait()
            await asyncio.get_running_loop().run_in_executor(
                self.pool, self.in_thread, worker, subgraph, began
            )
            self.events[worker, subgraph].set()

    def in_thread(self, worker: Worker, subgraph: int, began: float) -> None:
        self.recorders[worker].add("wait", subgraph, began, time.perf_counter())
        self.do(worker, subgraph)


# ---- A process for each worker -------------------------------------------------------------------


class Hub:
    """
    The driver's end of a pipe to each worker. None is the message of a process that has failed.
    """

    def __init__(self, pipes: Dict[str, Any]) -> None:
        self.pipes = pipes

    def hear(self, names: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """A message of each worker."""
        found = {name: self.pipes[name].recv() for name in (self.pipes if names is None else names)}
        if None in found.values():
            raise Lost("a worker has failed")
        return found

    def tell(self, messages: Dict[str, Any]) -> None:
        for name, message in messages.items():
            with contextlib.suppress(BrokenPipeError):
                self.pipes[name].send(message)

    def meet(self) -> None:
        """All workers, and the driver, go on from here."""
        self.tell(dict.fromkeys(self.hear(), True))


def told(pipe: Any, message: Any = True) -> Any:
    """The driver's answer."""
    pipe.send(message)
    answer = pipe.recv()
    if answer is None:
        raise Lost("the driver has failed")
    return answer


def live(
    rank: int, settings: Settings, place: Optional[Tuple[Plan, Worker]], pipe: Any, store: str
) -> Any:
    """The process of a worker; of the driver, if `place` is None."""
    with plain_errors(), contextlib.ExitStack() as stack:
        try:
            return (
                drive(settings, Hub(pipe), stack)
                if place is None
                else serve(settings, *place, pipe, stack)
            )
        except BaseException:
            if place is None:
                Hub(pipe).tell(dict.fromkeys(pipe))
            else:
                pipe.send(None)
            raise


def serve(
    settings: Settings, plan: Plan, worker: Worker, pipe: Any, stack: contextlib.ExitStack
) -> Any:
    recorder, kernel = Recorder(str(worker)), KINDS[settings.gil](settings)
    first, last = rows_of(worker, plan, settings.nodes)
    is_last = worker.block == len(plan.blocks) - 1
    size = (last - first) * (settings.width if is_last else settings.hidden) * 4 + 4096
    name = f"pipeline.{str(worker).replace(' ', '.')}"
    writer = stack.enter_context(ringcast.Writer(max(1 << 16, FRAMES * size), name=name))
    handles = told(pipe, writer.handle)  # with the first row of each
    readers = [
        (row, stack.enter_context(ringcast.Reader(handle, name=str(worker))))
        for row, handle in handles
    ]
    told(pipe)
    inputs = (
        stack.enter_context(readers[0][1].view(settings.deadline)) if worker.block == 0 else None
    )
    warm_up(kernel, settings, plan, worker)
    told(pipe)  # the start
    for subgraph in plan.subgraphs:
        with contextlib.ExitStack() as views:
            if worker.block == 0:
                begin(
                    kernel,
                    input_of(settings, plan, subgraph, inputs, recorder),
                    worker,
                    plan,
                    settings.nodes,
                )
            else:
                found = [
                    (row, take(each, subgraph, recorder, settings, views)) for row, each in readers
                ]
                kernel.resume(joined(found, first, last))
            result = compute(kernel, plan.blocks[worker.block].stages, subgraph, recorder)
        with recorder.call("send", subgraph, writer):
            writer.send({"subgraph": subgraph, "rows": result}, settings.deadline)
    told(pipe)  # the end; while memory is measured, all processes are there
    memory = memory_of(str(worker))
    told(pipe)
    return recorder.spans, memory, writer.stats().bytes


def input_of(
    settings: Settings, plan: Plan, subgraph: int, inputs: Any, recorder: Recorder
) -> Subgraph:
    """In place in shared memory: the loaded subgraph, or the dataset to load it from."""
    if settings.prepare == "preloaded":
        return inputs[subgraph]
    with recorder.measure("load", subgraph):
        return load(inputs, settings, plan, subgraph)


def take(
    reader: Any, subgraph: int, recorder: Recorder, settings: Settings, views: contextlib.ExitStack
) -> Array:
    """The rows that the block before has sent, in the ring's memory until `views` ends."""
    with recorder.call("recv", subgraph, reader):
        found = views.enter_context(reader.view(settings.deadline))
    if found["subgraph"] != subgraph:
        raise Failed(f"{recorder.worker} received subgraph {found['subgraph']} for {subgraph}")
    return found["rows"]


def drive(settings: Settings, hub: Hub, stack: contextlib.ExitStack) -> Any:
    """Sends the loaded subgraphs of a plan to all workers of its first block, one copy in shared
    memory, and receives the results of the last."""
    plans = make_plans(settings)
    sources = {
        plan.name: stack.enter_context(ringcast.Writer(1 << 16, name=f"pipeline.{plan.name}"))
        for plan in plans
    }
    handles = hub.hear()
    workers = {str(worker): (worker, plan) for plan in plans for worker in workers_of(plan)}
    rows = {name: rows_of(worker, plan, settings.nodes) for name, (worker, plan) in workers.items()}
    for name, (worker, plan) in workers.items():
        before = [str(other) for other in workers_of(plan) if other.block == worker.block - 1]
        needed = [(rows[other][0], handles[other]) for other in before] or [
            (0, sources[plan.name].handle)
        ]
        hub.tell({name: needed})
    readers = {
        name: stack.enter_context(ringcast.Reader(handles[name], name="driver"))
        for name, (worker, plan) in workers.items()
        if worker.block == len(plan.blocks) - 1
    }
    results = {
        subgraph: np.empty((settings.nodes, settings.width), np.float32)
        for subgraph in range(settings.subgraphs)
    }

    def receive(name: str) -> None:
        for _ in workers[name][1].subgraphs:
            with readers[name].view(settings.deadline) as found:
                results[found["subgraph"]][slice(*rows[name])] = found["rows"]

    hub.meet()  # all rings have their readers
    for plan in plans:
        loader = Loader(settings, [plan], plan.subgraphs)
        loaded = loader.loaded if settings.prepare == "preloaded" else loader.dataset
        sources[plan.name].send(loaded, settings.deadline)
    hub.hear()  # all are ready
    taken, start = stolen(), time.perf_counter()
    with ThreadPoolExecutor(len(readers)) as pool:
        received = [pool.submit(receive, name) for name in readers]
        for plan in plans:  # a plan begins when the first block of the plan before has ended
            hub.tell({str(worker): True for worker in workers_of(plan)})
            hub.hear([str(worker) for worker in workers_of(plan) if worker.block == 0])
        for future in received:
            future.result()
    seconds, taken = time.perf_counter() - start, stolen() - taken
    hub.hear([name for name, (worker, _) in workers.items() if worker.block > 0])
    hub.tell(dict.fromkeys(workers, True))
    memory = memory_of("driver")
    hub.meet()
    return seconds, start, taken, memory, results


# ---- Runs ----------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    seconds: float
    prepare_seconds: float  # from the begin of making the graph, or of starting the processes
    began: float
    results: Dict[int, Array]
    spans: List[Span]
    memory: List[Dict[str, Any]]  # of each process: name, rss, pss; bytes
    sent_bytes: int = 0  # through rings, without the loaded subgraphs
    stolen: float = (
        0.0  # CPU seconds that the host of a virtual machine took from all CPUs during the run
    )


def stolen() -> float:
    """
    CPU seconds that the host of a virtual machine has taken so far; 0 if the kernel does not count.
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def memory_of(name: str) -> Dict[str, Any]:
    fields = dict(
        line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    )
    return {
        "name": name,
        **{key.lower(): int(fields[key].split()[0]) * 1024 for key in ("Rss", "Pss")},
    }


def run_here(rank: int, mode: str, settings: Settings, store: str) -> Outcome:
    began = time.perf_counter()
    team = {"sequential": Whole, "threads": Threads, "asyncio": Asyncio}[mode](settings)
    taken, start = stolen(), time.perf_counter()
    with plain_errors():
        team.run()
    seconds, taken = time.perf_counter() - start, stolen() - taken
    spans = [span for recorder in team.recorders.values() for span in recorder.spans]
    return Outcome(seconds, start - began, start, team.results, spans, [memory_of("all")], 0, taken)


def run_bare(rank: int, settings: Settings, count: int, pipe: Any, store: str) -> Outcome:
    """All stages of a part of the subgraphs, in sequence, without ringcast. Not even the graph is
    shared. Rank 0 has pipes to the others."""

    def meet() -> None:
        Hub(pipe).meet() if rank == 0 else told(pipe)

    began = time.perf_counter()
    whole = Whole(settings, range(rank, settings.subgraphs, count))
    meet()
    start = time.perf_counter()
    with plain_errors():
        whole.run()
    seconds = time.perf_counter() - start
    meet()
    memory = memory_of(f"bare {rank}")
    meet()
    spans = [span for recorder in whole.recorders.values() for span in recorder.spans]
    return Outcome(seconds, start - began, start, whole.results, spans, [memory])


def pipes(names: Sequence[str]) -> Tuple[Dict[str, Any], List[Any]]:
    """A pipe for each name: the ends of the driver, and those of the others."""
    made = [CONTEXT.Pipe() for _ in names]
    return {name: ours for name, (ours, _) in zip(names, made)}, [theirs for _, theirs in made]


def run(mode: str, settings: Settings, bare: int = 2) -> Outcome:
    """
    SystemExit: a stage failed, a process died, or the deadline is over; the text names the worker.
    """
    if mode == "bare":
        ours, theirs = pipes([str(rank) for rank in range(1, bare)])
        given = [(settings, bare, pipe) for pipe in (ours, *theirs)]
        parts = ranks(mode, run_bare, given, settings.deadline)
        whole = max(parts, key=lambda part: part.seconds)
        results = {subgraph: rows for part in parts for subgraph, rows in part.results.items()}
        spans, memory = (
            [each for part in parts for each in getattr(part, name)] for name in ("spans", "memory")
        )
        return whole._replace(results=results, spans=spans, memory=memory)
    if mode != "processes":
        return ranks(mode, run_here, [(mode, settings)], settings.deadline)[0]
    began = time.perf_counter()
    places = [(plan, worker) for plan in make_plans(settings) for worker in workers_of(plan)]
    names = [str(worker) for _, worker in places]
    ours, theirs = pipes(names)
    given = [
        (settings, None, ours),
        *((settings, place, pipe) for place, pipe in zip(places, theirs)),
    ]
    (seconds, start, taken, memory, results), *others = ranks(
        mode, live, given, settings.deadline, ["driver", *names]
    )
    spans = [span for each in others for span in each[0]]
    memory, sent = [memory, *(each[1] for each in others)], sum(each[2] for each in others)
    return Outcome(seconds, start - began, start, results, spans, memory, sent, taken)


def ranks(
    mode: str, body: Callable[..., Any], given: Sequence[Any], deadline: float, names: Any = ()
) -> List[Any]:
    """run_ranks(), with the names of workers in the errors."""

    def named(numbers: str) -> str:
        return ", ".join(names[int(number)] for number in numbers.split(", "))

    try:
        return run_ranks(body, given, deadline)
    except SystemExit as error:
        text = re.sub(
            r"\brank (\d+(?:, \d+)*)",
            lambda found: named(found[1]) if names else found[0],
            str(error),
        )
        text = re.sub(r"(?m)^([^:,\n]+): (?=\1,)", "", text)
        raise SystemExit(f"{mode}: {text}") from None


# ---- Before the runs -----------------------------------------------------------------------------


def measure(rank: int, settings: Settings, store: str) -> Dict[str, Any]:
    """
    The rounds of the stages in pure Python with which these take as long as their counterparts, and
    the time of both ways to map the edges of a subgraph; by CPU time, which depends little on the
    machine's load.
    """
    dataset, plan = make_dataset(settings, [0]), make_plans(settings)[0]
    loaded = load(dataset, settings._replace(mapping="vectorised"), plan, 0)
    wanted = stage_times(KINDS["release"](settings), loaded, settings.nodes)
    few, many = (
        stage_times(KINDS["hold"](settings._replace(rounds=(rounds,) * 7)), loaded, settings.nodes)
        for rounds in (1, 6)
    )
    rounds = tuple(
        max(1, round(1 + (seconds - short) / max((long - short) / 5, 1e-9)))
        for seconds, short, long in zip(wanted, few, many)
    )
    part, limits = dataset["parts"][0], [0, settings.nodes // 2, settings.nodes]
    ways = {
        name: cpu_time(
            lambda call=call: call(part["edges"], part["nodes"], len(dataset["features"]), limits)
        )
        for name, call in MAPPINGS.items()
    }
    return {"rounds": rounds, "mapping_ms": {name: seconds * 1e3 for name, seconds in ways.items()}}


def stage_times(kernel: Any, loaded: Subgraph, nodes: int) -> List[float]:
    kernel.begin(loaded["x"], loaded["edges"], 0, nodes)
    for stage in range(1, 8):
        kernel.run(stage)
    kernel.begin(loaded["x"], loaded["edges"], 0, nodes)
    return [cpu_time(lambda stage=stage: kernel.run(stage)) for stage in range(1, 8)]


def cpu_time(call: Callable[[], Any]) -> float:
    """The median of three."""
    found = []
    for _ in range(3):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    return statistics.median(found)
