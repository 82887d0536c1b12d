# SPDX-License-Identifier: Apache-2.0
"""The measured objects: made-up data in the shapes that serving engines send, the same in every process and at every
call.

The classes are at the top level of this module, where a reader finds them by name.
"""

import dataclasses
import enum
import random
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import numpy as np

NEW_EVERY = 64  # one of so many requests of a decode step is new
BLOCK = 16  # tokens in a block of the KV cache: each cached request gets a new block in one step of so many
NEW_PROMPT, PREFILL_PROMPT = 64, 400  # tokens
VOCABULARY = 128_000


class LeftOut(Exception):
    """The case needs a package that is missing here; the text names the package."""


# ---- The message of each step to an engine's workers, in vLLM V1's shape (August 2026) -------------------------------


class OutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclasses.dataclass
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: List[str] = dataclasses.field(default_factory=list)
    stop_token_ids: List[int] = dataclasses.field(default_factory=list)
    ignore_eos: bool = False
    max_tokens: Optional[int] = 1024
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    skip_special_tokens: bool = True
    output_kind: OutputKind = OutputKind.DELTA


@dataclasses.dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: Optional[List[int]]
    mm_features: List[Any]
    sampling_params: Optional[SamplingParams]
    pooling_params: Optional[Any]
    block_ids: Tuple[List[int], ...]
    num_computed_tokens: int
    lora_request: Optional[Any]
    prompt_embeds: Optional[Any] = None
    prompt_is_token_ids: Optional[List[bool]] = None
    prefill_token_ids: Optional[List[int]] = None


@dataclasses.dataclass
class CachedRequestData:
    req_ids: List[str]
    resumed_req_ids: Set[str]
    new_token_ids: List[List[int]]
    all_token_ids: Dict[str, List[int]]
    new_block_ids: List[Optional[Tuple[List[int], ...]]]
    num_computed_tokens: List[int]
    num_output_tokens: List[int]


