# SPDX-License-Identifier: Apache-2.0
"""How much of a step of the whole vLLM is transport, and how long the ranks compute: each call that
the executor makes in a step is timed where it is sent, where it arrives, where it is answered and
where the answer arrives. Runs in vLLM's Python, and appends a row for each number of requests.

inside_vllm.py ENGINE WAY MODEL FILE [--quick]        by run.py
"""

import os
import statistics
import time

import engine_vllm
import session
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.worker.cpu_worker import CPUWorker

WATCHED = ["execute_model", "sample_tokens"]
REQUESTS = [1, 8, 64]


class Worker(CPUWorker):
    """times: of each watched call (when the call arrived, when the answer was given), of
    CLOCK_MONOTONIC."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.times = []

    def execute_model(self, *args, **options):
        return self._timed(super().execute_model, *args, **options)

    def sample_tokens(self, *args, **options):
        return self._timed(super().sample_tokens, *args, **options)

    def _timed(self, call, *args, **options):
        arrived = time.monotonic_ns()
        answer = call(*args, **options)
        self.times.append((arrived, time.monotonic_ns()))
        return answer

    def take_times(self):
        times, self.times = self.times, []
        return times


class Executor(MultiprocExecutor):
    """times: of each watched call (when the call was made, when rank 0's answer was there)."""

    def _init_executor(self):
        super()._init_executor()
        self.times, self.called = [], []
        send, receive = self.rpc_broadcast_mq.enqueue, self.response_mqs[0].dequeue

        def enqueue(call, *args, **options):
            self.called.append((call[0] in WATCHED, time.monotonic_ns()))
            return send(call, *args, **options)

        def dequeue(*args, **options):
            answer = receive(*args, **options)
            watched, called = self.called.pop(0)  # rank 0 answers every call, in order
            if watched:
                self.times.append((called, time.monotonic_ns()))
            return answer

        self.rpc_broadcast_mq.enqueue, self.response_mqs[0].dequeue = enqueue, dequeue

    def collective_rpc(self, method, *args, **options):
        answers = super().collective_rpc(method, *args, **options)
        if method == "take_times":
            times, self.times = self.times, []
            return [*answers, times]
        return answers


def measure(engine, count, tokens):
    """
    Microseconds of a call to the last rank, and of an answer to the executor; milliseconds of rank
    0's work.
    """
    session.generate(engine, count, 8)
    engine.llm.collective_rpc("take_times")
    steps = session.steps_of(session.generate(engine, count, tokens))
    *ranks, executor = engine.llm.collective_rpc("take_times")
    assert {len(times) for times in ranks} == {len(executor)}, "a call or an answer is missing"
    to = [
        (max(rank[0] for rank in each) - called) / 1e3
        for (called, _), each in zip(executor, zip(*ranks))
    ]
    back = [(received - answered) / 1e3 for (_, received), (_, answered) in zip(executor, ranks[0])]
    work = sum(answered - arrived for arrived, answered in ranks[0]) / 1e6
    return {
        "case": f"the whole engine, {count} requests",
        "p50_ms": session.milliseconds(steps, 50),
        "p99_ms": session.milliseconds(steps, 99),
        "to_us": round(statistics.median(to), 1),
        "from_us": round(statistics.median(back), 1),
        "rank_ms": round(
            work / (len(steps) + 5), 2
        ),  # steps_of() leaves out four gaps between steps
        "ok": True,
    }


def main():
    arguments, tell = session.begin(__doc__, ["vllm"])
    watched = {
        "worker_cls": "inside_vllm.Worker",
        "distributed_executor_backend": "inside_vllm.Executor",
    }
    engine_vllm.OPTIONS.update(watched)
    began = time.perf_counter()
    engine = engine_vllm.start(arguments.model)
    session.started(tell, began, engine_vllm.workers(os.getpid()), arguments.way)
    for count in REQUESTS:
        tell(**measure(engine, count, 64 if arguments.quick else 256))
    engine.close()


if __name__ == "__main__":
    main()
