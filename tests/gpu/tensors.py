# SPDX-License-Identifier: Apache-2.0
"""Tensors of a real GPU through the Python package, between processes: a plain script, as there may be no pytest.

Each probe runs in a process of its own, with a time limit, and leaves one line of JSON, as tests/gpu/main.c does:
{"probe", "result", "why", "figures"}. What a probe needs and is not here makes it "skipped". That nothing goes by the
pool is a failure, unless GPU_PROBE_INLINE has the reason, of doctor, why not. GPU_FAKE: torch, CuPy and JAX are
stand_in.py's, on the tests' own driver, and nothing is skipped.

tensors.py [NAME...]
"""

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

if os.environ.get("GPU_FAKE"):
    import stand_in
else:
    stand_in = None

LIMIT = 90.0
FIGURES = {}


class Skipped(Exception):
    """The text says what is missing."""


def need(name):
    try:
        return __import__(name)
    except Exception as error:  # a package of another driver raises whatever it likes
        raise Skipped(f"no {name}: {error}") from error


def need_torch():
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Skipped("torch sees no CUDA device")
    return torch


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


# ---- The other process -----------------------------------------------------------------------------------------------


def _receive(handle, pipe, options, check, module, views):
    """Receives until the writer closes, and says of each what `check`, a name of this module, finds wrong with it."""
    if module == "torch":
        import torch

        torch.cuda.init()
    import ringcast

    with ringcast.Reader(handle, **options) as reader:
        pipe.send("attached")
        for number in range(pipe.recv()):
            try:
                if views:
                    with reader.view(LIMIT) as value:
                        wrong = globals()[check](number, value)
                else:
                    wrong = globals()[check](number, reader.recv(LIMIT))
                pipe.send(wrong)
            except Exception:
                pipe.send(traceback.format_exc())
        pipe.recv()
        pipe.send(reader.gpu and reader.gpu._asdict())


def no_pool(gpu, why):
    if known := os.environ.get("GPU_PROBE_INLINE"):
        raise Skipped(f"no pool ({why}), as doctor says too: {known}")
    raise AssertionError(f"no pool: {gpu.way}: {why}")


def must_have_gone_by_pool(writer, readers, lent=0, waits=False):
    """Each reader has opened the pool once, and no call has waited for the device but for what went INLINE. lent: how
    many handles it may have opened beside; waits: it may have waited, as it copies to the host."""
    FIGURES.update(writer=writer and writer._asdict(), readers=readers)
    expect(writer, "nothing that was sent was on a device")
    why = next((reader["why"] for reader in readers if reader and reader["why"]), writer.why)
    if writer.way != "pool" or not writer.pool_frames:
        no_pool(writer, why)
    waited = writer.syncs, writer.inline_frames
    expect(waited[0] == waited[1], "the writer waited for the device %d times, with %d frames INLINE" % waited)
    for reader in readers:
        expect(reader and reader["way"] == "pool", f"a reader has it by {reader and reader['way']}: {why}")
        expect(1 <= reader["opens"] <= 1 + lent, f"a reader has opened {reader['opens']} handles")
        few = waits or not reader["registered"] or reader["syncs"] == 0
        expect(few, f"a reader has waited for the device {reader['syncs']} times")


@contextlib.contextmanager
def receivers(writer, check, count, number=1, module="torch", views=False, lent=0, **options):
    context = multiprocessing.get_context("spawn")
    pairs = []
    for _ in range(number):
        ours, theirs = context.Pipe()
        arguments = (writer.handle, theirs, options, check, module, views)
        process = context.Process(target=_receive, args=arguments, daemon=True)
        process.start()
        theirs.close()
        pairs.append((process, ours))
    try:
        for _, pipe in pairs:
            expect(pipe.recv() == "attached", "a receiver does not attach")
            pipe.send(count)
        yield [pipe for _, pipe in pairs]
        gpu, readers = writer.gpu, []
        for process, pipe in pairs:
            pipe.send("end")
            readers.append(pipe.recv())
            process.join(LIMIT)
            expect(process.exitcode == 0, f"a receiver ended with {process.exitcode}")
        must_have_gone_by_pool(gpu, readers, lent, waits=options.get("map_location") == "cpu")
    finally:
        for process, _ in pairs:
            process.kill()


