# SPDX-License-Identifier: Apache-2.0
"""torch and msgspec are optional to ringcast; to its own CI they are not."""

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
    if os.environ.get("CI") == "true":
        raise
    msgspec = None

needs_msgspec = pytest.mark.skipif(msgspec is None, reason="msgspec is not installed here")
