# SPDX-License-Identifier: Apache-2.0
"""What the tests of Readers that keep have in common: where an array lies, and a reader that has learned to keep."""

import contextlib
import os
import pathlib

import numpy as np
from needs import torch

import ringcast

MIB = 1 << 20
DISABLED = os.environ.get("RINGCAST_DISABLE", "").replace(",", " ").split()
# Elsewhere all is copied, with the same results.
KEEPS = "retain" not in DISABLED and os.sysconf("SC_PAGE_SIZE") == 4096 and pathlib.Path("/proc/self/pagemap").exists()


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
    return array.shape == (mib << 17,) and bool((array == some(number, mib).astype(array.dtype)).all())


def tensor(number, mib=2):
    return torch.from_numpy(some(number, mib).view(np.int64))


@contextlib.contextmanager
def keeping(spill_mib=256, **options):
    """A ring of 64 KiB, in which a frame of 1 MiB lies in spill memory, and a reader that has had such a frame."""
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
