# SPDX-License-Identifier: Apache-2.0
"""The names of the drop-ins' rings, by which `ringcast list` shows them: `vllm.tp.0` is the ring of
vLLM's group "tp" into which rank 0, a global rank, writes. docs/dropins.md has the table."""

import contextlib
import re
import sys
from typing import Any, Tuple

_RELAY = ".relay"
# What the library takes, with room for _RELAY.
_MOST = 47 - len(_RELAY)
# Where engines keep their GroupCoordinators: by unique name, such as "tp:0", a weak reference.
_COORDINATORS = {
    "vllm.distributed.parallel_state": "vllm",
    "sglang.srt.distributed.parallel_state": "sglang",
    "sglang.multimodal_gen.runtime.distributed.group_coordinator": "sglang",
}


def join(engine: str, group: Any, *rest: Any) -> str:
    """
    A valid name of any parts. If the name is too long, the group's part is cut, so that ranks stay
    apart.
    """
    tail = "".join(f".{_valid(part)}" for part in rest)[: _MOST - len(engine) - 2]
    return f"{engine}.{_valid(group)[: _MOST - len(engine) - 1 - len(tail)]}{tail}"


def relay_of(name: str) -> str:
    """The name of a relay's ring, which has the frames of the ring `name`. A peer sends `name`."""
    return _valid(name) + _RELAY


def _valid(part: Any) -> str:
    text = ""
    with contextlib.suppress(Exception):
        text = str(part)[:_MOST]
    return re.sub(r"[^A-Za-z0-9._:+-]", "-", text) or "-"


def family(group: Any, engine: str) -> Tuple[str, str]:
    """
    The first two arguments of join() for a ring of `group`. engine: whose function makes the ring;
    the engine with a GroupCoordinator of `group` takes precedence.
    """
    for module, owner in _COORDINATORS.items():
        with contextlib.suppress(Exception):  # an engine of another version
            for unique, reference in list(sys.modules[module]._groups.items()):
                if any(value is group for value in getattr(reference(), "__dict__", {}).values()):
                    return owner, re.sub(":0$", "", unique)
    return engine, _name_of(group)


def _name_of(group: Any) -> str:
    with contextlib.suppress(Exception):
        world = sys.modules["torch.distributed"].group.WORLD
        return "default" if group is world else str(group.group_name)
    return "group"
