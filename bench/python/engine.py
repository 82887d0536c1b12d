# SPDX-License-Identifier: Apache-2.0
"""
The classes of the messages that vLLM V1 sends its workers: vLLM's own, or stand-ins that have the
same kinds of classes and the same fields. The fields are those of vLLM 0.33.0; of another version a
field that is not there is left out.

The stand-ins are at the top level of this module, where a reader finds them by name.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import io
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import numpy as np

from bench.machine import version
from bench.python.harness import say

try:
    import msgspec
except ImportError:
    msgspec = None  # type: ignore[assignment]


class OutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


_SAMPLING: Dict[str, Any] = dict(
    n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, temperature=1.0,
    watermarking=None,
    top_p=1.0, top_k=0, min_p=0.0, seed=None, stop=None, stop_token_ids=None, ignore_eos=False,
    max_tokens=16,
    min_tokens=0, logprobs=None, prompt_logprobs=None, prompt_logprob_token_ids=None,
    prompt_logprob_start=None,
    logprob_token_ids=None, flat_logprobs=False, detokenize=True, skip_special_tokens=True,
    spaces_between_special_tokens=True, include_stop_str_in_output=False,
    output_kind=OutputKind.CUMULATIVE,
    stream_interval=None, skip_clone=False, output_text_buffer_length=0, _eos_token_id=None,
    _all_stop_token_ids=set,
    _watermarking_skipped=False, structured_outputs=None, logit_bias=None, allowed_token_ids=None,
    extra_args=None,
    bad_words=None, _bad_words_token_ids=None, skip_reading_prefix_cache=None,
    thinking_token_budget=None,
    repetition_detection=None, routed_experts_prompt_start=0, trace_decode_token_ids=None,
)  # fmt: skip
_TYPES = {"output_kind": OutputKind, "_all_stop_token_ids": Set[int]}


def _sampling_params() -> Any:
    """
    A Struct with a __dict__ for cached properties, as vLLM's; a dataclass where msgspec is missing.
    """
    field = msgspec.field if msgspec else dataclasses.field
    fields = [
        (
            name,
            _TYPES.get(name, Any),
            field(default_factory=value) if isinstance(value, type) else value,
        )
        for name, value in _SAMPLING.items()
    ]
    if msgspec:
        return msgspec.defstruct(
            "SamplingParams", fields, module=__name__, omit_defaults=True, dict=True
        )
    made: Any = dataclasses.make_dataclass("SamplingParams", fields)
    made.__module__ = __name__
    return made


SamplingParams = _sampling_params()


@dataclasses.dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: Optional[List[int]]
    mm_features: List[Any]
    sampling_params: Optional[SamplingParams]  # type: ignore[valid-type]
    pooling_params: Any
    block_ids: Tuple[List[int], ...]
    num_computed_tokens: int
    lora_request: Any
    prompt_embeds: Any = None
    prompt_is_token_ids: Optional[List[bool]] = None
    prefill_token_ids: Optional[List[int]] = None
    replay_start: int = 0


@dataclasses.dataclass
class CachedRequestData:
    req_ids: List[str]
    resumed_req_ids: Set[str]
    new_token_ids: List[List[int]]
    all_token_ids: Dict[str, List[int]]
    new_block_ids: List[Optional[Tuple[List[int], ...]]]
    num_computed_tokens: List[int]
    num_output_tokens: List[int]

    @functools.cached_property
    def _req_id_to_num_output_tokens(self) -> Dict[str, int]:
        return dict(zip(self.req_ids, self.num_output_tokens))


@dataclasses.dataclass
class SchedulerOutput:
    scheduled_new_reqs: List[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: Dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: Dict[str, List[int]]
    scheduled_encoder_inputs: Dict[str, List[int]]
    finished_req_ids: Set[str]
    free_encoder_mm_hashes: List[str]
    encoder_input_updates: Dict[str, Any] = dataclasses.field(default_factory=dict)
    scheduled_encoder_input_stats: Any = None
    preempted_req_ids: Optional[Set[str]] = None
    has_structured_output_requests: bool = False
    pending_structured_output_tokens: bool = False
    num_invalid_spec_tokens: Optional[Dict[str, int]] = None
    kv_connector_metadata: Any = None
    has_sync_kv_loads: bool = False
    aux_output_connector_metadata: Any = None
    ec_connector_metadata: Any = None
    ec_manager_metadata: Any = None
    new_block_ids_to_zero: Optional[List[int]] = None
    kv_cache_block_copies: Optional[List[Any]] = None
    kv_connector_block_state: Any = None
    num_spec_tokens_to_schedule: int = 0
    num_common_prefix_blocks: List[int] = dataclasses.field(default_factory=list)
    skip_drafts: bool = False


@dataclasses.dataclass(frozen=True)
class BatchedField:
    keep_on_cpu: bool = False


@dataclasses.dataclass
class FieldElem:
    data: Any
    field: BatchedField

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FieldElem)
            and self.field == other.field
            and np.array_equal(self.data, other.data)
        )


class KwargsItem(collections.UserDict):  # type: ignore[type-arg]
    """Maps the names of a model's arguments to FieldElems."""


class Engine(NamedTuple):
    name: str
    output: Any
    new: Any
    cached: Any
    sampling: Any
    kind: Any
    item: Any
    elem: Any
    batched: Any


STAND_IN = Engine(
    "stand-in" if msgspec else "stand-in, no msgspec",
    SchedulerOutput, NewRequestData, CachedRequestData, SamplingParams, OutputKind, KwargsItem,
    FieldElem, BatchedField,
)  # fmt: skip


def find(vllm: Optional[str]) -> Engine:
    """vLLM's classes, of the source in the folder `vllm` or of the installed package; else the
    stand-ins."""
    if vllm is not None:
        sys.path.insert(0, os.path.abspath(vllm))
    try:
        # The standard output is for the figures alone.
        with contextlib.redirect_stdout(io.StringIO()):
            output = importlib.import_module("vllm.v1.core.sched.output")
            sampling = importlib.import_module("vllm.sampling_params")
            inputs = importlib.import_module("vllm.multimodal.inputs")
    except ImportError as error:
        if vllm is not None:
            say(f"stand-ins are measured, as vLLM can't be imported from {vllm}: {error}")
        return STAND_IN
    told = os.path.basename(os.path.abspath(vllm)) if vllm else f"vllm {version('vllm')}"
    return Engine(
        told, output.SchedulerOutput, output.NewRequestData, output.CachedRequestData,
        sampling.SamplingParams,
        sampling.RequestOutputKind, inputs.MultiModalKwargsItem, inputs.MultiModalFieldElem,
        inputs.MultiModalBatchedField,
    )  # fmt: skip


def made(cls: Any, **values: Any) -> Any:
    """An instance of a dataclass, with those of the values that it has fields for."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})
