#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A driver and its tensor-parallel workers: each step's inputs go from rank 0 to all the others.

The same steps go two ways, in turn: through ringcast, and through torch.distributed with gloo, in
the way of vLLM's broadcast_tensor_dict for CPU tensors (August 2026). Every worker makes each
step's inputs from the seed, too, and compares every byte. The exit status is 0 only if all bytes
are equal.

  latency     lock-step: the driver sends a step when all workers have acknowledged the last step
              through a pipe. The time runs from just before the driver's call to just after the
              call of the latest worker.
  throughput  free-running: all steps of a block back to back, until the last worker has the last
  one.

--kill RANK shows what happens when a worker dies: the steps go through ringcast alone, in
lock-step; in the middle of the run that worker is killed, and the driver prints the rank, the
frame, and the time until the driver knew. With
--on-death fail the run ends there, with exit status 1; with evict the other workers go on, and
compare every byte.

--steps 0 goes on in lock-step, by ringcast alone, until Ctrl-C or the deadline: something for
`ringcast top` to show. Whatever ends a run early, the error names the ranks that are stopped or
dead.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import statistics
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ranks import cpu_model, end_all, exit_without, run_ranks, who_is_stopped

try:
    import torch
    import torch.distributed as dist

    import ringcast.torch
except ModuleNotFoundError as error:
    exit_without(error)

Inputs = Dict[str, Any]
FEATURES_EVERY = 16
BLOCKS = 6


# ---- What an engine sends in each step -----------------------------------------------------------


