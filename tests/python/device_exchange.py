# SPDX-License-Identifier: Apache-2.0
"""Values that go from one process with a CUDA device (device_peers.py) to others, and what those are to see of them."""

import device_peers as peers
import numpy as np


def told(kind, array, how=None):
    """What a reader is to see of it."""
    how = how or {}
    array = np.asarray(array)
    dtype = how.get("dtype", array.dtype.name)
    if "strides" in how:
        start = array.reshape(-1)[how.get("offset", 0) :]
        array = np.lib.stride_tricks.as_strided(start, how["shape"], [s * array.itemsize for s in how["strides"]])
    where = {"cuda": "cuda:0", "cpu": "cpu", "other": "DeviceTensor"}.get(kind, kind)
    parameter = ("parameter", how.get("grad", True)) if how.get("parameter") else ()
    return (where, dtype, array.shape, np.ascontiguousarray(array).tobytes(), *parameter)


def expected(value):
    if isinstance(value, dict):
        return {key: expected(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expected(item) for item in value]
    if isinstance(value, np.ndarray):
        return "numpy", value.dtype.name, value.shape, value.tobytes()
    return told(*value) if isinstance(value, tuple) else value


def exchange(writer, readers, value, options=None):
    for reader in readers:
        reader.start(peers.receive)
    try:
        writer.call(peers.send, value, options or {})
    except Exception:
        writer.call(peers.close)  # nobody is left to wait
        for reader in readers:
            reader.message()
        raise
    return [reader.finish() for reader in readers]
