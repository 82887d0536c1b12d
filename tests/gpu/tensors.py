# SPDX-License-Identifier: Apache-2.0
"""Tensors of a real GPU through the Python package, between processes: a plain script, as there may be no pytest.

Each probe runs in a process of its own, with a time limit, and leaves one line of JSON, as tests/gpu/main.c does:
{"probe", "result", "why", "figures"}. What a probe needs and is not here makes it "skipped".

tensors.py [NAME...]
"""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback

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


def _receive(handle, pipe, options, check, module):
    """Receives until the writer closes, and says of each what `check`, a name of this module, finds wrong with it."""
    if module == "torch":
        import torch

        torch.cuda.init()
    import ringcast

    with ringcast.Reader(handle, **options) as reader:
        pipe.send("attached")
        for number in range(pipe.recv()):
            try:
                pipe.send(globals()[check](number, reader.recv(LIMIT)))
            except Exception:
                pipe.send(traceback.format_exc())
        pipe.recv()


@contextlib.contextmanager
def receivers(writer, check, count, number=1, module="torch", **options):
    context = multiprocessing.get_context("spawn")
    pairs = []
    for _ in range(number):
        ours, theirs = context.Pipe()
        arguments = (writer.handle, theirs, options, check, module)
        process = context.Process(target=_receive, args=arguments, daemon=True)
        process.start()
        theirs.close()
        pairs.append((process, ours))
    try:
        for _, pipe in pairs:
            expect(pipe.recv() == "attached", "a receiver does not attach")
            pipe.send(count)
        yield [pipe for _, pipe in pairs]
        for process, pipe in pairs:
            pipe.send("end")
            process.join(LIMIT)
            expect(process.exitcode == 0, f"a receiver ended with {process.exitcode}")
    finally:
        for process, _ in pairs:
            process.kill()


def hear(pipes):
    for pipe in pipes:
        wrong = pipe.recv()
        expect(wrong is None, wrong)


def broadcast(values, check, number=1, module="torch", **options):
    import ringcast

    with ringcast.Writer() as writer:
        with receivers(writer, check, len(values), number, module, **options) as pipes:
            for value in values:
                writer.send(value, LIMIT)
                hear(pipes)


# ---- What is sent ----------------------------------------------------------------------------------------------------


def torch_values():
    """The same in each process. The first two are small: by them the pool is opened."""
    import torch

    def ramp(shape, dtype):
        count = 1
        for length in shape:
            count *= length
        return (torch.arange(count, device="cuda") % 113).to(dtype).reshape(shape)

    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
              torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128]
    dtypes += [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
    base = ramp((64, 96), torch.float32)
    values = [{"x": ramp((3, 5), torch.float32)}, {"x": ramp((1000,), torch.int64)}]
    values += [{"x": ramp((17, 33), dtype)} for dtype in dtypes]
    values += [
        {"empty": ramp((0, 7), torch.float32), "scalar": torch.tensor(3.5, device="cuda")},
        {"transposed": base.t(), "sliced": base[3:60:2, 5:90:3], "expanded": base[:1].expand(64, 96), "part": base[7]},
        {"parameter": torch.nn.Parameter(base.clone()), "grad": base.clone().requires_grad_()},
        {"nested": [{"a": base}, (base[0], "text", 7)], "host": base.cpu(), "none": None},
        {f"t{i}": ramp((i % 40 + 1,), torch.int64) for i in range(200)},
        {"large": ramp((9 << 20,), torch.uint8), "small": ramp((9,), torch.uint8)},
        base,
    ]
    return values


def differs(got, wanted, path="value", device=None):
    import torch

    if isinstance(wanted, torch.Tensor):
        device = device or wanted.device.type
        if not isinstance(got, torch.Tensor) or got.device.type != device:
            return f"{path}: {type(got)} on {getattr(got, 'device', None)}, not a tensor on {device}"
        if (got.dtype, got.shape, type(got)) != (wanted.dtype, wanted.shape, type(wanted)):
            return f"{path}: {got.dtype} {tuple(got.shape)} {type(got)}"
        if got.requires_grad != wanted.requires_grad:
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
    return next((wrong for wrong in (differs(*pair, device) for pair in pairs) if wrong), None)


def check_torch(number, got):
    return differs(got, torch_values()[number])


def check_torch_on_cpu(number, got):
    return differs(got, torch_values()[number], device="cpu")


def check_torch_on_cuda(number, got):
    return differs(got, torch_values()[number], device="cuda")


def torch_arrives_as_it_was_sent():
    need_torch()
    broadcast(torch_values(), "check_torch")


def torch_to_three_readers():
    need_torch()
    broadcast(torch_values(), "check_torch", number=3)


def torch_to_the_cpu():
    need_torch()
    broadcast(torch_values(), "check_torch_on_cpu", map_location="cpu")


def torch_to_the_device():
    need_torch()
    broadcast(torch_values(), "check_torch_on_cuda", map_location="cuda")


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


def torch_expandable_segments():
    """Its memory can't be exported; the pool's copy must do."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ[name] = "expandable_segments:True"  # before torch is imported; the receivers inherit it
    need_torch()
    broadcast(torch_values(), "check_torch")


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
    return None


def torch_capture_is_refused():
    torch = need_torch()
    import ringcast

    tensor = torch.zeros(1024, device="cuda")
    with ringcast.Writer() as writer, receivers(writer, "check_nothing", 2) as pipes:
        writer.send({"x": tensor}, LIMIT)
        hear(pipes)
        graph = torch.cuda.CUDAGraph()
        refused = None
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                try:
                    writer.send({"x": tensor}, LIMIT)
                except Exception as error:
                    refused = f"{type(error).__name__}: {error}"
        finally:
            FIGURES["refused"] = refused
        expect(refused, "a send while a graph was captured went through")
        writer.send({"x": tensor}, LIMIT)
        hear(pipes)


def check_cupy(number, got):
    import cupy

    wanted = cupy.arange(10000, dtype=cupy.float32) + number
    if not isinstance(got["x"], cupy.ndarray):
        return f"{type(got['x'])} came"
    return None if bool((got["x"] == wanted).all()) and got["y"].shape == (5, 4) else "other values came"


def cupy_arrays():
    cupy = need("cupy")
    values = [
        {"x": cupy.arange(10000, dtype=cupy.float32) + number, "y": cupy.zeros((4, 5), dtype=cupy.int16).T}
        for number in range(10)
    ]
    broadcast(values, "check_cupy", module="cupy")


def check_jax(number, got):
    import jax
    import numpy as np

    kinds = type(got["x"]).__name__
    if not isinstance(got["x"], jax.Array) and not hasattr(got["x"], "__dlpack__"):
        return f"{kinds} came"
    values = np.asarray(got["x"] if isinstance(got["x"], jax.Array) else jax.numpy.from_dlpack(got["x"]))
    return None if (values == np.arange(10000, dtype=np.float32) + number).all() else f"other values came, as {kinds}"


def jax_arrays():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax = need("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        raise Skipped(f"jax runs on {jax.default_backend()}")
    values = [{"x": jax.numpy.arange(10000, dtype=jax.numpy.float32) + number} for number in range(10)]
    broadcast(values, "check_jax", module="jax")


PROBES = [
    torch_arrives_as_it_was_sent,
    torch_to_three_readers,
    torch_to_the_cpu,
    torch_to_the_device,
    torch_written_to_again_at_once,
    torch_on_a_stream_of_its_own,
    torch_expandable_segments,
    torch_memory_is_given_back,
    torch_capture_is_refused,
    cupy_arrays,
    jax_arrays,
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
        bad += line["result"] not in ("ok", "skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
