# SPDX-License-Identifier: Apache-2.0
"""
torch is optional to ringcast; to its own CI it is not. So is msgspec, to both.
"""

import importlib
import os

import pytest


def _optional(name, of_ci):
    """The module, or None. ImportError: CI must have it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if of_ci and os.environ.get("CI") == "true":
            raise
        return None


torch, msgspec = (
    _optional("torch", True),
    _optional("msgspec", False),
)
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed here")
needs_msgspec = pytest.mark.skipif(msgspec is None, reason="msgspec is not installed here")
