# SPDX-License-Identifier: Apache-2.0
"""RINGCAST_PROFILE=dir: a profile of the whole process, written at its end. Imported only if the variable is set.
RINGCAST_PROFILE_STEP=module:Class.function: a step ends after each call of this function.

A rank of a group writes into dir/rank<r>. The first process without a rank writes into dir itself, its children into
dir/process<pid>; a child that recorded nothing writes nothing. A problem is a warning: the program goes on.
"""

import atexit
import os
import sys
import warnings
from typing import Optional

from ringcast.profile import profile
from ringcast.profile.session import Profile, in_group

# The pid of the first process, in the environment of all children.
FIRST = "RINGCAST_PROFILE_FIRST"

_profile: Optional[Profile] = None
_folder = ""


def start() -> None:
    global _folder
    _folder = os.path.abspath(os.environ["RINGCAST_PROFILE"])
    is_first = os.environ.setdefault(FIRST, str(os.getpid())) == str(os.getpid())
    _begin(is_first)
    atexit.register(stop)
    os.register_at_fork(after_in_child=lambda: _begin(False, -1 if in_group() else None))
    from multiprocessing import util

    # multiprocessing ends children without atexit, and drops the parent's finalizers in children.
    util.register_after_fork(sys.modules[__name__], lambda _: util.Finalize(None, stop, exitpriority=10))


def _begin(is_first: bool, rank: Optional[int] = None) -> None:
    """rank: -1 in a child that has inherited its parent's group, and is no rank of the group."""
    global _profile
    _profile = None
    try:
        made = profile(_folder, rank=rank, step_at=os.environ.get("RINGCAST_PROFILE_STEP") or None)
        made.set_apart(None if is_first else f"process{os.getpid()}")
        _profile = made.start()
    except Exception as error:
        warnings.warn(f"RINGCAST_PROFILE={_folder}: there is no profile: {error}", RuntimeWarning, stacklevel=2)


def stop() -> None:
    global _profile
    ended, _profile = _profile, None
    if ended is None or not ended.is_running():
        return
    try:
        ended.stop()
    except Exception as error:
        warnings.warn(f"RINGCAST_PROFILE={_folder}: the profile is not written: {error}", RuntimeWarning, stacklevel=2)


start()