def hear(pipes):
    for pipe in pipes:
        wrong = pipe.recv()
        expect(wrong is None, wrong)


def broadcast(values, check, **options):
    import ringcast

    with ringcast.Writer() as writer, receivers(writer, check, len(values), **options) as pipes:
        for value in values:
            writer.send(value, LIMIT)
            hear(pipes)


# ---- What is sent ----------------------------------------------------------------------------------------------------


@functools.lru_cache(None)
def torch_values():
    """The same in each process. The first two are small: by them the pool is opened."""
    import torch

    def ramp(shape, dtype):
        count = 1
        for length in shape:
            count *= length
        return (torch.arange(count, device="cuda") % 113).to(dtype).reshape(shape)

    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
              torch.int32, torch.int64, torch.bool, torch.complex64]
    others = "complex128", "float8_e4m3fn", "float8_e5m2"
    dtypes += [getattr(torch, name) for name in others if hasattr(torch, name)]
    base = ramp((64, 96), torch.float32)
    values = [{"x": ramp((3, 5), torch.float32)}, {"x": ramp((1000,), torch.int64)}]
    values += [{"x": ramp((17, 33), dtype)} for dtype in dtypes]
    values += [
        {"empty": ramp((0, 7), torch.float32), "scalar": torch.tensor(3.5, device="cuda")},
        {"transposed": base.t(), "sliced": base[3:60:2, 5:90:3], "expanded": base[:1].expand(64, 96), "part": base[7]},
        {"parameter": torch.nn.Parameter(base.clone()), "grad": base.clone().requires_grad_()},
        {"nested": [{"a": base}, (base[0], "text", 7)], "host": base.cpu(), "none": None},
        {f"t{i}": ramp((i % 40 + 1,), torch.int64) for i in range(200)},
        {"large": ramp(((1 if stand_in else 9) << 20,), torch.uint8), "small": ramp((9,), torch.uint8)},
        base,
    ]
    return values


def differs(got, wanted, path="value", device=None, exact=True):
    """exact: as to parameters and requires_grad, too."""
    import torch

    if isinstance(wanted, torch.Tensor):
        device = device or wanted.device.type
        if not isinstance(got, torch.Tensor) or got.device.type != device:
            return f"{path}: {type(got)} on {getattr(got, 'device', None)}, not a tensor on {device}"
        if (got.dtype, got.shape) != (wanted.dtype, wanted.shape) or (exact and type(got) is not type(wanted)):
            return f"{path}: {got.dtype} {tuple(got.shape)} {type(got)}"
        if exact and got.requires_grad != wanted.requires_grad:
            return f"{path}: requires_grad is {got.requires_grad}"
        a, b = got.detach().cpu().contiguous(), wanted.detach().cpu().contiguous()
        same = torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        return None if same else f"{path}: other bytes"
    if isinstance(wanted, dict):
        if type(got) is not dict or list(got) != list(wanted):
            return f"{path}: {got!r:.100}"
        pairs = [(got[key], wanted[key], f"{path}[{key!r}]") for key in wanted]
    elif isinstance(wanted, (list, tuple)):
        if type(got) is not type(wanted) or len(got) != len(wanted):
            return f"{path}: {got!r:.100}"
        pairs = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(got, wanted))]
    else:
        return None if got == wanted else f"{path}: {got!r:.100} is not {wanted!r:.100}"
    return next((wrong for wrong in (differs(*pair, device, exact) for pair in pairs) if wrong), None)


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
    broadcast(torch_values(), "check_torch")


def torch_in_a_view():
    """Where they lie, in the pool."""
    need_torch()
    broadcast(torch_values(), "check_torch_in_view", views=True)


def torch_to_three_readers():
    need_torch()
    broadcast(torch_values(), "check_torch", number=3)


def torch_to_the_cpu():
    need_torch()
    broadcast(torch_values(), "check_torch_on_cpu", map_location="cpu")


def torch_to_the_device():
    need_torch()
    broadcast(torch_values(), "check_torch_on_cuda", map_location="cuda")


