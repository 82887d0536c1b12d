# SPDX-License-Identifier: Apache-2.0
"""How much of a step of vLLM's is transport: vLLM's own executor with stub workers that sleep as long as a GPU would
compute, and answer. Runs in vLLM's Python, and appends a row for each (milliseconds of a step, number of requests).

transport_vllm.py ENGINE WAY MODEL FILE [--quick]        by run.py
"""

import statistics
import time

import engine_vllm
import session

SLEEPS = [5, 10, 25]  # milliseconds
REQUESTS = [1, 8, 64, 256]


class Worker:
    """What the executor and its worker process ask of a worker, without a model."""

    def __init__(self, rank, **_):
        self.rank, self.milliseconds = rank, 0
        self.calls = []  # (when the call arrived, when the answer was given), of CLOCK_MONOTONIC

    def init_device(self):
        pass

    def load_model(self, **_):
        pass

    def shutdown(self):
        pass

    def begin(self, milliseconds):
        self.milliseconds, self.calls = milliseconds, []

    def execute_model(self, scheduled):
        arrived = time.monotonic_ns()
        from vllm.v1.outputs import ModelRunnerOutput

        time.sleep(self.milliseconds / 1000)
        names = scheduled.scheduled_cached_reqs.req_ids
        numbers = {name: number for number, name in enumerate(names)}
        answer = ModelRunnerOutput(
            req_ids=names, req_id_to_index=numbers, sampled_token_ids=[[number] for number in range(len(names))]
        )
        self.calls.append((arrived, time.monotonic_ns()))
        return answer

    def times(self):
        return self.calls


def decode_step(count, step):
    """What vLLM's scheduler sends for `count` requests, a token for each; each gets a block in every 16th step."""
    from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

    names = [f"cmpl-{number:032x}-0" for number in range(count)]
    cached = CachedRequestData.make_empty()
    cached.req_ids = names
    cached.new_block_ids = [([step + number],) if step % 16 == number % 16 else None for number in range(count)]
    cached.num_computed_tokens = [400 + step] * count
    cached.num_output_tokens = [step] * count
    made = SchedulerOutput.make_empty()
    made.scheduled_cached_reqs = cached
    made.num_scheduled_tokens = dict.fromkeys(names, 1)
    made.total_num_scheduled_tokens = count
    return made


def measure(executor, sleep, count, steps):
    """The row of one combination: microseconds to the last rank's start, and from the answer to the executor."""
    for step in range(8):
        executor.execute_model(decode_step(count, step))
    executor.collective_rpc("begin", args=(sleep,))
    called, received = [], []
    for step in range(steps):
        scheduled = decode_step(count, step)
        called.append(time.monotonic_ns())
        answer = executor.execute_model(scheduled)
        received.append(time.monotonic_ns())
        assert len(answer.sampled_token_ids) == count
    ranks = executor.collective_rpc("times")
    to = [(max(times) - at) / 1e9 for at, times in zip(called, zip(*([call[0] for call in rank] for rank in ranks)))]
    back = [(at - answered) / 1e9 for at, (_, answered) in zip(received, ranks[0])]
    both = [one + other for one, other in zip(to, back)]
    return {
        "case": f"step of {sleep} ms, {count} requests",
        "p50_ms": session.milliseconds(both, 50),
        "p99_ms": session.milliseconds(both, 99),
        "to_us": round(1e6 * statistics.median(to), 1),
        "from_us": round(1e6 * statistics.median(back), 1),
        "ok": True,
    }


def main():
    arguments, tell = session.begin(__doc__, ["vllm"])
    from vllm import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.v1.executor.abstract import Executor

    load_general_plugins()
    options = {**engine_vllm.OPTIONS, "max_num_seqs": max(REQUESTS), "worker_cls": "transport_vllm.Worker"}
    config = EngineArgs(model=str(arguments.model), **options).create_engine_config()
    began = time.perf_counter()
    executor = Executor.get_class(config)(config)
    session.started(tell, began, [worker.proc.pid for worker in executor.workers], arguments.way)
    for sleep in SLEEPS:
        for count in REQUESTS:
            tell(**measure(executor, sleep, count, 30 if arguments.quick else 200))
    executor.shutdown()


if __name__ == "__main__":
    main()
