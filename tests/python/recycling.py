# SPDX-License-Identifier: Apache-2.0
"""The memory of large received arrays that is used again: its counts, which the package keeps for
tests alone."""

from typing import NamedTuple

import ringcast

DEFAULT = 256 << 20


class Recycling(NamedTuple):
    limit: int  # the most bytes to keep
    idle: int  # bytes kept now
    lent: int  # bytes in use by live arrays
    reused: int  # blocks taken from the kept memory
    fresh: int  # blocks taken from the kernel


def recycling(limit: int = -1) -> Recycling:
    """limit: the new one."""
    return Recycling(*ringcast._ringcast._recycling(limit))
