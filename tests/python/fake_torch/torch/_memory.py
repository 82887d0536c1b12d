# SPDX-License-Identifier: Apache-2.0
"""What tensors lie in."""

import contextlib
import ctypes

from ._driver import _on, _stream_of, check, driver


def _captures(stream):
    capturing = ctypes.c_int()
    return driver().cuStreamIsCapturing(stream, ctypes.byref(capturing)) == 0 and capturing.value != 0


def _wait_for(stream, other):
    """What the stream is told to do from here on comes after what the other stream has been told so far."""
    event = ctypes.c_void_p()
    check(driver().cuEventCreate(ctypes.byref(event), 2))  # without timing
    if driver().cuEventRecord(event, other) == 0:  # else the other stream is destroyed
        check(driver().cuStreamWaitEvent(stream, event, 0))
    driver().cuEventDestroy_v2(event)


class _DeviceMemory:
    """Goes in the order of the stream that it was allocated on, and after what the recorded streams do with it. Memory
    that a capturing stream uses goes later, as a graph can't free it."""

    kept = []  # pointer, device, stream and recorded streams of what a stream that captured could not free

    def __init__(self, ordinal, nbytes):
        self.device, self.stream, self.pointer = ordinal, _stream_of(ordinal), 0
        self.recorded = set()
        if nbytes:
            made = ctypes.c_uint64()
            with _on(ordinal):
                check(driver().cuMemAllocAsync(ctypes.byref(made), ctypes.c_size_t(nbytes), self._stream()))
            self.pointer = made.value

    def _stream(self):
        return ctypes.c_void_p(self.stream.cuda_stream)

    def __del__(self):
        if self.pointer:
            others = [ctypes.c_void_p(s) for _, s in self.recorded if s != self.stream.cuda_stream]
            self.kept.append((self.pointer, self.device, self._stream(), others))
        taken = []
        with contextlib.suppress(IndexError):  # another thread may do the same: each takes what it frees
            while True:
                taken.append(self.kept.pop())
        for memory in taken:
            pointer, device, stream, others = memory
            with _on(device):
                if any(map(_captures, [stream, *others])):
                    self.kept.append(memory)
                else:
                    for other in others:
                        _wait_for(stream, other)
                    driver().cuMemFreeAsync(ctypes.c_uint64(pointer), stream)


class _Segment(_DeviceMemory):
    """As torch's allocator has it from cudaMalloc, and hands it out in pieces."""

    def __init__(self, ordinal, nbytes):
        self.device, self.stream, self.pointer = ordinal, None, 0
        made = ctypes.c_uint64()
        with _on(ordinal):
            check(driver().cuMemAlloc_v2(ctypes.byref(made), ctypes.c_size_t(nbytes)))
        self.pointer = made.value

    def __del__(self):
        with _on(self.device):
            check(driver().cuMemFree_v2(ctypes.c_uint64(self.pointer)))


class _HostMemory:
    def __init__(self, array):
        self.device, self.array = None, array
        self.pointer = array.__array_interface__["data"][0] if array.nbytes else 0
