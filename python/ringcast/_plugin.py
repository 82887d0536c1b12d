# SPDX-License-Identifier: Apache-2.0
"""The entry points that vLLM and SGLang call in each process. Without the variable the call does
nothing."""

import warnings
from typing import Callable

from ringcast._options import switch


def vllm() -> None:
    """Of the entry point vllm.general_plugins: install(), if RINGCAST_VLLM is 1 or strict."""
    if _is_asked("RINGCAST_VLLM", "vLLM"):
        from ringcast.vllm import install

        _install("vLLM", install)


def sglang() -> None:
    """Of the entry point sglang.srt.plugins: install(), if RINGCAST_SGLANG is 1 or strict."""
    if _is_asked("RINGCAST_SGLANG", "SGLang"):
        from ringcast.sglang import install

        _install("SGLang", install)


def _is_asked(variable: str, whose: str) -> bool:
    try:
        return switch(variable)[0] != "0"
    except ValueError as error:
        warnings.warn(f"{error}; {whose}'s own functions stay", RuntimeWarning, stacklevel=3)
        return False


def _install(whose: str, install: Callable[[], bool]) -> None:
    try:
        install()
    except Exception as error:  # else the process would end
        text = f"ringcast is not put in place, {whose} goes on as it was: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
