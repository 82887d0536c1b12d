# SPDX-License-Identifier: Apache-2.0
"""Arrays of CuPy and JAX."""

import os

from probe import Skipped, need
from receivers import broadcast


def check_cupy(number, got):
    import cupy

    wanted = cupy.arange(10000, dtype=cupy.float32) + number
    if not isinstance(got["x"], cupy.ndarray):
        return f"{type(got['x'])} came"
    return (
        None
        if bool((got["x"] == wanted).all()) and got["y"].shape == (5, 4)
        else "other values came"
    )


def cupy_arrays(views=False):
    cupy = need("cupy")
    values = [
        {
            "x": cupy.arange(10000, dtype=cupy.float32) + number,
            "y": cupy.zeros((4, 5), dtype=cupy.int16).T,
        }
        for number in range(10)
    ]
    broadcast(values, check_cupy, module="cupy", views=views)


def cupy_arrays_in_a_view():
    cupy_arrays(views=True)


def check_jax(number, got):
    import jax
    import numpy as np

    kinds = type(got["x"]).__name__
    if not isinstance(got["x"], jax.Array) and not hasattr(got["x"], "__dlpack__"):
        return f"{kinds} came"
    values = np.asarray(
        got["x"] if isinstance(got["x"], jax.Array) else jax.numpy.from_dlpack(got["x"])
    )
    return (
        None
        if (values == np.arange(10000, dtype=np.float32) + number).all()
        else f"other values came, as {kinds}"
    )


def jax_arrays(views=False):
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax = need("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        raise Skipped(f"jax runs on {jax.default_backend()}")
    values = [
        {"x": jax.numpy.arange(10000, dtype=jax.numpy.float32) + number} for number in range(10)
    ]
    broadcast(values, check_jax, module="jax", views=views)


def jax_arrays_in_a_view():
    jax_arrays(views=True)


PROBES = [
    cupy_arrays,
    cupy_arrays_in_a_view,
    jax_arrays,
    jax_arrays_in_a_view,
]
