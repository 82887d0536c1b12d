# SPDX-License-Identifier: Apache-2.0
"""tests/compat/known.py as a module. Its folder must not be on the path: its vllm.py is not vLLM."""

import importlib.util
import pathlib

_spec = importlib.util.spec_from_file_location("known", pathlib.Path(__file__).parents[1] / "compat" / "known.py")
known = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(known)
