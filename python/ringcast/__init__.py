# SPDX-License-Identifier: Apache-2.0
"""
ringcast: one process sends an object once, into shared memory; every other process of the machine
receives it.

    writer = ringcast.Writer()              # in one process; hand writer.handle to all readers
    reader = ringcast.Reader(handle)        # in each other process
    writer.wait_readers(3, timeout=10)
    writer.send({"ids": tensor, "step": 7}) # every reader's recv() gives an equal object of its own

Torch tensors and NumPy arrays are copied once into the ring and once out of the ring; plain values,
containers, dataclasses, msgspec.Structs, namedtuples and Enums go without pickle. NumPy, torch and
msgspec are optional. Every other part of a value is pickled, so a reader trusts the writer like
code (only processes of the same user can meet). Reader(handle, allow_pickle=False) refuses pickles,
and all classes that are not allowed.

Extension and package rely on the GIL: a free-threaded Python turns the GIL on at import.
"""

import os as _os

from ringcast._allowed import allow
from ringcast._compose import ComposedFrame, empty
from ringcast._ringcast import (
    KIND_BYTES,
    KIND_TENSORS,
    DeviceTensor,
    Frame,
    PackedFrame,
    Reader,
    Span,
    Tap,
    View,
    Writer,
    __version__,
    find,
    gpu_status,
    pack,
    rings,
    unpack,
)
from ringcast._status import GpuInfo, GpuStatus, Info, ReaderStatus, Ring, Stats, TapFrame, TapLost
from ringcast.exceptions import (
    AccessDenied,
    Cancelled,
    Error,
    Evicted,
    ForkedError,
    FrameTooLarge,
    NoFreeSlot,
    PickleRefused,
    ProtocolError,
    ReaderDied,
    RingNotFound,
    SendError,
    WriterGone,
)

__all__ = [
    "KIND_BYTES",
    "KIND_TENSORS",
    "AccessDenied",
    "Cancelled",
    "ComposedFrame",
    "DeviceTensor",
    "Error",
    "Evicted",
    "ForkedError",
    "Frame",
    "FrameTooLarge",
    "GpuInfo",
    "GpuStatus",
    "Info",
    "NoFreeSlot",
    "PackedFrame",
    "PickleRefused",
    "ProtocolError",
    "Reader",
    "ReaderDied",
    "ReaderStatus",
    "Ring",
    "RingNotFound",
    "SendError",
    "Span",
    "Stats",
    "Tap",
    "TapFrame",
    "TapLost",
    "View",
    "Writer",
    "WriterGone",
    "__version__",
    "allow",
    "empty",
    "find",
    "gpu_status",
    "pack",
    "rings",
    "unpack",
]

if _os.environ.get("RINGCAST_TRACE"):
    from ringcast import trace as _trace

    _trace.start_as_asked()

if _os.environ.get("RINGCAST_PROFILE"):
    from ringcast.profile import session as _session

    _session.start_as_asked()
