# SPDX-License-Identifier: Apache-2.0
"""
The state of a ring and of its parties, each at some moment. The names are those of ringcast.h.
"""

from typing import NamedTuple, Tuple


class Stats(NamedTuple):
    """The counts of a party since its start. The numbers only grow."""

    frames: int  #: sent, or received
    bytes: int  #: of the frames
    waits: int  #: calls that waited for room, or for a frame
    sleeps: int  #: of these waits in the kernel
    wakes: int  #: system calls to wake another party
    waited_ns: int  #: nanoseconds of all waits
    #: of the waits: [i] took less than 2**i microseconds and not less than 2**(i-1); [15] all
    #: longer waits
    histogram: Tuple[int, ...]
    estimate_hits: int  #: frames for which reserve() without a size was enough
    grown: int  #: frames for which the Span of reserve() without a size had to grow
    wasted_bytes: int  #: reserved without a size, and given back by commit()


class ReaderStatus(NamedTuple):
    """One reader as Writer.peers() or Tap.peers() saw it at one moment."""

    slot: int
    pid: int
    #: "joining", "active", "stopped" (by a signal or a debugger: slow, not dead), "dead", "evicted"
    #: (and alive), or "unknown" (nothing tells whether the reader lives)
    state: str
    name: str  #: as given to Reader(..., name=...), or empty
    position: int  #: how far the reader has received, in bytes since the ring was made
    lag: int  #: bytes sent and not yet received
    stalls: int  #: times that the writer waited for the reader
    stats: Stats
    held: float  #: seconds that the writer has been waiting for the reader; 0: not waiting
    lag_frames: int  #: frames sent and not yet received; a batch of send_many() counts as one


class Info(NamedTuple):
    """The facts of a ring."""

    capacity: int  #: bytes of the ring
    max_frame: int  #: the largest frame's bytes, spill memory included
    tail: int  #: bytes sent so far, headers and rounding included
    readers: int  #: the most readers at once
    memory: str  #: the kind in use: "hugetlb", "shmem-huge" or "pages"
    page_size: int  #: bytes of a page
    writer_pid: int
    spin_ns: int  #: the most nanoseconds that a wait of this handle spins before a sleep
    numa: str  #: the policy in force: "local", "none", "interleaved" or "node"
    numa_node: int  #: the node's number, for "local" and "node"
    numa_error: int  #: why `numa` is "none" against the request: a negative errno, or 0
    spill_error: int  #: why there is no spill memory against the request: a negative errno, or 0
    ring_frame: int  #: bytes of the largest frame that stays in the ring
    spill_bytes: int  #: the limit of spill memory; 0: none
    spill_used: int  #: spill memory taken from the machine now
    name: str  #: of the ring, as given to Writer(name=...), or empty


class Ring(NamedTuple):
    """A ring of this user, as rings() found it."""

    name: str  #: as given to Writer(name=...), or empty
    pid: int  #: of the writer
    handle: str  #: for Reader() and Tap(); empty: an incompatible release of ringcast made the ring


class TapLost(NamedTuple):
    """Frames that were overwritten before a Tap had copied them."""

    bytes: int  #: of the ring, headers and rounding included
    gaps: int


class TapFrame(NamedTuple):
    """A frame as a Tap copied it."""

    position: int  #: where the frame starts, in bytes since the ring was made
    kind: int  #: KIND_BYTES or KIND_TENSORS
    data: bytes


class GpuStatus(NamedTuple):
    """Whether this process can use a CUDA device."""

    ready: bool
    why: str  #: why not, in words; empty when ready
    version: int  #: of the driver: 1000 * major + 10 * minor; 0: no driver
    devices: int
    result: int  #: CUDA's number of the failure, or 0


class GpuInfo(NamedTuple):
    """How tensors of a CUDA device go from a Writer, or come to a Reader. The counts begin with the
    first tensor."""

    #: "pool": by the pool on the device. Else through the ring: for a Writer "no_pool", "no_reader"
    #: (no reader is attached), "waiting" (a reader has not opened the pool yet), "refused" (a
    #: reader's last try to open the pool has failed) or "lost" (the device has failed); for a
    #: Reader "no_pool", "refused" or "lost"
    way: str
    why: str  #: in words, or empty
    device: int  #: the device's number in this process
    pool_bytes: int
    slots: int  #: the most frames under way in the pool
    epoch: int  #: of the present pool
    reader: int  #: the slot of the reader that `way` is about
    reader_pid: int  #: the process of this reader; 0: `way` is about no reader
    pool_frames: int  #: frames with tensors that went by the pool
    pool_bytes_sent: int  #: bytes of these tensors
    inline_frames: int  #: frames with device tensors that went through the ring
    full: int  #: times that the pool had no room
    opens: int  #: pools opened
    syncs: int  #: calls that waited for the device
    slots_used: int  #: of the pool, now
    bytes_used: int
    # : whether the driver knows the ring's memory: copies to and from the ring then need no wait
    registered: bool
