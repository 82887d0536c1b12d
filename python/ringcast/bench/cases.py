# SPDX-License-Identifier: Apache-2.0
"""The measured objects: made-up data in the shapes that serving engines send, the same in every process and at every
call.

The classes are at the top level of this module, where a reader finds them by name.
"""

import dataclasses
import enum
import random
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

NEW_EVERY = 64  # one of so many requests of a decode step is new
BLOCK = 16  # tokens in a block of the KV cache: each cached request gets a new block in one step of so many
NEW_PROMPT, PREFILL_PROMPT = 64, 400  # tokens
VOCABULARY = 128_000


class LeftOut(Exception):
    """The case needs a package that is missing here; the text names the package."""


# ---- The message of each step to an engine's workers, in vLLM V1's shape (August 2026) -------------------------------


def record(name: str, fields: str, **defaults: Any) -> Any:
    """A dataclass at the top level of this module; its defaults: values, or the types of empty containers."""
    optional = [
        (key, Any, dataclasses.field(default_factory=value) if isinstance(value, type) else value)
        for key, value in defaults.items()
    ]
    made = dataclasses.make_dataclass(name, [*((field, Any) for field in fields.split()), *optional])
    made.__module__ = __name__
    return made


class OutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


SamplingParams = record(
    "SamplingParams", "", n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, temperature=0.7,
    top_p=0.95, top_k=0, min_p=0.0, seed=None, stop=list, stop_token_ids=list, ignore_eos=False, max_tokens=1024,
    min_tokens=0, logprobs=None, prompt_logprobs=None, skip_special_tokens=True, output_kind=OutputKind.DELTA,
)  # fmt: skip
NewRequestData = record(
    "NewRequestData",
    "req_id prompt_token_ids mm_features sampling_params pooling_params block_ids num_computed_tokens lora_request",
    prompt_embeds=None,
    prompt_is_token_ids=None,
    prefill_token_ids=None,
)
CachedRequestData = record(
    "CachedRequestData",
    "req_ids resumed_req_ids new_token_ids all_token_ids new_block_ids num_computed_tokens num_output_tokens",
)
SchedulerOutput = record(
    "SchedulerOutput",
    "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
    "scheduled_spec_decode_tokens scheduled_encoder_inputs num_common_prefix_blocks finished_req_ids "
    "free_encoder_mm_hashes",
    scheduled_encoder_input_stats=None, preempted_req_ids=None, has_structured_output_requests=False,
    pending_structured_output_tokens=False, num_invalid_spec_tokens=None, num_output_placeholders=dict,
    kv_connector_metadata=None, ec_connector_metadata=None, ec_manager_metadata=None, new_block_ids_to_zero=None,
    kv_cache_block_copies=None, block_table_updates=None, partial_tail_offloads=None, num_spec_tokens_to_schedule=0,
)  # fmt: skip


def request_id(chance: random.Random) -> str:
    return f"cmpl-{chance.getrandbits(64):016x}"


def new_request(chance: random.Random, prompt: int) -> Any:
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


def scheduler_output(new: int, cached: int, prompt: int) -> Any:
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


def decode_step(requests: int) -> Any:
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


def there(names: Sequence[str]) -> Tuple[List[str], Dict[str, str]]:
    """Those of the cases that can be made here, and why the others are left out."""
    left_out = {}
    for name in names:
        try:
            CASES[name]()
        except LeftOut as why:
            left_out[name] = str(why)
    if len(left_out) == len(names):
        raise LeftOut("nothing was measured: " + "; ".join(f"{name} {why}" for name, why in left_out.items()))
    return [name for name in names if name not in left_out], left_out


def tensor_bytes(value: Any) -> int:
    """Of the arrays and tensors among the items of a dict."""
    items = value.values() if isinstance(value, dict) else ()
    return sum(int(item.nbytes) for item in items if hasattr(item, "nbytes"))
