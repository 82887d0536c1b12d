# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a group share a machine, found by trying to attach: machines may have the same name, and containers of
one machine may be kept apart."""

from typing import Dict, List, Optional, Sequence

import ringcast
from ringcast._group.config import name_of
from ringcast._group.ranks import Ranks
from ringcast.vllm import containers

# The bytes of a probe, which carries no frame.
_PROBE_BYTES = 4096


def who_attaches(ranks: Ranks, writers: Sequence[int], readers: Sequence[int]) -> Dict[int, List[int]]:
    """Collective: for each of `writers`, the `readers` that can attach to the writer's ring. All are ranks in the
    group; a writer can attach to its own ring."""
    mine = ranks.rank
    probe, offers = ranks.all_or_none(
        lambda: _make_probe(len(readers)) if mine in writers else None,
        lambda made: made and (made.handle, containers.here()),
    )
    try:
        _, reached = ranks.all_or_none(
            lambda: [
                one for one in writers if mine in readers and attaches(offers[one][0], offers[one][1], name_of(mine))
            ],
            lambda found: found,
        )
    finally:
        if probe is not None:
            probe.close()
    return {writer: [reader for reader in readers if writer in reached[reader]] for writer in writers}


def _make_probe(readers: int) -> ringcast.Writer:
    return ringcast.Writer(_PROBE_BYTES, max(1, readers), memory="pages", numa="none", spill_bytes=0)


def attaches(handle: str, place: Optional[containers.Place] = None, name: str = "this process") -> bool:
    """Whether this process can attach to the ring. Any other failure, such as too many open files, raises. place: the
    writer's. name: this process's, in the warning if the writer is on this machine."""
    mine = containers.here()
    why = containers.why_apart(place, mine)
    try:
        if not why:  # else the pid is another process's here
            ringcast.Reader(handle).close()
            return True
    except (ringcast.RingNotFound, ringcast.AccessDenied, ringcast.ProtocolError) as error:
        why = containers.why_apart(place, mine, error)
    if why:
        containers.warn(name, why)
    return False
