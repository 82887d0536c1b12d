# SPDX-License-Identifier: Apache-2.0
"""For pipeline.py: a process for each worker, joined by ringcast; and two bare processes, which share nothing.

A driver starts the workers, and broadcasts the loaded subgraphs of a plan to all workers of the plan's first block: one
copy in shared memory, which the workers read in place during the whole run. Each worker has a ring, and broadcasts its
results to all workers of the next block, which read the results in place, or to the driver.
"""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Sequence, Set, Tuple

import numpy as np
from pipeline_graph import KINDS, Array, Plan, Settings, Worker, begin, joined, load, make_dataset, make_plans, rows_of
from pipeline_graph import workers_of
from pipeline_modes import Loader, Outcome, Recorder, Span, StageFailed, Whole, compute, memory_of, stolen, warm_up

import ringcast

FRAMES = 4  # results that a ring holds, so that a worker can be ahead of the next block
CONTEXT = multiprocessing.get_context("spawn")
DONE, FAILED, LOST = "done", "failed", "lost"  # messages of a process; lost: the peer at a ring has left
GONE = (ringcast.WriterGone, ringcast.ReaderDied, ringcast.RingNotFound)
GRACE = 5.0  # seconds to find the first of several failures
PR_SET_PDEATHSIG = 1


# ---- The driver's side -----------------------------------------------------------------------------------------------


class Failed(Exception):
    """The text names the process and the failure."""


class Crew:
    """Named processes, each with a pipe. No process outlives the `with` block."""

    def __init__(self, deadline: float) -> None:
        self.until = time.monotonic() + deadline
        self.processes: Dict[str, Any] = {}
        self.pipes: Dict[str, Any] = {}

    def start(self, name: str, body: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = CONTEXT.Pipe()
        self.processes[name] = CONTEXT.Process(target=guarded, args=(theirs, body, arguments), name=name)
        self.processes[name].start()
        self.pipes[name] = ours
        theirs.close()  # the process has the only copy of this end, so a death ends the pipe

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: Any) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        for pipe in self.pipes.values():
            pipe.close()

    def tell(self, names: Sequence[str], message: Any = None) -> None:
        for name in names:
            with contextlib.suppress(BrokenPipeError):  # `hear` says why
                self.pipes[name].send(message)

    def wait(self, objects: Sequence[Any], missing: Sequence[str]) -> List[Any]:
        """The objects that are readable."""
        found = multiprocessing.connection.wait(objects, max(0.0, self.until - time.monotonic()))
        if not found:
            raise Failed(f"no answer in time from {', '.join(missing)}")
        return found

    def hear(self, name: str) -> Any:
        """The next message of a process."""
        try:
            outcome, found = self.pipes[name].recv()
        except (EOFError, ConnectionResetError):
            outcome, found = LOST, "the process has ended"
        if outcome == FAILED:
            raise Failed(found)
        if outcome == LOST:
            self.blame(f"{name}: {found}")
        return found

    def all(self, names: Sequence[str]) -> Dict[str, Any]:
        """A message of each process."""
        found: Dict[str, Any] = {}
        while missing := [name for name in names if name not in found]:
            ready = self.wait([self.pipes[name] for name in missing], missing)
            found.update({name: self.hear(name) for name in missing if self.pipes[name] in ready})
        return found

    def blame(self, text: str) -> NoReturn:
        """Raises the first failure: a process may report the loss of a peer before the peer's own report comes."""
        pipes = dict(self.pipes)
        while pipes:
            ready = multiprocessing.connection.wait(list(pipes.values()), GRACE)
            if not ready:
                break
            for name in [name for name, pipe in pipes.items() if pipe in ready]:
                try:
                    outcome, found = pipes[name].recv()
                except (EOFError, ConnectionResetError):
                    del pipes[name]
                    process = self.processes[name]
                    process.join(GRACE)
                    if (process.exitcode or 0) < 0:
                        end = f"was killed by signal {-process.exitcode}"
                        raise Failed(f"{name}: the process (pid {process.pid}) {end}") from None
                else:
                    if outcome == FAILED:
                        raise Failed(found) from None
        raise Failed(text)


