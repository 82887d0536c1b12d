# SPDX-License-Identifier: Apache-2.0
"""Where a program's time goes: communication by operation and size, waiting, regions, memory. See
docs/profile.md.

    from ringcast.profile import profile

    with profile("results", warmup=3) as p:
        for batch in batches:
            with p.region("layers.0.attn"):
                ...
            p.step()

Or RINGCAST_PROFILE=results in the environment, for a whole process. `python -m ringcast.profile
--help`: compare, report, merge. While no profile is running, nothing is replaced and nothing is
recorded.
"""

from ringcast.profile.results import NoProfile
from ringcast.profile.session import Profile, current

__all__ = ["NoProfile", "Profile", "current", "profile"]

profile = Profile