def check_ramp_or_less(number, got):
    import torch

    wanted = torch.full(tuple(got["x"].shape), number % 251, dtype=torch.uint8)
    return None if torch.equal(got["x"].cpu(), wanted) else f"message {number}: other bytes came"


def check_ramp(number, got):
    import torch

    wanted = torch.full((4 << 20,), number % 251, dtype=torch.uint8)
    return None if torch.equal(got["x"].cpu(), wanted) else f"message {number}: other bytes came"


def torch_written_to_again_at_once(stream=None):
    """The tensor is computed by work that is still under way when it is sent, and overwritten right after."""
    torch = need_torch()
    import ringcast

    count = 60
    heavy = torch.randn(4096, 4096, device="cuda")
    tensor = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
    with ringcast.Writer() as writer, receivers(writer, "check_ramp", count) as pipes:
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


def expand_segments():
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ[name] = "expandable_segments:True"  # before torch is imported; the receivers inherit it


def torch_expandable_segments():
    """Its memory can't be exported; the pool's copy must do."""
    expand_segments()
    need_torch()
    broadcast(torch_values(), "check_torch")


def torch_lent():
    """Larger than the pool: the readers copy it from where it lies."""
    torch = need_torch()
    import ringcast

    count = 12
    tensor = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
    with ringcast.Writer(gpu_lend=True, gpu_pool_bytes=2 << 20) as writer:
        with receivers(writer, "check_ramp_or_less", count, number=2, lent=1) as pipes:
            for number in range(2):  # by these the pool is opened
                writer.send({"x": torch.zeros(64, dtype=torch.uint8, device="cuda").fill_(number)}, LIMIT)
                hear(pipes)
            if writer.gpu.way != "pool":
                no_pool(writer.gpu, writer.gpu.why)
            with writer.lend(tensor) as loan:
                for number in range(2, count):
                    tensor.fill_(number % 251)
                    before = writer.gpu
                    writer.send({"x": tensor}, LIMIT)
                    sent = before.inline_frames == writer.gpu.inline_frames
                    expect(sent and before.full == writer.gpu.full, "what was lent went another way")
                    loan.wait(LIMIT)
                    hear(pipes)


def torch_that_can_not_be_lent():
    """expandable_segments: it is told, with the reason, and the tensor goes all the same."""
    expand_segments()
    torch = need_torch()
    import ringcast

    tensor = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
    if not any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot()):
        raise Skipped("torch has no expandable_segments here")
    refused = None
    with ringcast.Writer(gpu_lend=True) as writer, receivers(writer, "check_ramp", 4) as pipes:
        try:
            writer.lend(tensor)
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
        FIGURES["refused"] = refused
        expect(refused and "export" in refused, f"lend() of memory that can't be exported: {refused}")
        for number in range(4):
            writer.send({"x": tensor.fill_(number)}, LIMIT)
            hear(pipes)


def torch_memory_is_given_back():
    torch = need_torch()
    import ringcast

    tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    free = []
    for _ in range(3):
        with ringcast.Writer() as writer, receivers(writer, "check_nothing", 200) as pipes:
            for _ in range(200):
                writer.send({"x": tensor}, LIMIT)
                hear(pipes)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    FIGURES["free_bytes"] = free
    expect(free[0] - free[2] < 64 << 20, f"free bytes of the device shrink: {free}")


def check_nothing(number, got):
    got["x"].cpu()  # waits: a reader whose stream is behind fills the pool, and then waits for what goes INLINE


def torch_capture_is_refused(mode="thread_local"):
    torch = need_torch()
    import ringcast

    tensor = torch.zeros(1024, device="cuda")
    with ringcast.Writer() as writer, receivers(writer, "check_nothing", 2) as pipes:
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
    """The mode that torch captures in unless told otherwise: no thread may make calls that it forbids."""
    torch_capture_is_refused("global")


# ---- A drop-in -------------------------------------------------------------------------------------------------------


