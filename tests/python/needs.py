# SPDX-License-Identifier: Apache-2.0
"""torch is optional to ringcast; to its own CI it is not. So is msgspec, to both. The tests alone need YAML."""

import os

import pytest

try:
    import torch
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed here")

try:
    import msgspec
except ImportError:
    msgspec = None

needs_msgspec = pytest.mark.skipif(msgspec is None, reason="msgspec is not installed here")

try:
    import yaml
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    yaml = None

needs_yaml = pytest.mark.skipif(yaml is None, reason="PyYAML is not installed here")