def make_inputs(seed: int, step: int) -> Inputs:
    """The inputs of a step, the same in every process. Now and then a request brings 2 MB of image
    features."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)

    def integers(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(high, shape, generator=random, dtype=dtype)

    requests = 8 + step % 25
    tokens = 4 * requests
    inputs: Inputs = {
        "step": step,
        "request_ids": [f"chatcmpl-{seed}-{step // 8 + index:08x}" for index in range(requests)],
        "input_ids": integers(128_000, tokens),
        "positions": integers(8192, tokens),
        "slot_mapping": integers(1 << 20, tokens),
        "block_tables": integers(1 << 16, requests, 32, dtype=torch.int32),
        "temperature": torch.rand(requests, generator=random),
        "top_p": torch.rand(requests, generator=random),
        "is_greedy": integers(2, requests) == 0,
        "num_prefill_tokens": tokens - requests if step % 4 == 0 else 0,
        "is_prompt": step % 4 == 0,
        "lora": None,
    }
    if step % FEATURES_EVERY == 0:
        inputs["features"] = torch.randn(1024, 1024, generator=random).to(torch.float16)
    return inputs


def difference(got: Any, wanted: Any, where: str) -> Optional[str]:
    """
    Says where `got` is not exactly `wanted`: type, order, dtype, shape, every byte. None: nowhere.
    """
    if type(got) is not type(wanted):
        return f"{where}: {type(got).__name__} instead of {type(wanted).__name__}"
    if isinstance(wanted, dict):
        parts = [(list(got), list(wanted), f"the keys of {where}")]
        parts += [(got.get(key), wanted[key], f"{where}[{key!r}]") for key in wanted]
        return next(filter(None, (difference(*part) for part in parts)), None)
    if not isinstance(wanted, torch.Tensor):
        return None if got == wanted else f"{where}: {got!r} instead of {wanted!r}"
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return (
            f"{where}: {got.dtype} {tuple(got.shape)} instead of {wanted.dtype} "
            f"{tuple(wanted.shape)}"
        )
    same = torch.equal(
        *(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (got, wanted))
    )
    return None if same else f"{where}: other bytes"


# ---- The two ways --------------------------------------------------------------------------------


def by_ringcast(inputs: Optional[Inputs]) -> Inputs:
    return ringcast.torch.broadcast_tensor_dict(inputs, src=0)


class TensorMetadata(NamedTuple):
    dtype: torch.dtype
    size: torch.Size


def by_gloo(inputs: Optional[Inputs]) -> Inputs:
    """First a pickled list of the keys, dtypes and shapes; then a broadcast for each tensor, all in
    flight at once."""
    metadata: List[Any] = [inputs and [(key, describe(value)) for key, value in inputs.items()]]
    dist.broadcast_object_list(metadata, src=0)
    inputs = inputs or {key: make_room(value) for key, value in metadata[0]}
    tensors = [
        value for value in inputs.values() if isinstance(value, torch.Tensor) and value.numel()
    ]
    for work in [dist.broadcast(tensor, src=0, async_op=True) for tensor in tensors]:
        work.wait()
    return inputs


def describe(value: Any) -> Any:
    return TensorMetadata(value.dtype, value.size()) if isinstance(value, torch.Tensor) else value


def make_room(value: Any) -> Any:
    return (
        torch.empty(value.size, dtype=value.dtype) if isinstance(value, TensorMetadata) else value
    )


WAYS: Dict[str, Callable[[Optional[Inputs]], Inputs]] = {"ringcast": by_ringcast, "gloo": by_gloo}


# ---- The run: blocks of steps, which driver and workers go through together ----------------------


class Block(NamedTuple):
    what: str  # "warm-up", "latency", "throughput" or "endless"
    way: str
    steps: range


def plan(steps: int) -> Iterator[Block]:
    """
    Both ways get the same steps in alternating blocks, so a slow moment of the machine slows both
    ways. 0 steps: one way, in lock-step, without end.
    """
    while not steps:
        yield Block("endless", "ringcast", range(FEATURES_EVERY))
    ways = list(WAYS)
    for way in ways:
        yield Block("warm-up", way, range(min(steps, FEATURES_EVERY + 1)))
    for what in "latency", "throughput":
        for block in range(BLOCKS):
            part = range(steps * block // BLOCKS, steps * (block + 1) // BLOCKS)
            for way in ways if block % 2 == 0 else reversed(ways):
                yield Block(what, way, part)


def drive(block: Block, seed: int, workers: List[Any]) -> List[int]:
    """The latency of each step, or the time of the whole block; nanoseconds."""
    broadcast, steps, latencies = (
        WAYS[block.way],
        [make_inputs(seed, step) for step in block.steps],
        [],
    )
    wait_for_all(workers)
    began = time.perf_counter_ns()
    for inputs in steps:
        sent = time.perf_counter_ns()
        broadcast(inputs)
        if block.what != "throughput":
            latencies.append(wait_for_all(workers) - sent)
    return latencies or [wait_for_all(workers) - began]


def wait_for_all(workers: List[Any]) -> int:
    """
    The latest of the times that the workers send when a step is done. All processes read one clock.
    """
    return max(worker.recv() for worker in workers)


def work(block: Block, seed: int, driver: Any) -> None:
    broadcast = WAYS[block.way]
    driver.send(0)  # ready
    if block.what == "throughput":
        received = [broadcast(None) for _ in block.steps]
        driver.send(time.perf_counter_ns())
        for step, got in zip(block.steps, received):
            verify(got, seed, step, block.way)
        return
    for step in block.steps:
        got, now = broadcast(None), time.perf_counter_ns()
        verify(got, seed, step, block.way)
        driver.send(now)  # after the comparison: a worker that compares is late for the next step


def verify(got: Inputs, seed: int, step: int, way: str) -> None:
    if found := difference(got, make_inputs(seed, step), f"step {step} by {way}"):
        raise SystemExit(f"received something else than was sent: {found}")


def run_rank(rank: int, options: Any, peers: List[Any], store: str) -> Dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=options.world
    )
    times: Dict[Any, List[int]] = {}
    for block in plan(options.steps):
        if rank == 0:
            taken = drive(block, options.seed, peers)
            times.setdefault((block.what, block.way), []).extend(taken if options.steps else [])
        else:
            work(block, options.seed, peers[0])
    ring = ringcast.torch.rings()[0]
    result = {"times": times, "memory": f"{ring.memory}, {ring.capacity >> 20} MiB"}
    dist.barrier()  # no rank leaves while another rank receives
    dist.destroy_process_group()
    return result


def run(options: Any) -> Dict[str, Any]:
    """What rank 0 has measured."""
    pipes = [multiprocessing.get_context("spawn").Pipe() for _ in range(options.world - 1)]
    peers = [[end for end, _ in pipes]] + [[end] for _, end in pipes]
    found = run_ranks(run_rank, [(options, ends) for ends in peers], options.deadline)
    return found[0]  # type: ignore[no-any-return]


# ---- A run in which a worker dies ----------------------------------------------------------------


def follow(rank: int, options: Any, handle: str, driver: Any) -> None:
    """A worker: compares each step, then sends the driver the difference, or None."""
    torch.set_num_threads(1)
    with ringcast.Reader(handle, name=f"rank {rank}") as reader:
        for step in range(options.steps):
            driver.send(
                difference(
                    reader.recv(), make_inputs(options.seed, step), f"rank {rank}: step {step}"
                )
            )


class Driver:
    """Sends the steps, and waits until every worker has acknowledged each step."""

    def __init__(
        self,
        options: Any,
        writer: ringcast.Writer,
        pipes: Dict[Any, int],
        processes: Dict[int, Any],
    ) -> None:
        self.options, self.writer, self.pipes, self.processes = options, writer, pipes, processes
        self.deadline = time.monotonic() + options.deadline
        self.killed_ns = 0
        self.death: Optional[Dict[str, Any]] = None

    def run(self, victim: Any) -> None:
        self.writer.wait_readers(len(self.pipes), self.options.deadline)
        for step in range(self.options.steps):
            self.writer.send(
                make_inputs(self.options.seed, step), max(0, self.deadline - time.monotonic())
            )
            if step == self.options.steps // 2:
                self.killed_ns = time.perf_counter_ns()
                victim.kill()
            self.wait_for_all()

    def wait_for_all(self) -> None:
        """Until each worker has acknowledged or died; the Writer's descriptor reports a death."""
        missing, silent = set(self.pipes), set()
        while missing:
            timeout = max(0, self.deadline - time.monotonic())
            ready = multiprocessing.connection.wait([*missing - silent, self.writer], timeout)
            if not ready:
                ranks = sorted(self.pipes[pipe] for pipe in missing)
                stopped = who_is_stopped((rank, self.processes[rank]) for rank in ranks)
                raise SystemExit(
                    stopped or f"no answer in time from rank {', '.join(map(str, ranks))}"
                )
            while self.writer in ready and (lost := self.writer.check()):
                self.mourn(lost)
                missing &= set(self.pipes)
            for pipe in missing.intersection(ready):
                try:
                    self.hear(pipe.recv())
                    missing.remove(pipe)
                except EOFError:
                    silent.add(pipe)
                    if f"rank {self.pipes[pipe]}" not in [
                        status.name for status in self.writer.peers()
                    ]:
                        raise SystemExit(
                            f"rank {self.pipes[pipe]} has left: its output tells why"
                        ) from None

    def hear(self, found: Optional[str]) -> None:
        if found:
            raise SystemExit(f"received something else than was sent: {found}")

    def mourn(self, lost: ringcast.ReaderStatus) -> None:
        noticed_ms = (time.perf_counter_ns() - self.killed_ns) / 1e6
        rank = int(lost.name.split()[1])
        self.death = {
            "rank": rank,
            "pid": lost.pid,
            "frame": lost.stats.frames,
            "position": lost.position,
            "noticed_ms": noticed_ms,
        }
        text = (
            f"rank {rank} (pid {lost.pid}) died at frame {lost.stats.frames} (position "
            f"{lost.position}); "
        )
        text += f"noticed {noticed_ms:.1f} ms after the kill"
        if self.options.on_death == "fail":
            raise SystemExit(text)
        print(text, file=sys.stderr)
        self.pipes = {pipe: other for pipe, other in self.pipes.items() if other != rank}