def _rank(folder, rank, pipe, count):
    """Of a group of two: rank 0 sends. Says what is wrong, and which way it went."""
    try:
        import torch
        import torch.distributed as dist
        from ringcast import torch as dropin

        torch.cuda.set_device(0)
        if stand_in:
            stand_in.join(folder, rank, 2)
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
        wrong = None
        for number in range(count):
            wanted = {"x": torch.arange(1000 + number, device="cuda") % 113, "step": number}
            got = dropin.broadcast_tensor_dict(wanted if rank == 0 else None, src=0)
            wrong = wrong or differs(got, wanted)
            dropin.broadcast_object(number, src=1)  # the source waits for it: it would be done before rank 1 begins
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
                processes.append(context.Process(target=_rank, args=(folder, rank, theirs, 20), daemon=True))
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


# ---- CuPy and JAX ----------------------------------------------------------------------------------------------------


def check_cupy(number, got):
    import cupy

    wanted = cupy.arange(10000, dtype=cupy.float32) + number
    if not isinstance(got["x"], cupy.ndarray):
        return f"{type(got['x'])} came"
    return None if bool((got["x"] == wanted).all()) and got["y"].shape == (5, 4) else "other values came"


def cupy_arrays(views=False):
    cupy = need("cupy")
    values = [
        {"x": cupy.arange(10000, dtype=cupy.float32) + number, "y": cupy.zeros((4, 5), dtype=cupy.int16).T}
        for number in range(10)
    ]
    broadcast(values, "check_cupy", module="cupy", views=views)


def cupy_arrays_in_a_view():
    cupy_arrays(views=True)


def check_jax(number, got):
    import jax
    import numpy as np

    kinds = type(got["x"]).__name__
    if not isinstance(got["x"], jax.Array) and not hasattr(got["x"], "__dlpack__"):
        return f"{kinds} came"
    values = np.asarray(got["x"] if isinstance(got["x"], jax.Array) else jax.numpy.from_dlpack(got["x"]))
    return None if (values == np.arange(10000, dtype=np.float32) + number).all() else f"other values came, as {kinds}"


def jax_arrays(views=False):
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax = need("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        raise Skipped(f"jax runs on {jax.default_backend()}")
    values = [{"x": jax.numpy.arange(10000, dtype=jax.numpy.float32) + number} for number in range(10)]
    broadcast(values, "check_jax", module="jax", views=views)


def jax_arrays_in_a_view():
    jax_arrays(views=True)


PROBES = [
    torch_arrives_as_it_was_sent,
    torch_in_a_view,
    torch_to_three_readers,
    torch_to_the_cpu,
    torch_to_the_device,
    torch_written_to_again_at_once,
    torch_on_a_stream_of_its_own,
    torch_expandable_segments,
    torch_lent,
    torch_that_can_not_be_lent,
    torch_memory_is_given_back,
    torch_capture_is_refused,
    torch_capture_of_all_threads_is_refused,
    torch_through_a_drop_in,
    cupy_arrays,
    cupy_arrays_in_a_view,
    jax_arrays,
    jax_arrays_in_a_view,
]


# ---- Running them ----------------------------------------------------------------------------------------------------


def run_here(name):
    result, why = "ok", ""
    try:
        next(probe for probe in PROBES if probe.__name__ == name)()
    except Skipped as reason:
        result, why = "skipped", str(reason)
    except Exception as error:
        result, why = "failed", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    print(json.dumps({"probe": name, "result": result, "why": why, "figures": FIGURES}), flush=True)


def run_apart(name):
    """Its line; a process that hangs is killed with all that it has started."""
    process = subprocess.Popen([sys.executable, __file__, "--here", name], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)
    result, why, printed = "crashed", "", ""
    try:
        printed, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        result, why = "timeout", f"not done within {LIMIT:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in printed.splitlines() if line.startswith('{"probe"')]
    if lines:
        return json.loads(lines[-1])
    return {"probe": name, "result": result, "why": why or f"status {process.returncode}", "figures": {}}


def main(names):
    if names[:1] == ["--here"]:
        run_here(names[1])
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is killed first
    bad = 0
    for probe in PROBES:
        if names and probe.__name__ not in names:
            continue
        line = run_apart(probe.__name__)
        print(json.dumps(line), flush=True)
        bad += line["result"] not in (("ok",) if stand_in else ("ok", "skipped"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
