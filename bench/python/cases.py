# SPDX-License-Identifier: Apache-2.0
"""The measured objects: made-up data in the shapes that serving engines send, the same in every
process and at every call.
"""

import array
import random
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from bench.python import engine

NEW_EVERY = 64  # one of so many requests of a decode step is new
# tokens in a block of the KV cache: each cached request gets a new block in one step of so many
BLOCK = 16
NEW_PROMPT, PREFILL_PROMPT = 64, 400  # tokens
VOCABULARY = 128_000
TOKENS = 32 << 10  # of a long prompt


class LeftOut(Exception):
    """The case needs a package that is missing here; the text names the package."""


# ---- The message of each step to an engine's workers, in vLLM V1's shape -------------------------


_engine = engine.STAND_IN


def use(classes: engine.Engine) -> None:
    """From now on the messages are of these classes."""
    global _engine
    _engine = classes


def request_id(chance: random.Random) -> str:
    return f"cmpl-{chance.getrandbits(64):016x}"


def new_request(chance: random.Random, prompt: int) -> Any:
    return engine.made(
        _engine.new,
        req_id=request_id(chance),
        prompt_token_ids=[chance.randrange(VOCABULARY) for _ in range(prompt)],
        mm_features=[],
        sampling_params=_engine.sampling(
            temperature=0.7,
            top_p=0.95,
            max_tokens=1024,
            stop=[],
            stop_token_ids=[],
            bad_words=[],
            output_kind=_engine.kind.DELTA,
            _all_stop_token_ids={2},
        ),  # fmt: skip
        pooling_params=None,
        block_ids=([chance.randrange(1 << 16) for _ in range(-(-prompt // BLOCK))],),
        num_computed_tokens=0,
        lora_request=None,
    )


def scheduler_output(new: int, cached: int, prompt: int) -> Any:
    """
    A step that computes the prompts of `new` requests, and one token for each of `cached` requests.
    As many requests as are new have just finished. The parts share the strings of the ids, as an
    engine's do.
    """
    chance = random.Random(new + cached)
    added = [new_request(chance, prompt) for _ in range(new)]
    ids = [request_id(chance) for _ in range(cached)]
    outputs = [chance.randrange(1, 1024) for _ in ids]
    scheduled = {**{request.req_id: prompt for request in added}, **dict.fromkeys(ids, 1)}
    return engine.made(
        _engine.output,
        scheduled_new_reqs=added,
        scheduled_cached_reqs=engine.made(
            _engine.cached,
            req_ids=ids,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[
                ([chance.randrange(1 << 16)],) if i % BLOCK == 0 else None for i in range(cached)
            ],
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


def looked_up(output: Any) -> Any:
    """The same after vLLM's core has asked for a request's number of tokens, as it does where each
    iteration is logged: the cached property that answers is in the instance's __dict__ from then
    on."""
    len(output.scheduled_cached_reqs._req_id_to_num_output_tokens)
    return output


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


def records(count: int) -> Dict[str, Any]:
    """Dicts with the same keys, in a dict."""
    return {
        f"key_{i}": {"value": i, "squared": i * i, "text": f"text_value_{i}", "float": i * 1.5}
        for i in range(count)
    }


def token_ids() -> List[int]:
    chance = random.Random(0)
    return [chance.randrange(VOCABULARY) for _ in range(TOKENS)]


# ---- Tensors -------------------------------------------------------------------------------------


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


def multimodal() -> Any:
    """An image's features as vLLM sends them: 16 MiB of float32 in a UserDict."""
    pixels = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    if _engine is not engine.STAND_IN:
        pixels = as_tensors({"": pixels}, "float32")[""]
    return _engine.item(
        {"pixel_values": engine.made(_engine.elem, data=pixels, field=_engine.batched())}
    )


def as_tensors(value: Dict[str, Any], dtype: str) -> Dict[str, Any]:
    """The same with torch tensors in place of arrays, and `dtype` in place of float types."""
    try:
        import torch
    except ImportError as error:
        raise LeftOut(f"needs torch, which can't be imported here: {error}") from None

    def tensor(array: Any) -> Any:
        made = torch.from_numpy(array)
        return made.to(getattr(torch, dtype)) if made.is_floating_point() else made

    return {
        key: tensor(item) if isinstance(item, np.ndarray) else item for key, item in value.items()
    }


CASES: Dict[str, Callable[[], Any]] = {
    "metadata": metadata,
    "scheduler-1": lambda: decode_step(1),
    "scheduler-64": lambda: decode_step(64),
    "scheduler-256": lambda: decode_step(256),
    "prefill-64": lambda: scheduler_output(64, 0, PREFILL_PROMPT),
    "scheduler-64-cached": lambda: looked_up(decode_step(64)),
    "scheduler-256-cached": lambda: looked_up(decode_step(256)),
    "prefill-64-cached": lambda: looked_up(scheduler_output(64, 0, PREFILL_PROMPT)),
    "token-ids": lambda: array.array("q", token_ids()),
    "token-ids-list": token_ids,
    "records-10": lambda: records(10),
    "records-100": lambda: records(100),
    "records-1000": lambda: records(1000),
    "records-10000": lambda: records(10000),
    "multimodal": multimodal,
    "tensor-dict": lambda: as_tensors(array_dict(), "bfloat16"),
    "tensor-dict-numpy": array_dict,
    "features": lambda: as_tensors(array_features(), "float32"),
    "features-numpy": array_features,
}
WITH_TENSORS = ["tensor-dict", "tensor-dict-numpy", "features", "features-numpy"]


# Also measured between two processes.
ON_RINGS = ["metadata", "scheduler-1", "scheduler-64", "scheduler-256", "prefill-64", *WITH_TENSORS]
# Of the engine's classes.
OF_ENGINE = [name for name in CASES if name.startswith(("scheduler-", "prefill-", "multimodal"))]


def classes_of(name: str) -> str:
    """Which classes a case is made of; "" where there are none but Python's own."""
    return _engine.name if name in OF_ENGINE else ""


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; tensors too, whose == gives a tensor."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "dtype"):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return bool(one == other)


def there(names: Sequence[str]) -> Tuple[List[str], Dict[str, str]]:
    """Those of the cases that can be made here, and why the others are left out."""
    left_out = {}
    for name in names:
        try:
            CASES[name]()
        except LeftOut as why:
            left_out[name] = str(why)
    if len(left_out) == len(names):
        raise LeftOut(
            "nothing was measured: " + "; ".join(f"{name} {why}" for name, why in left_out.items())
        )
    return [name for name in names if name not in left_out], left_out


def tensor_bytes(value: Any) -> int:
    """Of the arrays and tensors among the items of a dict."""
    items = value.values() if isinstance(value, dict) else ()
    return sum(int(item.nbytes) for item in items if hasattr(item, "nbytes"))
