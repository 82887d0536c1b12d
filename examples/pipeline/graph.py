# SPDX-License-Identifier: Apache-2.0
"""The graph, the two plans, and the seven stages in two kinds, which release or hold the GIL.

A subgraph has own nodes, the destinations of the edges, and ghost nodes of other subgraphs, from
which edges come. The dataset numbers nodes globally; `load` makes the local numbers. A stage
computes for a range of own nodes and the edges to the range, so the two halves of a split block
exchange nothing.
"""

import os
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

# Before NumPy is imported: a matrix product must not take the CPU of another worker.
os.environ.update(
    {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
)

import numpy as np

Array = Any
STAGES = ("gather", "message", "aggregate", "combine", "normalise", "transform", "activate")
# Dense layers of each stage, beside the stage's own operation. With these numbers the workers of a
# plan have about equal work, except for the worker with 30 % of a block.
LAYERS = (3, 3, 1, 2, 7, 4, 4)
PRIME = 65_537  # values in pure Python are below, and float32 holds each exactly


class Settings(NamedTuple):
    subgraphs: int = 16
    edges: int = 56_235  # of a subgraph: as in a 16th of the Flickr graph
    nodes: int = 5_578
    width: int = 64  # features of a node and of a message
    hidden: int = 256  # features between the stages 4 and 7
    seed: int = 1
    gil: str = "release"
    prepare: str = "preloaded"
    mapping: str = "vectorised"
    rounds: Tuple[int, ...] = (1,) * 7  # of the stages in pure Python
    deadline: float = 600.0


# ---- The plans -----------------------------------------------------------------------------------


class Block(NamedTuple):
    stages: range
    shares: Tuple[float, ...]  # of the nodes, for each worker
    devices: Tuple[str, ...]  # names of workers only: each worker runs on a CPU here


class Plan(NamedTuple):
    name: str
    subgraphs: range
    blocks: Tuple[Block, ...]


class Worker(NamedTuple):
    plan: str
    block: int  # from 0
    part: int
    device: str

    def __str__(self) -> str:
        return f"{self.plan}{self.block + 1} {self.device}"


BLOCKS = {
    "A": (Block(range(1, 6), (0.5, 0.5), ("CPU", "GPU")), Block(range(6, 8), (1.0,), ("NPU",))),
    "B": (Block(range(1, 5), (1.0,), ("CPU",)), Block(range(5, 8), (0.7, 0.3), ("GPU", "NPU"))),
}


def make_plans(settings: Settings) -> List[Plan]:
    half = (settings.subgraphs + 1) // 2
    subgraphs = {"A": range(half), "B": range(half, settings.subgraphs)}
    return [Plan(name, subgraphs[name], BLOCKS[name]) for name in BLOCKS]


def workers_of(plan: Plan) -> List[Worker]:
    return [
        Worker(plan.name, number, part, device)
        for number, block in enumerate(plan.blocks)
        for part, device in enumerate(block.devices)
    ]


def bounds(shares: Sequence[float], nodes: int) -> List[int]:
    """The first own node of each worker of a block, and the end. A worker may get none."""
    return [round(nodes * sum(shares[:part])) for part in range(len(shares))] + [nodes]


def rows_of(worker: Worker, plan: Plan, nodes: int) -> Tuple[int, int]:
    limits = bounds(plan.blocks[worker.block].shares, nodes)
    return limits[worker.part], limits[worker.part + 1]


# ---- The graph, and its edges with local numbers -------------------------------------------------


def make_dataset(settings: Settings, subgraphs: Sequence[int]) -> Dict[str, Any]:
    """The features of all nodes, and the edges of these subgraphs, sorted by destination, in global
    numbers."""
    random = np.random.default_rng(settings.seed)
    total = settings.nodes * settings.subgraphs
    features = random.standard_normal((total, settings.width), dtype=np.float32)
    parts = {}
    for subgraph in subgraphs:
        random = np.random.default_rng((settings.seed, subgraph))
        first = subgraph * settings.nodes
        own = np.arange(first, first + settings.nodes)
        targets = np.sort(random.integers(first, first + settings.nodes, settings.edges))
        sources = random.integers(0, total, settings.edges)
        near = random.random(settings.edges) < 0.5  # half of the edges stay within the subgraph
        sources[near] = first + sources[near] % settings.nodes
        ghosts = np.setdiff1d(sources, own)
        parts[subgraph] = {
            "nodes": np.concatenate([own, ghosts]),
            "edges": np.stack([sources, targets]),
        }
    return {"features": features, "parts": parts}


def map_by_loop(
    edges: Array, nodes: Array, total: int, limits: Sequence[int]
) -> Tuple[Array, Array]:
    """
    The edges in local numbers, and the limits of each worker's edges: an edge at a time in Python.
    """
    local_of = {int(node): number for number, node in enumerate(nodes)}
    local = np.zeros_like(edges)
    counts = [0] * (len(limits) - 1)
    for edge in range(edges.shape[1]):
        target = local_of[int(edges[1, edge])]
        local[0, edge] = local_of[int(edges[0, edge])]
        local[1, edge] = target
        part = 0
        while target >= limits[part + 1]:
            part += 1
        counts[part] += 1
    return local, np.cumsum([0, *counts])


def map_vectorised(
    edges: Array, nodes: Array, total: int, limits: Sequence[int]
) -> Tuple[Array, Array]:
    """The result of map_by_loop, by a table of all nodes."""
    table = np.full(total, -1)
    table[nodes] = np.arange(len(nodes))
    local = table[edges]
    return local, np.searchsorted(local[1], limits)


MAPPINGS: Dict[str, Callable[..., Tuple[Array, Array]]] = {
    "loop": map_by_loop,
    "vectorised": map_vectorised,
}


def load(
    dataset: Dict[str, Any], settings: Settings, plan: Plan, subgraph: int
) -> Dict[str, Array]:
    """
    The input of a plan's first block: features, local edges, the limits of each worker's edges.
    """
    part = dataset["parts"][subgraph]
    limits = bounds(plan.blocks[0].shares, settings.nodes)
    local, starts = MAPPINGS[settings.mapping](
        part["edges"], part["nodes"], len(dataset["features"]), limits
    )
    return {"x": dataset["features"][part["nodes"]], "edges": local, "starts": starts}


def blank(settings: Settings) -> Dict[str, Array]:
    """A subgraph to warm the stages up with."""
    edges = np.zeros((2, settings.edges), np.int64)
    edges[1] = np.arange(settings.edges) * settings.nodes // settings.edges
    return {"x": np.zeros((settings.nodes, settings.width), np.float32), "edges": edges}


# ---- Stages that release the GIL -----------------------------------------------------------------


class Sheet:
    """Two buffers in turns: a layer reads the first and writes the second. The first layer may read
    foreign memory."""

    def __init__(self, rows: int, width: int) -> None:
        self.buffers = [np.zeros((rows, width), np.float32) for _ in range(2)]
        self.turn = 0
        self.current: Array = None

    def target(self, rows: int) -> Array:
        self.turn ^= 1
        return self.buffers[self.turn][:rows]

    def dense(self, weights: Array, layers: int) -> None:
        for _ in range(layers):
            out = self.target(len(self.current))
            np.matmul(self.current, weights, out=out)
            self.current = np.tanh(out, out=out)


class Releasing:
    """
    The stages as NumPy calls on large buffers of the kernel: the GIL is free while a call computes.
    """

    def __init__(self, settings: Settings) -> None:
        random = np.random.default_rng(settings.seed)
        width, hidden = settings.width, settings.hidden
        self.weights = {
            (rows, columns): random.standard_normal((rows, columns), dtype=np.float32)
            / np.float32(rows**0.5)
            for rows, columns in (
                (width, width),
                (width, hidden),
                (hidden, hidden),
                (hidden, width),
            )
        }
        self.width, self.hidden = width, hidden
        self.messages = Sheet(settings.edges, width)
        self.sums, self.out = (np.zeros((settings.nodes, width), np.float32) for _ in range(2))
        self.nodes = Sheet(settings.nodes, hidden)

    def begin(self, x: Array, edges: Array, first: int, last: int) -> None:
        """For the own nodes from `first` to before `last`, and the edges to the nodes."""
        self.x, self.edges, self.first, self.rows = x, edges, first, last - first

    def resume(self, nodes: Array) -> None:
        """For the nodes of this worker, from the `result` of the previous block."""
        self.nodes.current, self.rows = nodes, len(nodes)

    def result(self) -> Array:
        """The result of the last stage. The next run overwrites the memory."""
        return self.last

    def run(self, stage: int) -> None:
        getattr(self, STAGES[stage - 1])(LAYERS[stage - 1])
        if stage < 7:
            self.last = self.nodes.current

    def gather(self, layers: int) -> None:
        out = self.messages.target(self.edges.shape[1])
        self.messages.current = np.take(self.x, self.edges[0], axis=0, out=out, mode="clip")
        self.message(layers)

    def message(self, layers: int) -> None:
        self.messages.dense(self.weights[self.width, self.width], layers)

    def aggregate(self, layers: int) -> None:
        """The mean of the messages to each node; 0 for a node without edges."""
        self.message(layers)
        messages, sums = self.messages.current, self.sums[: self.rows]
        starts = np.searchsorted(self.edges[1], np.arange(self.first, self.first + self.rows + 1))
        degrees = np.diff(starts)
        sums.fill(0)
        for number in range(degrees.max(initial=0)):  # np.add.reduceat would hold the GIL
            nodes = np.flatnonzero(degrees > number)
            sums[nodes] += messages[starts[nodes] + number]
        sums /= np.maximum(degrees, 1)[:, np.newaxis]

    def combine(self, layers: int) -> None:
        out = self.nodes.target(self.rows)
        self.nodes.current = np.matmul(
            self.sums[: self.rows], self.weights[self.width, self.hidden], out=out
        )
        self.nodes.dense(self.weights[self.hidden, self.hidden], layers)

    def normalise(self, layers: int) -> None:
        nodes, out = self.nodes.current, self.nodes.target(self.rows)
        np.subtract(nodes, nodes.mean(axis=1, keepdims=True), out=out)
        out /= np.sqrt(np.einsum("ij,ij->i", out, out) / self.hidden + 1e-5)[:, np.newaxis]
        self.nodes.current = out
        self.transform(layers)

    def transform(self, layers: int) -> None:
        self.nodes.dense(self.weights[self.hidden, self.hidden], layers)

    def activate(self, layers: int) -> None:
        self.transform(layers)
        nodes = self.nodes.current
        np.exp(nodes, out=nodes)
        nodes /= nodes.mean(axis=1, keepdims=True)
        np.matmul(nodes, self.weights[self.hidden, self.width], out=self.out[: self.rows])
        self.last = self.out[: self.rows]


# ---- Stages that hold the GIL --------------------------------------------------------------------


class Holding:
    """The stages in pure Python, on an integer for each node or edge. The result of a block has the
    size of the counterpart's: the integer of each node times a row of powers of two."""

    def __init__(self, settings: Settings) -> None:
        self.rounds = settings.rounds
        self.hidden, self.width = settings.hidden, settings.width
        self.pattern = np.float32(2.0) ** -np.arange(settings.hidden).astype(np.float32).clip(
            max=64
        )
        self.out = np.zeros((settings.nodes, settings.hidden), np.float32)

    def begin(self, x: Array, edges: Array, first: int, last: int) -> None:
        self.x, self.edges, self.first, self.rows = x, edges, first, last - first

    def resume(self, nodes: Array) -> None:
        self.values = nodes[:, 0].astype(np.int64).tolist()
        self.rows = len(nodes)

    def result(self) -> Array:
        columns = self.width if self.last == 7 else self.hidden
        return np.multiply.outer(
            np.float32(self.values), self.pattern[:columns], out=self.out[: self.rows, :columns]
        )

    def run(self, stage: int) -> None:
        self.last, rounds = stage, self.rounds[stage - 1]
        if stage == 1:
            values = (np.abs(self.x[:, 0]) * 1000).astype(np.int64).tolist()
            self.messages = mixed([values[source] for source in self.edges[0].tolist()], rounds)
        elif stage == 2:
            self.messages = mixed(self.messages, rounds)
        elif stage == 3:
            self.values = [0] * self.rows
            for target, message in zip(self.edges[1].tolist(), mixed(self.messages, rounds)):
                self.values[target - self.first] += message
        else:
            self.values = mixed(self.values, rounds)


def mixed(values: List[int], rounds: int) -> List[int]:
    """Each value after `rounds` steps of a generator of pseudo-random numbers."""
    found = []
    for value in values:
        for _ in range(rounds):
            value = (value * 75 + 74) % PRIME
        found.append(value)
    return found


KINDS: Dict[str, Any] = {"release": Releasing, "hold": Holding}


def begin(kernel: Any, loaded: Dict[str, Array], worker: Worker, plan: Plan, nodes: int) -> None:
    """Gives the stages of the first block their part of a subgraph."""
    starts = loaded["starts"]
    edges = loaded["edges"][:, int(starts[worker.part]) : int(starts[worker.part + 1])]
    kernel.begin(loaded["x"], edges, *rows_of(worker, plan, nodes))


def joined(parts: Sequence[Tuple[int, Array]], first: int, last: int) -> Array:
    """
    The rows from `first` to before `last` of the parts of a block: without a copy if one part has
    all rows.
    """
    inside = [(start, rows) for start, rows in parts if start < last and start + len(rows) > first]
    found = [rows[max(0, first - start) : last - start] for start, rows in inside]
    return found[0] if len(found) == 1 else np.concatenate(found) if found else parts[0][1][:0]
