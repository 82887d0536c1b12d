# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a transformer, and the rank's calls to the other ranks.

The weights are split as in Megatron: the projections into attention and MLP by columns, so that a
rank has whole heads, and the projections back by rows, so that an all_reduce adds up the ranks'
results. Each weight is made head by head from the seed. A rank makes its own heads only, and a head
has the same numbers in every split.
"""

import contextlib
import math
import time
import zlib
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tp_workers import WAYS

Inputs = Dict[str, Any]
BLOCK = 16  # tokens of the cache in a block of a block table


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    vocab: int
    seed: int

    @property
    def head(self) -> int:
        """Numbers in a head."""
        return self.hidden // self.heads

    @property
    def inner(self) -> int:
        """Columns of the MLP for each head."""
        return 3 * self.head

    @property
    def weights(self) -> int:
        block = self.hidden * (4 * self.hidden + 3 * self.inner * self.heads + 2)
        return self.layers * block + (2 * self.vocab + 1) * self.hidden


class Place(NamedTuple):
    """A rank's place in the split: its share of the heads and of the layers."""

    tp: int
    pp: int
    rank: int = 0

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.pp - 1

    @property
    def sampler(self) -> int:
        """The rank with all logits."""
        return (self.pp - 1) * self.tp

    def heads(self, shape: Shape) -> range:
        each, index = shape.heads // self.tp, self.rank % self.tp
        return range(each * index, each * (index + 1))

    def layers(self, shape: Shape) -> range:
        return range(
            shape.layers * self.stage // self.pp, shape.layers * (self.stage + 1) // self.pp
        )


# ---- The calls -----------------------------------------------------------------------------------


class Call(NamedTuple):
    kind: str  # "all_reduce", "gather", "send_recv" or "metadata"
    start: int  # nanoseconds; all processes read one clock
    end: int


class Links:
    """A rank's calls to the other ranks, and when each began and ended."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.calls: List[Call] = []
        self.peers = tuple(range(place.stage * place.tp, (place.stage + 1) * place.tp))
        self._group: Any = None  # of the ranks with the same layers
        self._sent: List[Tuple[Any, torch.Tensor]] = []
        if place.tp > 1 and place.pp > 1:
            stages = [
                list(range(stage * place.tp, (stage + 1) * place.tp)) for stage in range(place.pp)
            ]
            self._group = [dist.new_group(stage, backend="gloo") for stage in stages][place.stage]

    @contextlib.contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        self.calls.append(Call(kind, start, time.perf_counter_ns()))

    def metadata(self, way: str, inputs: Optional[Inputs]) -> Inputs:
        """Rank 0's inputs, on every rank."""
        if self.place.tp * self.place.pp == 1:
            assert inputs is not None
            return inputs
        with self._timed("metadata"):
            return WAYS[way](inputs)

    def all_reduce(self, summand: torch.Tensor) -> torch.Tensor:
        if self.place.tp > 1:
            with self._timed("all_reduce"):
                dist.all_reduce(summand, group=self._group)
        return summand

    def gather(self, columns: torch.Tensor) -> Optional[torch.Tensor]:
        """The columns of all ranks side by side, on the first rank of the stage; None elsewhere."""
        if self.place.tp == 1:
            return columns
        is_first = self.place.rank == self.peers[0]
        parts = [torch.empty_like(columns) for _ in self.peers] if is_first else None
        with self._timed("gather"):
            dist.gather(columns, parts, dst=self.peers[0], group=self._group)
        return torch.cat(parts, dim=-1) if parts else None

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Returns at once. finish_sending() waits for the transfer."""
        with self._timed("send_recv"):
            self._sent.append((dist.isend(tensor, to), tensor))

    def finish_sending(self) -> None:
        if self._sent:
            with self._timed("send_recv"):
                for work, _ in self._sent:
                    work.wait()
            self._sent.clear()

    def recv(self, shape: Tuple[int, ...], dtype: torch.dtype, source: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        with self._timed("send_recv"):
            dist.recv(tensor, source)
        return tensor


# ---- The weights ---------------------------------------------------------------------------------


def random(shape: Shape, name: str, *size: int, scale: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{shape.seed} {name}".encode()))
    return torch.randn(size, generator=generator).mul_(scale)


def by_columns(shape: Shape, name: str, heads: range, each: int) -> torch.Tensor:
    """A projection with results split among the ranks: `each` rows of the weight for a head."""
    weight = torch.empty(len(heads) * each, shape.hidden)
    for part, head in zip(weight.split(each), heads):
        part.copy_(random(shape, f"{name}.{head}", each, shape.hidden, scale=shape.hidden**-0.5))
    return weight


def by_rows(shape: Shape, name: str, heads: range, each: int) -> torch.Tensor:
    """A projection with inputs split among the ranks: `each` columns of the weight for a head."""
    weight = torch.empty(shape.hidden, len(heads) * each)
    scale = (2 * shape.layers * shape.heads * each) ** -0.5
    for part, head in zip(weight.split(each, dim=1), heads):
        part.copy_(random(shape, f"{name}.{head}", shape.hidden, each, scale=scale))
    return weight


# ---- The layers ----------------------------------------------------------------------------------


class Rows(NamedTuple):
    """A part of the batch: the step's inputs as the layers use them."""

    turns: Tuple[torch.Tensor, torch.Tensor]  # cosine and sine of each position's angles
    slots: torch.Tensor  # where the new keys and values go
    cached: slice  # the sequences' rows of the cache
    length: int  # tokens of each sequence, the new ones included


