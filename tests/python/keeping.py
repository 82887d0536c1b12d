# SPDX-License-Identifier: Apache-2.0
"""
What the tests of received memory have in common: where an array lies, a reader that has learned to
keep, and what looks at an array.
"""

import contextlib
import gc
import os
import pathlib

import numpy as np
from needs import torch

import ringcast

MIB = 1 << 20
DISABLED = os.environ.get("RINGCAST_DISABLE", "").replace(",", " ").split()
# Elsewhere all is copied, with the same results.
KEEPS = (
    "retain" not in DISABLED
    and os.sysconf("SC_PAGE_SIZE") == 4096
    and pathlib.Path("/proc/self/pagemap").exists()
)


def address(value):
    return value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr()


def is_kept(value):
    """Whether it lies in spill memory that is mapped copy-on-write."""
    place = address(value)
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if start <= place < end:
                return "memfd:ringcast" in line and line.split()[1] == "rw-p"
    return False


def some(number, mib=2):
    """An array that no other number gives."""
    return np.arange(mib << 17, dtype=np.uint64) + np.uint64((number & 0xFFFFFFFF) << 32)


def is_some(value, number, mib=2):
    array = value if isinstance(value, np.ndarray) else value.numpy()
    return array.shape == (mib << 17,) and bool(
        (array == some(number, mib).astype(array.dtype)).all()
    )


def tensor(number, mib=2):
    return torch.from_numpy(some(number, mib).view(np.int64))


@contextlib.contextmanager
def keeping(spill_mib=256, **options):
    """
    A ring of 64 KiB, in which a frame of 1 MiB lies in spill memory, and a reader that has had such
    a frame.
    """
    with ringcast.Writer(1 << 16, spill_bytes=spill_mib * MIB) as writer:
        with ringcast.Reader(writer.handle, retain=True, **options) as reader:
            assert not is_kept(teach(writer, reader))
            yield writer, reader


def teach(writer, *readers):
    """The first large frame is copied: it tells that there are arrays."""
    writer.send(some(0), 0)
    return [reader.recv(0) for reader in readers][0]


def is_free(reader):
    """Whether the reader holds nothing back, once it has looked."""
    try:
        reader.recv(0)
    except TimeoutError:
        return reader.lag == 0
    raise AssertionError("there is a frame")


# ---- What looks at an array, or at a tensor ------------------------------------------------------

LOOKS = {
    "slice": lambda array: array[10:],
    "other type": lambda array: array.view(np.uint16).reshape(2, -1)[1],
    "memoryview": lambda array: memoryview(array)[10:],
    "data": lambda array: array.data,
    "steps back": lambda array: array[::-2],
    "frombuffer": lambda array: np.frombuffer(array, np.uint8),
}
TENSOR_LOOKS = {
    "slice": lambda tensor: tensor[10:],
    "other type": lambda tensor: tensor.view(torch.int16).reshape(2, -1)[1],
    "numpy": lambda tensor: tensor.numpy()[5:],
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "detach": lambda tensor: tensor.detach(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "from_dlpack": np.from_dlpack,
    "to_dlpack": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
}
if torch:
    LOOKS |= {
        "from_numpy": torch.from_numpy,
        "its slice": lambda array: torch.from_numpy(array)[5:],
    }


def check_look(link, look, sevens, nines):
    """What looks at the bytes that have arrived by `link` keeps their memory."""
    kept = look(link(sevens))
    for _ in range(20):  # so that its place would be used again
        assert int(link(nines)[0]) == 9
    gc.collect()
    if type(kept).__name__ == "PyCapsule":
        kept = torch.from_dlpack(kept)
    if torch and isinstance(kept, torch.UntypedStorage):
        kept = torch.tensor([], dtype=torch.uint8).set_(kept)
    assert set(
        bytes(kept) if isinstance(kept, memoryview) else np.asarray(kept).view(np.uint8).ravel()
    ) == {7}
