#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks that all need the same image features, and their hash, of every request.

The requests come in a stream, each with 10 MB of features; every rank has several of them in flight. Three ways, in
turns, by the same ranks:

  alone       every rank hashes the features for itself (SHA-256)
  gloo        the first rank hashes, and broadcasts features and hash by torch.distributed.broadcast_object_list
  ringcast    one rank hashes, each in its turn, and the others get features and hash: ringcast.sglang.share_once

Every rank compares the hash of each request, and a sample of the bytes. Exit status 0 only if all were right.

Latency is the time from when a request is in flight until the rank has features and hash; with as many in flight as
here, most of it is waiting for the ones before. CPU is of all ranks together.
"""

import argparse
import collections
import hashlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from ranks import cpu_model, exit_without, run_ranks

try:
    import torch
    import torch.distributed as dist

    from ringcast.sglang import share_once
except ModuleNotFoundError as error:
    exit_without(error)

WAYS = ("alone", "gloo", "ringcast")
DIFFERENT = 4  # features that the requests take in turn
BLOCKS = 2


class Case(NamedTuple):
    name: str
    ranks: int
    wait: Optional[float]  # instead of hashing; a wait takes no core
    what: str


# ---- A request: features and their hash ------------------------------------------------------------------------------


class Request(NamedTuple):
    feature: torch.Tensor
    hash: int
    sample: torch.Tensor


def hash_of(feature: torch.Tensor) -> int:
    digest = hashlib.sha256(memoryview(feature.numpy()).cast("B")).digest()
    return int.from_bytes(digest[:8], "big")


def sample_of(feature: torch.Tensor) -> torch.Tensor:
    return feature[::4093]


def make_requests(seed: int, nbytes: int) -> List[Request]:
    """The same in every process."""
    random = torch.Generator().manual_seed(seed)
    features = [torch.randn(nbytes // 4, generator=random) for _ in range(DIFFERENT)]
    return [Request(feature, hash_of(feature), sample_of(feature).clone()) for feature in features]


def check(who: str, request: Request, feature: torch.Tensor, hash_: int) -> None:
    if hash_ != request.hash or not torch.equal(sample_of(feature), request.sample):
        raise SystemExit(f"{who}: received something else than was sent")


def hash_once_more(request: Request, wait: Optional[float]) -> int:
    if wait is None:
        return hash_of(request.feature)
    time.sleep(wait)
    return request.hash


# ---- The three ways --------------------------------------------------------------------------------------------------


class Way:
    """begin() is called when a request starts, end() when the rank needs the features and the hash."""

    def __init__(self, case: Case, group: Any, how: str) -> None:
        self.case, self.group, self.how = case, group, how
        self.shared = 0

    def begin(self, request: Request) -> Any:
        return request

    def end(self, begun: Any) -> Tuple[torch.Tensor, int]:
        raise NotImplementedError


class Alone(Way):
    def end(self, begun: Any) -> Tuple[torch.Tensor, int]:
        return begun.feature, hash_once_more(begun, self.case.wait)


class Gloo(Way):
    def end(self, begun: Any) -> Tuple[torch.Tensor, int]:
        objects = [None]
        if dist.get_rank() == 0:
            objects = [{"feature": begun.feature, "hash": hash_once_more(begun, self.case.wait)}]
        dist.broadcast_object_list(objects, src=0, group=self.group)
        return objects[0]["feature"], objects[0]["hash"]


class Ringcast(Way):
    def begin(self, request: Request) -> Any:
        wait, nbytes = self.case.wait, request.feature.nbytes
        if wait is None:
            shared = share_once(lambda: {"feature": request.feature}, nbytes, group=self.group, how=self.how)
        else:
            compute = lambda: {"feature": request.feature, "hash": hash_once_more(request, wait)}  # noqa: E731
            shared = share_once(compute, nbytes, group=self.group, how=self.how, hash=None, seconds=wait)
        self.shared += shared.source is not None
        return shared

    def end(self, begun: Any) -> Tuple[torch.Tensor, int]:
        value, hashes = begun.result()
        return value["feature"], value["hash"] if hashes is None else hashes["feature"]


CLASSES = {"alone": Alone, "gloo": Gloo, "ringcast": Ringcast}


# ---- A rank ----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """The measurements of one rank; all processes read one clock."""

    began: float
    ended: float
    cpu: float
    latencies: List[float]
    shared: int


def run_block(way: Way, requests: List[Request], count: int, window: int) -> Block:
    in_flight: Deque[Tuple[Request, float, Any]] = collections.deque()
    latencies: List[float] = []

    def finish() -> None:
        request, since, begun = in_flight.popleft()
        feature, hash_ = way.end(begun)
        latencies.append(time.perf_counter() - since)
        check(f"rank {dist.get_rank()}", request, feature, hash_)

    dist.barrier(way.group)
    began, cpu = time.perf_counter(), time.process_time()
    for index in range(count):
        if len(in_flight) == window:
            finish()
        request = requests[index % len(requests)]
        since = time.perf_counter()
        in_flight.append((request, since, way.begin(request)))
    while in_flight:
        finish()
    return Block(began, time.perf_counter(), time.process_time() - cpu, latencies, way.shared)


def run_rank(rank: int, options: Any, cases: List[Case], store: str) -> Dict[Tuple[str, str], List[Block]]:
    torch.set_num_threads(1)
    world = max(case.ranks for case in cases)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    requests = make_requests(options.seed, options.mb * 1_000_000 // 16 * 16)
    found: Dict[Tuple[str, str], List[Block]] = {}
    for case in cases:
        group = dist.new_group(list(range(case.ranks)))
        if rank < case.ranks:
            # A warm-up, not measured: makes the rings, and takes the memory for the blocks that follow.
            for name in WAYS:
                warming = min(options.requests, case.ranks * options.window)
                run_block(CLASSES[name](case, group, options.how), requests, warming, options.window)
            for block in range(BLOCKS):
                for name in WAYS if block % 2 == 0 else reversed(WAYS):
                    way = CLASSES[name](case, group, options.how)
                    found.setdefault((case.name, name), []).append(
                        run_block(way, requests, options.requests, options.window)
                    )
            dist.barrier(group)
            dist.destroy_process_group(group)
        dist.barrier()
    dist.destroy_process_group()
    return found


def run(options: Any, cases: List[Case]) -> List[Dict[Tuple[str, str], List[Block]]]:
    """What each rank has measured."""
    world = max(case.ranks for case in cases)
    return run_ranks(run_rank, [(options, cases)] * world, options.deadline)


# ---- What came of it -------------------------------------------------------------------------------------------------


def figures(blocks: List[Tuple[Block, ...]], count: int) -> Dict[str, Any]:
    """Of blocks, each by all ranks."""
    took = sum(max(rank.ended for rank in block) - min(rank.began for rank in block) for block in blocks)
    latencies = sorted(latency for block in blocks for rank in block for latency in rank.latencies)
    requests = count * len(blocks)
    return {
        "requests_per_s": requests / took,
        "p50_ms": statistics.median(latencies) * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
        "cpu_ms_per_request": sum(rank.cpu for block in blocks for rank in block) / requests * 1e3,
        "shared": sum(block[0].shared for block in blocks) / requests,
    }


def summarise(options: Any, cases: List[Case], results: List[Any]) -> Dict[str, Any]:
    summary: Dict[str, Any] = {
        "machine": f"{cpu_model()}: {len(os.sched_getaffinity(0))} cores",
        "mb": options.mb,
        "in_flight": options.window,
        "requests": options.requests * BLOCKS,
        "cases": [],
    }
    for case in cases:
        ways = {}
        for name in WAYS:
            blocks = list(zip(*(result[case.name, name] for result in results[: case.ranks])))
            ways[name] = figures(blocks, options.requests)
        for way in ways.values():
            way["of_alone"] = way["requests_per_s"] / ways["alone"]["requests_per_s"]
        summary["cases"].append({"name": case.name, "ranks": case.ranks, "what": case.what, "ways": ways})
    return summary


COLUMNS = {
    "requests_per_s": "requests/s",
    "of_alone": "of alone",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "cpu_ms_per_request": "CPU ms/request",
}


def print_table(summary: Dict[str, Any]) -> None:
    print(f"{summary['mb']} MB of features a request, {summary['in_flight']} requests in flight; {summary['machine']}")
    for case in summary["cases"]:
        print(f"\n{case['ranks']} ranks, {case['what']}")
        print(f"{'':10}" + "".join(f"{title:>16}" for title in COLUMNS.values()))
        for name, way in case["ways"].items():
            cells = "".join(f"{way[key]:>16.{2 if key == 'of_alone' else 1}f}" for key in COLUMNS)
            print(f"{name:10}{cells}")
        if case["ways"]["ringcast"]["shared"] == 0:
            print("          ringcast left each rank to itself, by its rule; --how share has it share")
    print(f"\nverified: {summary['requests']} requests × {len(WAYS)} ways, at every rank: hashes, and samples of bytes")


def draw(summary: Dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = summary["cases"]
    panels = {"requests_per_s": "requests per second", "cpu_ms_per_request": "CPU per request, ms, of all ranks"}
    colours = {"alone": "#9aa0a6", "gloo": "#d98c5f", "ringcast": "#2f6f9f"}
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for axis, (key, title) in zip(axes, panels.items()):
        for place, name in enumerate(WAYS):
            heights = [case["ways"][name][key] for case in cases]
            bars = axis.bar(
                [at + 0.27 * (place - 1) for at in range(len(cases))], heights, 0.25, label=name, color=colours[name]
            )
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(cases)), [f"{case['ranks']} ranks:\n{case['name']}" for case in cases], fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.text(0.01, 0.01, f"{summary['mb']} MB a request; {summary['machine']}", fontsize=7)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def cases_of(options: Any) -> List[Case]:
    cores = len(os.sched_getaffinity(0))
    wait, ranks = options.wait / 1e3, options.ranks
    stand_in = f"a wait of {options.wait:g} ms stands for the hash, and takes no core: cores are plenty"
    cases = [
        Case("cores plenty", ranks, wait, stand_in),
        Case(f"{cores} cores", ranks, None, f"hashing on {cores} cores"),
    ]
    if ranks > 2 and cores >= 2:
        cases.append(Case(f"two on {cores} cores", 2, None, f"hashing on {cores} cores: one for each"))
    return cases


def main() -> None:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--ranks", type=int, default=4, help="tensor-parallel ranks; more than 2 are also run as 2")
    parser.add_argument("--requests", type=int, default=60, help=f"requests in each of {BLOCKS} blocks, each way")
    parser.add_argument("--mb", type=int, default=10, help="megabytes of features of a request")
    parser.add_argument("--window", type=int, default=8, help="requests in flight at each rank")
    parser.add_argument("--wait", type=float, default=10, help="milliseconds that stand for a hash, with cores plenty")
    parser.add_argument("--how", choices=("auto", "share", "local"), default="auto", help="of share_once")
    parser.add_argument("--seed", type=int, default=1, help="what the features are made from")
    parser.add_argument("--deadline", type=float, default=120, help="seconds after which everything is killed")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what is printed")
    parser.add_argument("--picture", type=Path, default=Path("build/multimodal.svg"), help=".svg or .png, made anew")
    options = parser.parse_args()
    if options.ranks < 2 or min(options.requests, options.mb, options.window) < 1 or not 0 <= options.wait < 10_000:
        parser.error("--ranks takes 2 or more, --requests, --mb and --window 1 or more, --wait 0 to 10000")
    cases = cases_of(options)
    summary = summarise(options, cases, run(options, cases))
    print(json.dumps(summary, indent=2)) if options.format == "json" else print_table(summary)
    try:
        draw(summary, options.picture)
        print(f"picture: {options.picture}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is not installed", file=sys.stderr)


if __name__ == "__main__":
    main()
