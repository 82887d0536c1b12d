# SPDX-License-Identifier: Apache-2.0
"""
One rank that makes the calls which SGLang makes of broadcast_pyobj, and hashes features, as SGLang
is or with ringcast in place. Prints a line of JSON for each case: what it came to here.

python sglang_callers.py ringcast|sglang STORE RANK WORLD
"""

import __future__

import ast
import dataclasses
import datetime
import faulthandler
import hashlib
import json
import pathlib
import queue
import sys
import threading
import types
from typing import Any, List, Optional

import numpy as np
import sglang
import sglang.multimodal_gen.runtime.distributed.utils as gen_utils
import sglang.srt.distributed.communication_op as communication
import sglang.srt.utils.common as common
import torch
import torch.distributed as dist

SOURCES = pathlib.Path(sglang.__path__[0])


@dataclasses.dataclass
class Request:
    rid: str
    ids: List[int]
    features: Any = None


class Abort:
    def __init__(self, rid):
        self.rid = rid


def requests(count):
    rng = np.random.default_rng(count)
    return [
        Request(
            f"request {i}",
            list(range(i, i + 40)),
            torch.from_numpy(rng.standard_normal((i + 1, 5))),
        )
        for i in range(count)
    ]


PAYLOADS = {
    "nothing": [],
    "one request": requests(1),
    "256 requests": requests(256),
    "a class without a dataclass": [Abort("x"), None, {"deep": [1, (2, {3})]}],
    "NumPy and torch": [
        np.arange(12).reshape(3, 4),
        torch.arange(6, dtype=torch.bfloat16),
        np.float32(1.5),
    ],
    "8 MiB": [torch.arange(1 << 20, dtype=torch.int64)],
}


def summary(value):
    """The same text for equal values, whatever process they are in."""
    if isinstance(value, torch.Tensor):
        digest = hashlib.sha256(repr(value.tolist()).encode()).hexdigest()[:12]
        return f"tensor {value.dtype} {list(value.shape)} {digest}"
    if isinstance(value, np.ndarray):
        return (
            f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()[:12]}"
        )
    if isinstance(value, (list, tuple, set)):
        return f"{type(value).__name__} {[summary(item) for item in value]}"
    if isinstance(value, dict):
        return f"dict {[(key, summary(item)) for key, item in value.items()]}"
    if isinstance(value, BaseException):
        return repr(value)
    if hasattr(value, "__dict__"):
        return f"{type(value).__qualname__} {summary(vars(value))}"
    return f"{type(value).__name__} {value!r}"


