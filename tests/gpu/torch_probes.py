# SPDX-License-Identifier: Apache-2.0
"""torch's tensors: of all kinds, on streams, written to again at once, beside a capture, and by a
drop-in."""

import contextlib
import multiprocessing
import os
import tempfile
import time
import traceback

from probe import FIGURES, LIMIT, expect, need_torch
from receivers import broadcast, hear, must_have_gone_by_pool, receivers
from torch_values import differs, torch_values

# ---- Of all kinds --------------------------------------------------------------------------------


def check_torch(number, got):
    return differs(got, torch_values()[number])


def check_torch_in_view(number, got):
    return differs(got, torch_values()[number], exact=False)


def check_torch_on_cpu(number, got):
    return differs(got, torch_values()[number], device="cpu")


def check_torch_on_cuda(number, got):
    return differs(got, torch_values()[number], device="cuda")


def torch_arrives_as_it_was_sent():
    need_torch()
    broadcast(torch_values(), check_torch)


def torch_in_a_view():
    """Where they lie, in the pool."""
    need_torch()
    broadcast(torch_values(), check_torch_in_view, views=True)


def torch_to_three_readers():
    need_torch()
    broadcast(torch_values(), check_torch, number=3)


def torch_to_the_cpu():
    need_torch()
    broadcast(torch_values(), check_torch_on_cpu, map_location="cpu")


def torch_to_the_device():
    need_torch()
    broadcast(torch_values(), check_torch_on_cuda, map_location="cuda")


# ---- In the order of streams ---------------------------------------------------------------------

# Of a ring in which the first message, which goes INLINE, has room: for one in a spill segment a
# reader waits.
ROOMY = 32 << 20


def check_filled(number, got):
    import torch

    wanted = torch.full(tuple(got["x"].shape), number % 251, dtype=torch.uint8)
    return None if torch.equal(got["x"].cpu(), wanted) else f"message {number}: other bytes came"


def check_filled_large(number, got):
    if tuple(got["x"].shape) != (4 << 20,):
        return f"message {number}: {tuple(got['x'].shape)} came"
    return check_filled(number, got)


def torch_written_to_again_at_once(stream=None):
    """The tensor is computed by work that is still under way when it is sent, and overwritten right
    after."""
    torch = need_torch()
    import ringcast

    count = 60
    heavy = torch.randn(4096, 4096, device="cuda")
    tensor = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
    with (
        ringcast.Writer(capacity=ROOMY) as writer,
        receivers(writer, check_filled_large, count) as pipes,
    ):
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            for number in range(count):
                for _ in range(4):
                    torch.mm(heavy, heavy)
                tensor.fill_(number % 251)
                began = time.perf_counter()
                writer.send({"x": tensor}, LIMIT)
                FIGURES["last_send_us"] = (time.perf_counter() - began) * 1e6
                tensor.fill_(255)
                hear(pipes)


def torch_on_a_stream_of_its_own():
    torch = need_torch()
    torch_written_to_again_at_once(torch.cuda.Stream())


# ---- expandable_segments, and what is given back -------------------------------------------------


def expand_segments():
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ[name] = (
            "expandable_segments:True"  # before torch is imported; the receivers inherit it
        )


def torch_expandable_segments():
    """Its memory can't be exported; the pool's copy must do."""
    expand_segments()
    need_torch()
    broadcast(torch_values(), check_torch)


def torch_memory_is_given_back():
    torch = need_torch()
    import ringcast

    tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    free = []
    for _ in range(3):
        with ringcast.Writer() as writer, receivers(writer, check_nothing, 200) as pipes:
            for _ in range(200):
                writer.send({"x": tensor}, LIMIT)
                hear(pipes)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    FIGURES["free_bytes"] = free
    expect(free[0] - free[2] < 64 << 20, f"free bytes of the device shrink: {free}")


def check_nothing(number, got):
    got[
        "x"
        # waits: a reader with a stream that is behind fills the pool, and then waits for what goes
        # INLINE
    ].cpu()


# ---- Beside a capture ----------------------------------------------------------------------------


def torch_capture_is_refused(mode="thread_local"):
    torch = need_torch()
    import ringcast

    tensor = torch.zeros(1024, device="cuda")
    with ringcast.Writer() as writer, receivers(writer, check_nothing, 2) as pipes:
        writer.send({"x": tensor}, LIMIT)
        hear(pipes)
        graph = torch.cuda.CUDAGraph()
        refused = None
        try:
            with torch.cuda.graph(graph, capture_error_mode=mode):
                try:
                    writer.send({"x": tensor}, LIMIT)
                except Exception as error:
                    refused = f"{type(error).__name__}: {error}"
        finally:
            FIGURES["refused"] = refused
        expect(refused, "a send while a graph was captured went through")
        writer.send({"x": tensor}, LIMIT)
        hear(pipes)


def torch_capture_of_all_threads_is_refused():
    """
    The mode that torch captures in unless told otherwise: no thread may make calls that it forbids.
    """
    torch_capture_is_refused("global")


# ---- A drop-in -----------------------------------------------------------------------------------


def _rank(folder, rank, pipe, count):
    """Of a group of two: rank 0 sends. Says what is wrong, and which way it went."""
    try:
        import torch
        import torch.distributed as dist
        from ringcast import torch as dropin

        torch.cuda.set_device(0)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2
        )
        wrong = None
        for number in range(count):
            wanted = {"x": torch.arange(1000 + number, device="cuda") % 113, "step": number}
            got = dropin.broadcast_tensor_dict(wanted if rank == 0 else None, src=0)
            wrong = wrong or differs(got, wanted)
            # The source waits for it: it would be done before rank 1 begins.
            dropin.broadcast_object(number, src=1)
        pipe.send((wrong, dropin.rings()[0].gpu._asdict()))
        pipe.recv()
        dropin.close()
        dist.destroy_process_group()
    except Exception:
        pipe.send((traceback.format_exc(), None))


def torch_through_a_drop_in():
    need_torch()
    from ringcast import GpuInfo

    context = multiprocessing.get_context("spawn")
    found, processes, pipes = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(2):
                ours, theirs = context.Pipe()
                processes.append(
                    context.Process(target=_rank, args=(folder, rank, theirs, 20), daemon=True)
                )
                pipes.append(ours)
                processes[-1].start()
            for pipe in pipes:
                wrong, gpu = pipe.recv()
                expect(wrong is None, wrong)
                found.append(gpu)
            for pipe in pipes:
                pipe.send("end")
            for process in processes:
                process.join(LIMIT)
        finally:
            for process in processes:
                process.kill()
    must_have_gone_by_pool(GpuInfo(**found[0]), found[1:])


PROBES = [
    torch_arrives_as_it_was_sent,
    torch_in_a_view,
    torch_to_three_readers,
    torch_to_the_cpu,
    torch_to_the_device,
    torch_written_to_again_at_once,
    torch_on_a_stream_of_its_own,
    torch_expandable_segments,
    torch_memory_is_given_back,
    torch_capture_is_refused,
    torch_capture_of_all_threads_is_refused,
    torch_through_a_drop_in,
]
