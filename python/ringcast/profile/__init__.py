# SPDX-License-Identifier: Apache-2.0
"""Where a program's time goes: communication by operation and size, waiting, regions, memory. See docs/profile.md.

    from ringcast.profile import profile

    with profile("results", warmup=3) as p:
        for batch in batches:
            with p.region("layers.0.attn"):
                ...
            p.step()

Or RINGCAST_PROFILE=results in the environment, for a whole process. `python -m ringcast.profile --help`: compare,
report, merge. While no profile is running, nothing is replaced and nothing is recorded.
"""

import sys
import types
from typing import Any

from ringcast.profile.results import NoProfile
from ringcast.profile.session import Profile, current

__all__ = ["NoProfile", "Profile", "current", "profile"]


profile = Profile


class _Callable(types.ModuleType):
    """Makes `ringcast.profile(...)` the same as ringcast.profile.profile(...)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Profile:
        return Profile(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