def run_with_a_death(options: Any) -> Dict[str, Any]:
    """What came of it. SystemExit: as run(), or the death, if it is to end the run. No process is
    left."""
    context = multiprocessing.get_context("spawn")
    processes: Dict[int, Any] = {}
    pipes: Dict[Any, int] = {}
    with ringcast.Writer(on_death=options.on_death) as writer:
        try:
            for rank in range(1, options.world):
                ours, theirs = context.Pipe(duplex=False)
                arguments = (rank, options, writer.handle, theirs)
                processes[rank] = context.Process(target=follow, args=arguments, daemon=True)
                processes[rank].start()
                theirs.close()
                pipes[ours] = rank
            driver = Driver(options, writer, pipes, processes)
            driver.run(processes[options.kill])
            return {
                "died": driver.death,
                "verified_steps": options.steps,
                "verified_workers": len(driver.pipes),
            }
        finally:
            end_all(processes.values())


def print_death(summary: Dict[str, Any]) -> None:
    steps, workers, died = summary["verified_steps"], summary["verified_workers"], summary["died"]
    gone = f"rank {died['rank']}, which died at frame {died['frame']}"
    print(f"verified: {steps} steps × {workers} workers, all bytes equal; without {gone}")


# ---- What came of it -----------------------------------------------------------------------------


