# SPDX-License-Identifier: Apache-2.0
"""Nothing of a device is kept: neither objects, nor memory of the host or of the device, nor descriptors."""

import os
import sys

import device_peers as peers
import looks
import numpy as np
import pytest
from device_peers import MEGABYTE
from peers import WATCHDOG
from test_device import INLINE

import ringcast

LIVE = "allocations", "imports", "registered", "streams", "contexts", "queued"


class Ends:
    """A ring by whose pool the next frame goes, and one without a pool."""

    def __init__(self, gpu):
        self.gpu, self.torch = gpu, gpu.torch
        self.writer, self.reader = gpu.pair({"gpu_pool_bytes": 4 * MEGABYTE}, leases=2)
        self.inline, self.copying = gpu.pair(INLINE, map_location="cpu")
        self.value = {
            "large": gpu.tensor(np.zeros(140_000)),  # the others lie together, and arrive together
            "small": gpu.tensor(np.arange(5)),
            "nested": [{"deep": gpu.tensor(np.arange(7.0))}],
            "strided": gpu.tensor(np.arange(12.0)).as_strided((3, 4), (1, 3)),
            "parameter": self.torch.nn.Parameter(gpu.tensor(np.arange(3.0)), requires_grad=True),
            "other": peers.Other(gpu.tensor(np.arange(9, dtype=np.int16))),
            "cupy": peers.of_cupy(gpu.tensor(np.arange(4.0))),
            "jax": peers.of_jax(gpu.tensor(np.arange(4.0))),
            "host": self.torch.from_numpy(np.arange(4)),
            "empty": gpu.tensor(np.empty(0)),
        }
        self.known = [*self.value.values(), self.torch.Tensor, self.torch.float64, ringcast.DeviceTensor, None, ()]

    def send(self):
        self.writer.send(self.value, WATCHDOG)

    def arrive(self):
        """In each way that there is."""
        self.send()
        self.reader.recv(WATCHDOG)
        self.send()
        with self.reader.view(WATCHDOG) as got:
            self.torch.from_dlpack(got["other"])
            kept = got["large"]
        del kept
        self.send()
        with self.reader.next(WATCHDOG) as frame:
            with self.gpu.on_side():
                self.torch.from_dlpack(frame["other"])
            ringcast.unpack(frame)
        self.send()
        self.reader.next(WATCHDOG)  # dropped
        self.inline.send(self.value, WATCHDOG)
        self.copying.recv(WATCHDOG)
        self.inline.send(ringcast.pack(self.value), WATCHDOG)
        self.copying.recv(WATCHDOG)

    def measure(self):
        self.gpu.settle()
        self.gpu.drain(self.reader)
        self.torch.cuda.synchronize()
        made, gone = peers.calls("cuEventCreate", "cuEventDestroy")
        live = (*map(peers.live, LIVE), made - gone)
        return live, len(os.listdir("/proc/self/fd")), looks.measure(), list(map(sys.getrefcount, self.known))


@pytest.mark.unwatched  # AddressSanitizer keeps what is freed for a while
@pytest.mark.parametrize("gpu", [{}], indirect=True)
def test_memory_references_and_descriptors_stay_as_they_are(gpu):
    ends, seen = Ends(gpu), []
    for _ in range(6):
        for _ in range(looks.ROUNDS):
            ends.arrive()
        seen.append(ends.measure())
    live, descriptors, memory, counts = zip(*seen)
    # What goes some rounds later is more at one look and less at the next; a leak grows by ROUNDS at each.
    for each in (*zip(*live[1:]), descriptors[1:]):
        assert sorted(now - then for then, now in zip(each, each[1:]))[1] < looks.ROUNDS // 2, (live, descriptors)
    looks.check(list(memory))
    # From look to look, as a leak grows: an allocator takes another piece now and then.
    grown = sorted(now[1] - then[1] for then, now in zip(memory[1:], memory[2:]))
    assert grown[len(grown) // 2] * len(grown) < MEGABYTE // 2, grown
    changed = [abs(last - first) for first, last in zip(counts[1], counts[-1])]
    assert max(changed) < looks.ROUNDS, changed