def guarded(pipe: Any, body: Callable[..., None], arguments: Tuple[Any, ...]) -> None:
    """The whole life of a process: an exception becomes the last message."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        body(pipe, *arguments)
    except (EOFError, BrokenPipeError):
        pass  # the driver is gone
    except GONE as error:
        say(pipe, LOST, str(error))
    except (StageFailed, Failed) as error:
        say(pipe, FAILED, str(error))
    except BaseException as error:
        say(pipe, FAILED, f"{multiprocessing.current_process().name}: {type(error).__name__}: {error}")


def say(pipe: Any, outcome: str, found: Any = None) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.send((outcome, found))


# ---- A worker --------------------------------------------------------------------------------------------------------


class Member:
    """The process of a worker."""

    def __init__(self, pipe: Any, settings: Settings, plan: Plan, worker: Worker) -> None:
        self.pipe, self.settings, self.plan, self.worker = pipe, settings, plan, worker
        self.rows = rows_of(worker, plan, settings.nodes)
        self.recorder = Recorder(str(worker))
        self.kernel = KINDS[settings.gil](settings)
        self.first_rows: List[int] = []  # of each reader: the first row in the frames

    def live(self) -> None:
        with contextlib.ExitStack() as stack:
            name = f"pipeline.{self.worker.block_name}.{self.worker.device}"
            writer = stack.enter_context(ringcast.Writer(self.capacity(), name=name))
            handles, source = self.told((DONE, writer.handle))
            self.first_rows = [first for first, _ in handles]
            readers = [stack.enter_context(ringcast.Reader(handle, name=str(self.worker))) for _, handle in handles]
            inputs = None
            if source:
                reader = stack.enter_context(ringcast.Reader(source, name=str(self.worker)))
                self.pipe.send((DONE, None))
                inputs = stack.enter_context(reader.view(self.settings.deadline))
            else:
                self.pipe.send((DONE, None))
            warm_up(self.kernel, self.settings, self.plan, self.worker)
            self.told((DONE, None))  # the start
            for subgraph in self.plan.subgraphs:
                self.do(subgraph, inputs, readers, writer)
            self.told((DONE, (self.recorder.spans, writer.stats().bytes)))  # all is read, and memory is measured

    def told(self, message: Any) -> Any:
        self.pipe.send(message)
        return self.pipe.recv()

    def capacity(self) -> int:
        last = self.plan.blocks[self.worker.block].stages[-1] == 7
        columns = self.settings.width if last else self.settings.hidden
        return max(1 << 16, FRAMES * ((self.rows[1] - self.rows[0]) * columns * 4 + 4096))

    def do(self, subgraph: int, inputs: Any, readers: List[Any], writer: Any) -> None:
        with contextlib.ExitStack() as views:
            if self.worker.block == 0:
                begin(self.kernel, self.inputs_of(subgraph, inputs), self.worker, self.plan, self.settings.nodes)
            else:
                self.kernel.resume(joined(list(self.receive(subgraph, readers, views)), *self.rows))
            result = compute(self.kernel, self.plan.blocks[self.worker.block].stages, subgraph, self.recorder)
        sent = {"subgraph": subgraph, "rows": result}
        before, start, cpu = writer.stats().waited_ns, time.perf_counter(), time.thread_time()
        writer.send(sent, self.settings.deadline)
        waited = (writer.stats().waited_ns - before) / 1e9
        self.recorder.add("wait", subgraph, 0, start, start + waited)
        self.recorder.add("send", subgraph, 0, start + waited, time.perf_counter(), time.thread_time() - cpu)

    def inputs_of(self, subgraph: int, inputs: Any) -> Dict[str, Array]:
        if self.settings.prepare == "preloaded":
            return inputs[subgraph]
        with self.recorder.measure("load", subgraph):
            return load(inputs, self.settings, self.plan, subgraph)

    def receive(self, subgraph: int, readers: List[Any], views: Any) -> Iterator[Tuple[int, Array]]:
        """The results of the block before, in the rings' memory until `views` ends."""
        for first, reader in zip(self.first_rows, readers):
            before, start, cpu = reader.stats().waited_ns, time.perf_counter(), time.thread_time()
            found = views.enter_context(reader.view(self.settings.deadline))
            waited = (reader.stats().waited_ns - before) / 1e9
            self.recorder.add("wait", subgraph, 0, start, start + waited)
            self.recorder.add("recv", subgraph, 0, start + waited, time.perf_counter(), time.thread_time() - cpu)
            if found["subgraph"] != subgraph:
                raise Failed(f"{self.worker} received subgraph {found['subgraph']} for {subgraph}")
            yield first, found["rows"]


def live(pipe: Any, settings: Settings, plan: Plan, worker: Worker) -> None:
    Member(pipe, settings, plan, worker).live()


# ---- The driver ------------------------------------------------------------------------------------------------------