def turned(x: torch.Tensor, turns: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary position embedding of [sequences, tokens, heads, head]."""
    (left, right), (cosine, sine) = x.chunk(2, dim=-1), turns
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Layer:
    """Attention and MLP, each behind an RMSNorm and added to its input."""

    def __init__(self, shape: Shape, place: Place, index: int, slots: int, sequences: int) -> None:
        heads, name = place.heads(shape), f"layers.{index}"
        self.name, self.shape, self.heads, self.sequences = name, shape, len(heads), sequences
        self.norms = [
            1 + random(shape, f"{name}.norm.{each}", shape.hidden, scale=0.1) for each in range(2)
        ]
        self.into_attention = by_columns(shape, f"{name}.qkv", heads, 3 * shape.head)
        self.out_of_attention = by_rows(shape, f"{name}.o", heads, shape.head)
        self.into_mlp = by_columns(shape, f"{name}.gate_up", heads, 2 * shape.inner)
        self.out_of_mlp = by_rows(shape, f"{name}.down", heads, shape.inner)
        self.cache = torch.zeros(slots, 2, len(heads), shape.head)

    def __call__(
        self, x: torch.Tensor, rows: Rows, links: Links, region: Callable[[str], Any]
    ) -> torch.Tensor:
        with region(f"{self.name}.attn"):
            x = x + links.all_reduce(self.attend(self.normed(x, 0), rows))
        with region(f"{self.name}.mlp"):
            return x + links.all_reduce(self.think(self.normed(x, 1)))

    def normed(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return F.rms_norm(x, (self.shape.hidden,), self.norms[which], 1e-6)

    def attend(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        head, (sequences, tokens, _) = self.shape.head, x.shape
        mixed = F.linear(x, self.into_attention).view(sequences, tokens, self.heads, 3, head)
        query, key = turned(mixed[..., 0, :], rows.turns), turned(mixed[..., 1, :], rows.turns)
        self.cache[rows.slots] = torch.stack((key, mixed[..., 2, :]), dim=2)
        cached = self.cache.view(self.sequences, -1, 2, self.heads, head)[
            rows.cached, : rows.length
        ]
        parts = [part.transpose(1, 2) for part in (query, cached[:, :, 0], cached[:, :, 1])]
        seen = F.scaled_dot_product_attention(*parts, is_causal=tokens > 1)
        return F.linear(seen.transpose(1, 2).reshape(sequences, tokens, -1), self.out_of_attention)

    def think(self, x: torch.Tensor) -> torch.Tensor:
        mixed = F.linear(x, self.into_mlp).unflatten(-1, (self.heads, 2, self.shape.inner))
        return F.linear((F.silu(mixed[..., 0, :]) * mixed[..., 1, :]).flatten(-2), self.out_of_mlp)


class Model:
    """
    A rank's layers, with the embedding on the first ranks and the projection to logits on the last.

    room: tokens in the cache for each sequence, a multiple of BLOCK. parts: the batch goes through
    the layers in so many parts, one after the other, so that the next stage can begin with the
    first part.
    """

    def __init__(self, shape: Shape, links: Links, sequences: int, room: int, parts: int) -> None:
        place = links.place
        self.shape, self.links, self.sequences, self.room, self.parts = (
            shape,
            links,
            sequences,
            room,
            parts,
        )
        slots = sequences * room
        self.layers = [
            Layer(shape, place, index, slots, sequences) for index in place.layers(shape)
        ]
        if place.is_first:
            self.embedding = random(shape, "embedding", shape.vocab, shape.hidden, scale=1)
        if place.is_last:
            self.norm = 1 + random(shape, "norm", shape.hidden, scale=0.1)
            self.head = by_columns(shape, "head", place.heads(shape), shape.vocab // shape.heads)
        self.speeds = 10_000 ** -(torch.arange(shape.head // 2) / (shape.head // 2))

    def nbytes(self) -> int:
        """Of the weights and the cache."""
        tensors = [
            one
            for part in (self, *self.layers)
            for one in vars(part).values()
            if isinstance(one, torch.Tensor)
        ]
        return sum(one.nbytes for one in tensors)

    @torch.inference_mode()
    def forward(
        self, inputs: Inputs, region: Callable[[str], ContextManager[Any]]
    ) -> Optional[torch.Tensor]:
        """The logits of each sequence's next token, on the sampling rank; None elsewhere."""
        results = []
        each = self.sequences // self.parts
        for first in range(0, self.sequences, each):
            result = self.of_part(inputs, slice(first, first + each), region)
            results.append(result)
        self.links.finish_sending()
        if not self.links.place.is_last:
            return None
        with region("head"):
            last = F.rms_norm(torch.cat(results), (self.shape.hidden,), self.norm, 1e-6)
            return self.links.gather(F.linear(last, self.head))

    def of_part(
        self, inputs: Inputs, part: slice, region: Callable[[str], ContextManager[Any]]
    ) -> torch.Tensor:
        place = self.links.place
        ids, rows = inputs["input_ids"][part], self.rows(inputs, part)
        if place.is_first:
            with region("embedding"):
                x = self.embedding[ids]
        else:
            x = self.links.recv(
                (*ids.shape, self.shape.hidden), torch.float32, place.rank - place.tp
            )
        for layer in self.layers:
            x = layer(x, rows, self.links, region)
        if not place.is_last:
            self.links.send(x, place.rank + place.tp)
        return x[:, -1]

    def rows(self, inputs: Inputs, part: slice) -> Rows:
        angles = inputs["positions"][part, :, None, None] * self.speeds
        blocks = inputs["block_tables"][part]
        # The sequences' blocks lie one after the other.
        first = int(blocks[0, 0]) * BLOCK // self.room
        cached = slice(first, first + len(blocks))
        slots = inputs["slot_mapping"][part]
        return Rows(
            (angles.cos(), angles.sin()), slots, cached, int(inputs["seq_lens"][part.start])
        )


def padded(tokens: int) -> int:
    """Tokens of whole blocks."""
    return math.ceil(tokens / BLOCK) * BLOCK
