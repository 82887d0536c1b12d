# SPDX-License-Identifier: Apache-2.0
"""Puts ringcast in place in the processes that vLLM's tests spawn, as its plugin does in those that
vLLM spawns; the tests themselves start no plugins."""

import os
import sys

if os.environ.get("COMPAT_WITH") == "ringcast" and "--multiprocessing-fork" in sys.orig_argv:
    from ringcast.vllm import install

    install()
