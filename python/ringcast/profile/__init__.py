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
    step_at: Optional[str] = None,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Profile:
    """A profile for `with`, or for calls of start() and stop(). The end of the profile writes the results.

    dir: the folder for the results; the profile makes the folder. None: no files; stop() returns the results.
    warmup: the number of steps at the beginning that are left out. Without a call of step() the whole is one step.
    intercept: time the functions of torch.distributed, vLLM and SGLang, too. False: nothing is replaced; ringcast's
    operations, regions and your own operations are recorded.
    sample: the share of the steps that are recorded; all ranks record the same steps.
    rows: the most lines of detailed_timings.csv. With more records, every second, fourth, eighth ... record is kept.
    rank, world: of the process and the group, where neither torch.distributed nor the environment (RANK) has them.
    pictures: of a group only rank 0 makes them.
    merge_timeout: the seconds that rank 0 waits at the end for the other ranks' results; 0: rank 0 merges nothing.
    step_at: "module:function" or "module:Class.function": after each call of this function a step ends.
    clock: returns nanoseconds; ringcast's own operations are in the time of time.monotonic_ns.
    """
    return Profile(
        dir, warmup, intercept, sample, rows=rows, rank=rank, world=world, pictures=pictures,
        merge_timeout=merge_timeout, clock=clock, step_at=step_at,
    )  # fmt: skip


class _Callable(types.ModuleType):
    """Makes `ringcast.profile(...)` the same as ringcast.profile.profile(...)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Profile:
        return profile(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
