# SPDX-License-Identifier: Apache-2.0
"""vLLM's MessageQueue, and the functions of vLLM's GroupCoordinator, over rings. docs/vllm.md."""

import importlib
from typing import TYPE_CHECKING, Any, List

import ringcast
from ringcast.vllm.queue import Handle, MessageQueue

if TYPE_CHECKING:
    from ringcast.vllm.group import Group, GroupOperations
    from ringcast.vllm._install import install, uninstall

__all__ = ["Group", "GroupOperations", "Handle", "MessageQueue", "install", "uninstall"]

# Where pickles are turned off, frames may name vLLM's own classes.
ringcast.allow("vllm")

# A MessageQueue needs no torch, and a process that starts vLLM imports vLLM's plugins.
_LATER = {
    "Group": "group",
    "GroupOperations": "group",
    "install": "_install",
    "uninstall": "_install",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> List[str]:
    return sorted([*globals(), *_LATER])
