# SPDX-License-Identifier: Apache-2.0
"""Looks at what a process has of memory, from time to time, and whether that grows."""

import gc
import os
import sys

# Rounds between two looks. What leaks once a round shows as so many blocks; a look's own are three.
ROUNDS = 60
# What the whole may have grown by since a quarter of the frames.
BLOCKS, BYTES = 300, 6 << 20


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Python remembers which name it found in which class, 4096 times, and keeps the names. One that is
# made anew for each look-up, as pickle does, has its place there by its address: for hundreds of
# rounds each keeps a few more of them.
forget_names = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache


def measure():
    forget_names()
    gc.collect()
    return sys.getallocatedblocks(), resident()


def check(looks):
    """
    Raises AssertionError if memory has grown from look to look; at the first, all that is kept was
    being made.
    """
    steps = sorted(now[0] - then[0] for then, now in zip(looks[1:], looks[2:]))
    assert steps[len(steps) // 8] < ROUNDS // 2, (
        f"blocks that {ROUNDS} rounds leave behind: {steps}"
    )
    grown = [now - then for now, then in zip(looks[-1], looks[len(looks) // 4 + 1])]
    assert grown[0] < max(BLOCKS, ROUNDS * len(steps) // 4), f"blocks: {grown[0]} more"
    assert grown[1] < BYTES, f"memory: {grown[1]} bytes more"
    return grown
