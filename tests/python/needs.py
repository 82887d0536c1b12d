# SPDX-License-Identifier: Apache-2.0
"""
torch is optional to ringcast; to its own CI it is not. So is msgspec, to both. The tests alone need
YAML.
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


torch, msgspec, yaml = (
    _optional("torch", True),
    _optional("msgspec", False),
    _optional("yaml", True),
)
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed here")
needs_msgspec = pytest.mark.skipif(msgspec is None, reason="msgspec is not installed here")
needs_yaml = pytest.mark.skipif(yaml is None, reason="PyYAML is not installed here")
