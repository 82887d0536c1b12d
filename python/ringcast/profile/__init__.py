# SPDX-License-Identifier: Apache-2.0
"""Where a program's time goes: communication by operation and size, waiting, regions, memory. See docs/profile.md.

    from ringcast.profile import profile

    with profile("results", warmup=3) as p:
        for batch in batches:
            with p.region("layers.0.attn"):
                ...
            p.step()

Or RINGCAST_PROFILE=results in the environment, for a whole process. `python -m ringcast.profile --help`: compare,
report, merge, overhead. While no profile is running, nothing is replaced and nothing is recorded.
"""

import sys
import time
import types
from typing import Any, Callable, Optional

from ringcast.profile.results import NoProfile
from ringcast.profile.session import Profile, current

__all__ = ["NoProfile", "Profile", "current", "profile"]


def profile(
    dir: Optional[str] = "ringcast-profile",
    warmup: int = 3,
    intercept: bool = True,
    sample: float = 1.0,
    *,
    rows: int = 100_000,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    pictures: bool = True,
    merge_timeout: float = 30.0,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Profile:
    """A profile for `with`, or for its start() and stop(). It writes its results when it ends.

    dir: the folder for the results, which is made. None: none are written; stop() returns them.
    warmup: so many steps at the beginning are left out. If step() is never called, the whole is one step.
    intercept: also the functions of torch.distributed, vLLM and SGLang are timed. False: nothing is replaced;
    ringcast's operations, regions and your own operations are there.
    sample: the share of the steps that are recorded; all ranks record the same ones.
    rows: the most lines of detailed_timings.csv; from so many records on every second, fourth, ... one is kept.
    rank, world: of this process and of its group, if torch.distributed and the environment (RANK) do not tell.
    pictures: of a group only rank 0 makes them.
    merge_timeout: so many seconds rank 0 waits at the end for the other ranks' results; 0: none are merged.
    clock: nanoseconds, as time.monotonic_ns, whose time ringcast's own operations are in.
    """
    return Profile(
        dir, warmup, intercept, sample, rows=rows, rank=rank, world=world, pictures=pictures,
        merge_timeout=merge_timeout, clock=clock,
    )  # fmt: skip


class _Callable(types.ModuleType):
    """So that `ringcast.profile(...)` is ringcast.profile.profile(...)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Profile:
        return profile(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