class Driver:
    def __init__(self, settings: Settings, crew: Crew, stack: contextlib.ExitStack) -> None:
        self.settings, self.crew, self.stack, self.plans = settings, crew, stack, make_plans(settings)
        self.workers = {str(worker): (plan, worker) for plan in self.plans for worker in workers_of(plan)}
        self.readers: Dict[str, ringcast.Reader] = {}
        self.results = {
            subgraph: np.empty((settings.nodes, settings.width), np.float32)
            for plan in self.plans
            for subgraph in plan.subgraphs
        }
        self.spans: List[Span] = []
        self.sent_bytes = 0

    def prepare(self) -> None:
        for name, (plan, worker) in self.workers.items():
            self.crew.start(name, live, self.settings, plan, worker)
        sources = {
            plan.name: self.stack.enter_context(ringcast.Writer(1 << 16, name=f"pipeline.{plan.name}"))
            for plan in self.plans
        }
        handles = self.crew.all(list(self.workers))
        for name, (plan, worker) in self.workers.items():
            before = [
                (rows_of(other, plan, self.settings.nodes)[0], handles[str(other)])
                for other in workers_of(plan)
                if other.block == worker.block - 1
            ]
            self.crew.tell([name], (before, sources[plan.name].handle if worker.block == 0 else None))
            if worker.block == len(plan.blocks) - 1:
                self.readers[name] = self.stack.enter_context(ringcast.Reader(handles[name], name="driver"))
        self.crew.all(list(self.workers))
        for plan in self.plans:
            sources[plan.name].send(self.inputs_of(plan), self.settings.deadline)
        self.crew.all(list(self.workers))
        self.sent_bytes += sum(writer.stats().bytes for writer in sources.values())

    def inputs_of(self, plan: Plan) -> Any:
        """The input of a plan's first block, read in place: the loaded subgraphs, or the dataset to load from."""
        dataset = make_dataset(self.settings, plan.subgraphs)
        if self.settings.prepare != "preloaded":
            return dataset
        loader = Loader(dataset, self.settings)
        loader.preload([plan])
        return loader.loaded

    def run(self) -> None:
        """Starts each plan when the first block of the plan before has ended, and receives all results, and the records
        of the workers."""
        plans = list(self.plans)
        first: Set[str] = set()  # workers of the first block that are at work
        missing: Set[str] = set()  # workers at work
        counts: Dict[str, int] = {}  # results to come
        while plans or missing or any(counts.values()):
            if plans and not first:
                plan = plans.pop(0)
                names = {str(worker): worker for worker in workers_of(plan)}
                self.crew.tell(list(names))
                missing.update(names)
                first = {name for name, worker in names.items() if worker.block == 0}
                counts.update({name: len(plan.subgraphs) for name in names if name in self.readers})
            due = {self.readers[name].fileno(): name for name, count in counts.items() if count}
            for found in self.crew.wait([*due, *(self.crew.pipes[name] for name in missing)], sorted(missing)):
                if found in due:
                    counts[due[found]] -= self.receive(due[found])
                    continue
                name = next(name for name in missing if self.crew.pipes[name] is found)
                spans, sent = self.crew.hear(name)
                missing.remove(name)
                first.discard(name)
                self.spans += spans
                self.sent_bytes += sent

    def receive(self, name: str) -> int:
        """Takes the available results of a worker, and returns the count."""
        plan, worker = self.workers[name]
        first, last = rows_of(worker, plan, self.settings.nodes)
        count = 0
        with contextlib.suppress(TimeoutError):
            while True:
                with self.readers[name].view(0) as found:
                    self.results[found["subgraph"]][first:last] = found["rows"]
                count += 1
        return count


def run_processes(settings: Settings) -> Outcome:
    began = time.perf_counter()
    with Crew(settings.deadline) as crew, contextlib.ExitStack() as stack:
        driver = Driver(settings, crew, stack)
        try:
            driver.prepare()
            prepared_bytes, taken, start = driver.sent_bytes, stolen(), time.perf_counter()
            driver.run()
        except GONE as error:
            crew.blame(str(error))
        seconds, taken = time.perf_counter() - start, stolen() - taken
        memory = [memory_of("driver", os.getpid())]
        memory += [memory_of(name, process.pid) for name, process in crew.processes.items()]
        sent = driver.sent_bytes - prepared_bytes
        return Outcome(seconds, start - began, start, driver.results, driver.spans, memory, sent, taken)


# ---- Bare processes --------------------------------------------------------------------------------------------------


def bare(pipe: Any, settings: Settings, subgraphs: range) -> None:
    """All stages of these subgraphs, in sequence. Nothing is shared, not even the graph."""
    loader = Loader(make_dataset(settings, subgraphs), settings)
    if settings.prepare == "preloaded":
        loader.preload(make_plans(settings))
    whole = Whole(settings, loader, subgraphs)
    whole.warm()
    pipe.send((DONE, None))
    pipe.recv()
    whole.run()
    pipe.send((DONE, time.perf_counter()))
    pipe.recv()  # memory is measured
    pipe.send((DONE, (whole.results, whole.spans())))


def run_bare(settings: Settings, count: int) -> Outcome:
    began = time.perf_counter()
    all_of_them = [subgraph for plan in make_plans(settings) for subgraph in plan.subgraphs]
    names = [f"bare {number}" for number in range(count)]
    with Crew(settings.deadline) as crew:
        for number, name in enumerate(names):
            crew.start(name, bare, settings, range(all_of_them[0] + number, all_of_them[-1] + 1, count))
        crew.all(names)
        taken, start = stolen(), time.perf_counter()
        crew.tell(names)
        seconds, taken = max(crew.all(names).values()) - start, stolen() - taken
        memory = [memory_of(name, crew.processes[name].pid) for name in names]
        crew.tell(names)
        parts = crew.all(names).values()
    results = {subgraph: rows for found, _ in parts for subgraph, rows in found.items()}
    spans = [span for _, spans in parts for span in spans]
    return Outcome(seconds, start - began, start, results, spans, memory, 0, taken)
