# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a ring and of those who use it. Each is true of some moment; the names are those of
ringcast.h."""

from typing import NamedTuple, Tuple


class Stats(NamedTuple):
    """What one party has done since it began. The numbers only grow."""

    #: sent, or received
    frames: int
    #: of those frames
    bytes: int
    #: times that there was no room, or no frame, and the call waited
    waits: int
    #: times that a wait slept in the kernel
    sleeps: int
    #: system calls made to wake others
    wakes: int
    #: nanoseconds of all waits
    waited_ns: int
    #: of the waits: [i] took less than 2**i microseconds and not less than 2**(i-1); [15] all that took longer
    histogram: Tuple[int, ...]


class ReaderStatus(NamedTuple):
    """One reader as Writer.peers() or Tap.peers() saw it at one moment."""

    slot: int
    pid: int
    #: "joining", "active", "stopped" (by a signal or a debugger: slow, not dead), "dead", or "evicted" (it lives)
    state: str
    #: as given to Reader(..., name=...), or empty
    name: str
    #: bytes since the ring was made: up to here it has received
    position: int
    #: bytes sent that it has not received
    lag: int
    #: times that the writer waited for it
    stalls: int
    stats: Stats
    #: seconds that the writer has been waiting for it by now; 0: it has not, or a Tap looks
    held: float


class Info(NamedTuple):
    """The facts of a ring."""

    #: bytes of the ring
    capacity: int
    #: the largest frame's bytes, spill memory included
    max_frame: int
    #: bytes sent so far, headers and rounding included
    tail: int
    #: the most readers at once
    readers: int
    #: "hugetlb", "shmem-huge" or "pages": what was got
    memory: str
    #: bytes of a page of that memory
    page_size: int
    writer_pid: int
    #: nanoseconds that a wait of this handle spins at most before it sleeps
    spin_ns: int
    #: "local", "none", "interleaved" or "node": what the kernel took on
    numa: str
    #: the node's number, for "local" and "node"
    numa_node: int
    #: why it is "none" although more was asked for: a negative errno, or 0
    numa_error: int
    #: why there is no spill memory although none was asked to be left out: a negative errno, or 0
    spill_error: int
    #: bytes of the largest frame that stays in the ring
    ring_frame: int
    #: the most spill memory there can be; 0: there is none
    spill_bytes: int
    #: how much of it the ring has from the machine now
    spill_used: int


class TapLost(NamedTuple):
    """What was overwritten before a Tap had copied it."""

    #: bytes of the ring, headers and rounding included
    bytes: int
    gaps: int


class TapFrame(NamedTuple):
    """A frame as a Tap copied it."""

    #: where it starts, in bytes since the ring was made
    position: int
    #: KIND_BYTES or KIND_TENSORS
    kind: int
    data: bytes


class Recycling(NamedTuple):
    """How the memory of large received arrays is used again. limit, idle and lent are in bytes."""

    #: the most that is kept
    limit: int
    #: what is kept now
    idle: int
    #: what live arrays hold
    lent: int
    #: times that a block that was kept did
    reused: int
    #: times that the kernel was asked for one
    fresh: int


class GpuStatus(NamedTuple):
    """Whether this process can use a CUDA device."""

    ready: bool
    #: in words, why not; empty when ready
    why: str
    #: of the driver: 1000 * major + 10 * minor; 0: there is none
    version: int
    devices: int
    #: CUDA's number of what failed, or 0
    result: int


class GpuInfo(NamedTuple):
    """How tensors of a CUDA device go from a Writer, or come to a Reader. What is counted is so since the first one."""

    #: "pool": by the pool on the device. Of a Writer else "no_pool", "no_reader" (nobody is attached), "waiting" (a
    #: reader has not opened it yet), "refused" (one can't, or could not when it last tried) or "lost" (the device has
    #: failed); of a Reader "no_pool", "refused" or "lost": then they go through the ring
    way: str
    #: in words; empty where there is nothing to say
    why: str
    #: its number in this process
    device: int
    #: of the words that say when something is there: 64, or 32 where the driver has no others
    pool_bytes: int
    #: the most frames under way in the pool
    slots: int
    #: of the pool that is used now
    epoch: int
    #: whom `way` speaks of: its slot, and
    reader: int
    #: its process; 0: nobody in particular
    reader_pid: int
    #: frames whose tensors went by the pool, and
    pool_frames: int
    #: bytes of theirs
    pool_bytes_sent: int
    #: frames with such tensors that went through the ring
    inline_frames: int
    #: times that the pool had no room
    full: int
    #: handles of memory that were opened
    opens: int
    #: times that a call waited for the device
    syncs: int
    #: now, of the pool
    slots_used: int
    bytes_used: int
    #: whether the driver knows the ring's memory, so that copies to and from it need no wait
    registered: bool
