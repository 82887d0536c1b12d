# SPDX-License-Identifier: Apache-2.0
"""RINGCAST_PROFILE=dir: a profile of the whole process, written at its end. Imported only if the variable is set.
RINGCAST_PROFILE=dir,step=module:Class.function: a step ends after each call of this function. first=pid is the first
process; a process that finds none is the first, and adds itself for its children.

A rank of a group writes into dir/rank<r>. The first process without a rank writes into dir itself, its children into
dir/process<pid>; a child that recorded nothing writes nothing. A problem is a warning: the program goes on.
"""

import atexit
import os
import sys
import warnings
from typing import Dict, Optional

from ringcast.profile import profile
from ringcast.profile.session import Profile, in_group

VARIABLE = "RINGCAST_PROFILE"
_profile: Optional[Profile] = None
_folder = ""
_options: Dict[str, str] = {}


def start() -> None:
    global _folder, _options
    folder, *options = os.environ[VARIABLE].split(",")
    _options = dict(each.partition("=")[::2] for each in options)
    unknown = [name for name, value in _options.items() if name not in ("step", "first") or not value]
    if unknown or not folder:
        text = (
            f"{VARIABLE}={os.environ[VARIABLE]}: there is no profile: {unknown[0] if unknown else 'the folder'!r} is "
        )
        warnings.warn(text + "unknown or empty; it takes DIR,step=MODULE:FUNCTION", RuntimeWarning, stacklevel=2)
        return
    _folder = os.path.abspath(folder)
    if "first" not in _options:
        os.environ[VARIABLE] = ",".join([folder, *options, f"first={os.getpid()}"])
    _begin(_options.get("first", str(os.getpid())) == str(os.getpid()))
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
        made = profile(_folder, rank=rank, step_at=_options.get("step"))
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