@dataclasses.dataclass
class SchedulerOutput:
    scheduled_new_reqs: List[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: Dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: Dict[str, List[int]]
    scheduled_encoder_inputs: Dict[str, List[int]]
    num_common_prefix_blocks: List[int]
    finished_req_ids: Set[str]
    free_encoder_mm_hashes: List[str]
    scheduled_encoder_input_stats: Optional[Any] = None
    preempted_req_ids: Optional[Set[str]] = None
    has_structured_output_requests: bool = False
    pending_structured_output_tokens: bool = False
    num_invalid_spec_tokens: Optional[Dict[str, int]] = None
    num_output_placeholders: Dict[str, int] = dataclasses.field(default_factory=dict)
    kv_connector_metadata: Optional[Any] = None
    ec_connector_metadata: Optional[Any] = None
    ec_manager_metadata: Optional[Any] = None
    new_block_ids_to_zero: Optional[Dict[int, List[int]]] = None
    kv_cache_block_copies: Optional[List[Any]] = None
    block_table_updates: Optional[Dict[str, Tuple[List[int], ...]]] = None
    partial_tail_offloads: Optional[Dict[str, List[Tuple[int, int, int]]]] = None
    num_spec_tokens_to_schedule: int = 0


def request_id(chance: random.Random) -> str:
    return f"cmpl-{chance.getrandbits(64):016x}"


def new_request(chance: random.Random, prompt: int) -> NewRequestData:
    return NewRequestData(
        req_id=request_id(chance),
        prompt_token_ids=[chance.randrange(VOCABULARY) for _ in range(prompt)],
        mm_features=[],
        sampling_params=SamplingParams(),
        pooling_params=None,
        block_ids=([chance.randrange(1 << 16) for _ in range(-(-prompt // BLOCK))],),
        num_computed_tokens=0,
        lora_request=None,
    )


def scheduler_output(new: int, cached: int, prompt: int) -> SchedulerOutput:
    """A step that computes the prompts of `new` requests, and one token for each of `cached` requests. As many requests
    as are new have just finished. The parts share the strings of the ids, as an engine's do."""
    chance = random.Random(new + cached)
    added = [new_request(chance, prompt) for _ in range(new)]
    ids = [request_id(chance) for _ in range(cached)]
    outputs = [chance.randrange(1, 1024) for _ in ids]
    scheduled = {**{request.req_id: prompt for request in added}, **dict.fromkeys(ids, 1)}
    return SchedulerOutput(
        scheduled_new_reqs=added,
        scheduled_cached_reqs=CachedRequestData(
            req_ids=ids,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[([chance.randrange(1 << 16)],) if i % BLOCK == 0 else None for i in range(cached)],
            num_computed_tokens=[output + chance.randrange(16, 2048) for output in outputs],
            num_output_tokens=outputs,
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[0],
        finished_req_ids={request_id(chance) for _ in range(new)},
        free_encoder_mm_hashes=[],
    )


def decode_step(requests: int) -> SchedulerOutput:
    new = requests // NEW_EVERY
    return scheduler_output(new, requests - new, NEW_PROMPT)


def metadata() -> Dict[str, Any]:
    """A small batch's metadata: its pickle has 725 bytes."""
    chance = random.Random(0)
    return {
        "req_ids": [f"req-{i}" for i in range(8)],
        "counts": [chance.randrange(1, 256) for _ in range(8)],
        "lora_request": None,
        "temperature": 0.7,
        "block_tables": [[chance.randrange(256) for _ in range(32)] for _ in range(8)],
    }


# ---- Tensors ---------------------------------------------------------------------------------------------------------


def array_dict() -> Dict[str, Any]:
    """A model's inputs for a step of 64 requests: six small arrays, and some scalars."""
    chance = np.random.default_rng(0)
    return {
        "input_ids": chance.integers(VOCABULARY, size=64),
        "positions": chance.integers(4096, size=64),
        "slot_mapping": chance.integers(1 << 20, size=64),
        "seq_lens": chance.integers(1, 4096, size=64, dtype=np.int32),
        "block_tables": chance.integers(1 << 16, size=(64, 16), dtype=np.int32),
        "residual": chance.standard_normal((8, 128), np.float32).astype(np.float16),
        "step": 1234,
        "num_prefills": 0,
        "temperature": 0.7,
        "is_prompt": False,
        "lora": None,
        "virtual_engine": "decode",
    }


def array_features() -> Dict[str, Any]:
    """10 MiB of an image's features, and some scalars."""
    return {
        "req_id": "cmpl-0123456789abcdef",
        "modality": "image",
        "mm_hash": "0123456789abcdef" * 4,
        "offset": 17,
        "grid_thw": (1, 32, 40),
        "pixel_values": np.random.default_rng(0).standard_normal((1280, 2048), np.float32),
    }


def as_tensors(value: Dict[str, Any], dtype: str) -> Dict[str, Any]:
    """The same with torch tensors in place of arrays, and `dtype` in place of float types."""
    try:
        import torch
    except ImportError as error:
        raise LeftOut(f"needs torch, which can't be imported here: {error}") from None

    def tensor(array: Any) -> Any:
        made = torch.from_numpy(array)
        return made.to(getattr(torch, dtype)) if made.is_floating_point() else made

    return {key: tensor(item) if isinstance(item, np.ndarray) else item for key, item in value.items()}


CASES: Dict[str, Callable[[], Any]] = {
    "metadata": metadata,
    "scheduler-1": lambda: decode_step(1),
    "scheduler-64": lambda: decode_step(64),
    "scheduler-256": lambda: decode_step(256),
    "prefill-64": lambda: scheduler_output(64, 0, PREFILL_PROMPT),
    "tensor-dict": lambda: as_tensors(array_dict(), "bfloat16"),
    "tensor-dict-numpy": array_dict,
    "features": lambda: as_tensors(array_features(), "float32"),
    "features-numpy": array_features,
}
WITH_TENSORS = ["tensor-dict", "tensor-dict-numpy", "features", "features-numpy"]


def tensor_bytes(value: Any) -> int:
    """Of the arrays and tensors among the items of a dict."""
    items = value.values() if isinstance(value, dict) else ()
    return sum(int(item.nbytes) for item in items if hasattr(item, "nbytes"))