def cut_out(file, name, names):
    """A function, or a class's method, of a file of SGLang's; `names` are all that it may use."""
    tree = ast.parse((SOURCES / file).read_text())
    (found,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    found.decorator_list = []
    code = compile(
        ast.Module([found], []), str(file), "exec", flags=__future__.annotations.compiler_flag
    )
    scope = {"Optional": Optional, "List": List, **names}
    exec(code, scope)
    return scope[name]


class Group:
    """What the callers look at in SGLang's GroupCoordinator."""

    def __init__(self, ranks, made):
        self.ranks, self.cpu_group, self.rank = ranks, made, dist.get_rank()
        self.world_size = len(ranks)
        self.rank_in_group = ranks.index(self.rank) if self.rank in ranks else -1


def group(ranks):
    return Group(ranks, dist.new_group(ranks, backend="gloo"))


def mine(groups):
    return next(one for one in groups if dist.get_rank() in one.ranks)


def payloads(world):
    """
    The functions themselves, in both of SGLang's modules, from each rank, in the default group and
    in others.
    """
    rank = dist.get_rank()
    for module in common, gen_utils:
        short = module.__name__.replace("sglang.", "")
        for name, value in PAYLOADS.items():
            yield (
                f"{short}: {name}",
                [
                    module.broadcast_pyobj(value if rank == src else [], rank, src=src)
                    for src in range(world)
                ],
            )
        halves = mine([group(list(range(world // 2))), group(list(range(world // 2, world)))])
        last = halves.ranks[-1]
        value = requests(3 + last) if rank == last else None
        yield (
            f"{short}: in a half, from its last",
            module.broadcast_pyobj(value, rank, halves.cpu_group, last, False),
        )


def receiver(world):
    """managers/scheduler_components/request_receiver.py: the loop of every iteration."""
    tensor, context, all_ranks = shards(world)
    parallel = types.SimpleNamespace(
        attn_dp_enabled=False,
        tp_size=world,
        tp_group=all_ranks,
        attn_tp_rank=tensor.rank_in_group,
        attn_cp_rank=context.rank_in_group,
        enable_dp_attention_local_control_broadcast=False,
    )
    execution = types.SimpleNamespace(moe=types.SimpleNamespace(is_ep_scale_joiner=False))
    names = {
        "get_parallel": lambda: parallel,
        "get_exec": lambda: execution,
        "broadcast_pyobj": common.broadcast_pyobj,
        "attn_cp_tp_broadcast_pyobj": communication.attn_cp_tp_broadcast_pyobj,
    }
    names.update(
        dict.fromkeys(["TokenizedGenerateReqInput", "TokenizedEmbeddingReqInput"], Request)
    )
    names.update(
        dict.fromkeys(
            ["BatchTokenizedGenerateReqInput", "BatchTokenizedEmbeddingReqInput"], Request
        )
    )
    file = "srt/managers/scheduler_components/request_receiver.py"
    split = cut_out(file, "_split_work_and_control_reqs", names)
    broadcast = cut_out(file, "_broadcast_reqs_across_ranks", names)
    this = types.SimpleNamespace(_split_work_and_control_reqs=lambda reqs: split(None, reqs))
    for turn in range(3):
        here = [*requests(turn), Abort(str(turn))][: turn * 4] if all_ranks.rank == 0 else None
        yield f"request_receiver, turn {turn}", broadcast(this, here)
    parallel.attn_dp_enabled = True
    for parallel.enable_dp_attention_local_control_broadcast in False, True:
        here = (
            [*requests(2), Abort("a")]
            if tensor.rank_in_group == context.rank_in_group == 0
            else None
        )
        local = parallel.enable_dp_attention_local_control_broadcast
        yield f"request_receiver, attention DP, local control {local}", broadcast(this, here)


def shards(world):
    """attn-TP groups of neighbours, attn-CP groups across them, and all."""
    size = max(1, world // 2)
    tensor = mine([group(list(range(i, i + size))) for i in range(0, world, size)])
    context = mine([group(list(range(i, world, size))) for i in range(size)])
    communication.get_attn_tp_group = lambda: tensor
    communication.get_attn_cp_group = lambda: context
    return tensor, context, group(list(range(world)))


def others(world):
    rank = dist.get_rank()
    everyone = group(list(range(world)))
    # srt/distributed/communication_op.py, as scheduler_pp_mixin.py calls it
    shards(world)
    yield (
        "attn_cp_tp_broadcast_pyobj",
        communication.attn_cp_tp_broadcast_pyobj(requests(5) if rank == 0 else None),
    )
    # srt/managers/tp_worker.py: every rank gives its own, the first one's counts
    yield (
        "tp_worker: the seed",
        common.broadcast_pyobj([rank + 42], rank, everyone.cpu_group, src=0)[0],
    )
    # srt/managers/scheduler_components/dynamic_chunk_sizer.py: None, if there are none
    for samples in None, ([128, 256], [0.1, 0.2]):
        got = common.broadcast_pyobj(
            [samples if rank == 0 else None], rank, everyone.cpu_group, src=0
        )[0]
        yield f"dynamic_chunk_sizer: {samples}", got
    # multimodal_gen/runtime/disaggregation/scheduler_mixin.py
    names = {"broadcast_pyobj": gen_utils.broadcast_pyobj}
    to_all = cut_out(
        "multimodal_gen/runtime/disaggregation/scheduler_mixin.py", "_broadcast_to_all_ranks", names
    )
    this = types.SimpleNamespace(
        server_args=types.SimpleNamespace(sp_degree=1, enable_cfg_parallel=False, tp_size=world),
        worker=types.SimpleNamespace(tp_group=everyone, tp_cpu_group=everyone.cpu_group),
    )
    yield (
        "scheduler_mixin: a dict of scalars",
        to_all(this, {"seed": 1, "steps": [2, 3.5]} if rank == 0 else None),
    )
    yield "scheduler_mixin: None", to_all(this, None)
    # multimodal_gen/runtime/managers/pi05_segment_scheduler.py: a dict in place of a list
    packet = {"signature": ("a", 1), "indices": [0, 2]} if rank == 0 else None
    yield (
        "pi05_segment_scheduler: a dict",
        gen_utils.broadcast_pyobj(packet, rank, everyone.cpu_group, src=0),
    )
    # multimodal_gen/runtime/pipelines_core/executors/parallel_executor.py
    for objects in [True, Request("batch", [1])], [False, ValueError("no batch")]:
        yield (
            f"parallel_executor: {objects[0]}",
            gen_utils.broadcast_pyobj(
                objects if rank == 0 else [], rank=rank, dist_group=everyone.cpu_group, src=0
            ),
        )
    yield "hybrid_cache_controller: in a thread", prefetch(rank, group(list(range(world))))


def hashes(which):
    """
    srt/managers/mm_utils.py: the hash of a feature, by SGLang's own function and by feature_hash.
    """
    if which == "ringcast":
        from ringcast.sglang import feature_hash as hash_of
    else:
        hash_of = sglangs_hash()
    plain = torch.arange(6000, dtype=torch.int64).reshape(60, 100)
    of_numpy = "uint8 int8 int16 int32 int64 bool float16 float32 float64 complex64".split()
    features = {name: plain.to(getattr(torch, name)) for name in [*of_numpy, "bfloat16"]}
    features.update({f"an array of {name}": features[name].numpy() for name in of_numpy})
    features.update(
        transposed=plain.T,
        sliced=plain[::2, 1::3],
        expanded=plain[0].expand(7, 100),
        scalar=torch.tensor(1.5),
        empty=torch.empty(0, 3),
        parameter=torch.nn.Parameter(plain.float()),
        a_list=[plain, plain.float().T],
        a_nested_list=[plain, [plain.half(), [plain[0]]]],
        transposed_array=plain.numpy().T,
        sliced_array=plain.numpy()[::3, ::2],
        bytes=b"pixels",
    )
    for name, feature in features.items():
        yield f"hash_feature: {name}", hash_of(feature)


def sglangs_hash():
    names = {"torch": torch, "np": np, "hashlib": hashlib}
    names.update(
        dict.fromkeys(["ShmPointerMMData", "CudaIpcTensorTransportProxy"], type("NotHere", (), {}))
    )
    for file, name in (
        ("srt/utils/common.py", "flatten_nested_list"),
        ("srt/managers/mm_utils.py", "data_hash"),
        ("srt/managers/mm_utils.py", "tensor_hash"),
        ("srt/managers/mm_utils.py", "hash_feature"),
    ):
        names[name] = cut_out(file, name, names)
    return names["hash_feature"]


def prefetch(rank, its_own):
    """
    srt/mem_cache/hybrid_cache/hybrid_cache_controller.py: idle turns are empty lists, None ends it.
    """
    tickets, got = queue.Queue(), []
    for ticket in [Request("prefetch", [7])], [], [None]:
        tickets.put(ticket)

    def loop():
        while True:
            objects = tickets.get() if rank == 0 else []
            objects = common.broadcast_pyobj(objects, rank, its_own.cpu_group, src=its_own.ranks[0])
            got.append(objects)
            if objects and objects[0] is None:
                return

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    return got


def main():
    which, store, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    faulthandler.dump_traceback_later(200, exit=True)
    if which == "ringcast":
        import ringcast.sglang

        assert ringcast.sglang.install()
    for function in (
        common.broadcast_pyobj,
        communication.broadcast_pyobj,
        gen_utils.broadcast_pyobj,
    ):
        from_ringcast = pathlib.Path(function.__code__.co_filename).parts[-3] == "ringcast"
        assert from_ringcast == (which == "ringcast"), (
            f"{function.__module__}: {function.__code__.co_filename}"
        )
    dist.init_process_group("gloo", f"file://{store}", datetime.timedelta(seconds=100), world, rank)
    for cases in payloads(world), receiver(world), others(world), hashes(which):
        for case, result in cases:
            text = summary(result)
            if len(text) > 300:
                text = f"{text[:200]}... {hashlib.sha256(text.encode()).hexdigest()}"
            print(json.dumps({"case": case, "result": text}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