def summarise(options: Any, result: Dict[str, Any]) -> Dict[str, Any]:
    ways = {}
    for way in WAYS:
        latencies = sorted(result["times"]["latency", way])
        ways[way] = {
            "median_us": statistics.median(latencies) / 1e3,
            "p99_us": latencies[len(latencies) * 99 // 100] / 1e3,
            "steps_per_s": options.steps / (sum(result["times"]["throughput", way]) / 1e9),
        }
    cores = len(os.sched_getaffinity(0))
    sizes = [len(pickle.dumps(make_inputs(options.seed, step))) for step in range(options.steps)]
    return {
        "ways": ways,
        "median_step_bytes": statistics.median(sizes),
        "largest_step_bytes": max(sizes),
        "memory": result["memory"],
        "waiting": "spin, then futex" if cores > 1 else "futex",
        "machine": f"{cpu_model()}: {options.world} processes on {cores} cores",
        "verified_steps": sum(len(block.steps) for block in plan(options.steps)),
        "verified_workers": options.world - 1,
    }


def print_table(summary: Dict[str, Any]) -> None:
    median, largest = summary["median_step_bytes"] / 1e3, summary["largest_step_bytes"] / 1e6
    print(f"{'':10}{'median µs':>12}{'p99 µs':>12}{'steps/s':>12}")
    for way, figures in summary["ways"].items():
        print(f"{way:10}" + "".join(f"{figure:>12,.0f}" for figure in figures.values()))
    print(
        f"\nsteps     {median:.0f} kB, every {FEATURES_EVERY}th {largest:.1f} MB; p99 is one of "
        f"these; steps/s:"
        " without acknowledgements"
    )
    for name in "memory", "waiting", "machine":
        print(f"{name:10}{summary[name]}")
    print(
        f"verified: {summary['verified_steps']} steps × {summary['verified_workers']} workers, "
        f"all bytes equal"
    )


def main() -> None:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    epilog = "The two ways, ringcast and gloo, take turns: the ring is idle while gloo has a turn."
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=epilog, formatter_class=formatter
    )
    parser.add_argument(
        "--world", type=int, default=4, help="processes: one driver, the rest workers"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=300,
        help="each for latency and throughput, each way; 0: endless",
    )
    parser.add_argument("--seed", type=int, default=1, help="what the inputs are made from")
    parser.add_argument(
        "--deadline", type=float, default=120, help="seconds after which everything is killed"
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="what is printed"
    )
    parser.add_argument(
        "--kill", type=int, metavar="RANK", help="a worker to be killed in a run by ringcast alone"
    )
    parser.add_argument(
        "--on-death",
        choices=("fail", "evict"),
        default="fail",
        help="with --kill: end then, or go on",
    )
    options = parser.parse_args()
    if options.world < 2 or (
        options.steps < BLOCKS and (options.steps != 0 or options.kill is not None)
    ):
        parser.error(
            f"a world has at least 2 processes, and a run {BLOCKS} steps; 0 without --kill: endless"
        )
    if options.kill is not None and not 0 < options.kill < options.world:
        parser.error(
            f"--kill takes the rank of a worker, from 1 to {options.world - 1}, not {options.kill}"
        )
    if options.kill is None:
        summary, show = summarise(options, run(options)), print_table
    else:
        summary, show = run_with_a_death(options), print_death
    show(summary) if options.format == "table" else print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
