# SPDX-License-Identifier: Apache-2.0
"""What a probe of tensors.py says and needs, as tests/gpu_scenarios has it in C."""

import os

# By default nothing asks for a pool.
os.environ.setdefault("RINGCAST_GPU_POOL_BYTES", str(256 << 20))

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


def no_pool(gpu, why):
    if known := os.environ.get("GPU_PROBE_INLINE"):
        raise Skipped(f"no pool ({why}), as doctor says too: {known}")
    raise AssertionError(f"no pool: {gpu.way}: {why}")
