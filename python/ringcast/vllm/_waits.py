# SPDX-License-Identifier: Apache-2.0
"""The wait of a MessageQueue's call, with warnings by the engine's own logger."""

import logging
import math
import os
import sys
import time
from typing import Any, Callable, Optional

_VLLM_MODULE = "vllm.distributed.device_communicators.shm_broadcast"
_INTERVAL = "VLLM_RINGBUFFER_WARNING_INTERVAL"
_DEFAULT_INTERVAL = 60.0


def engine_logger() -> Any:
    """A logger of the loaded engine: vLLM's has a prefix and a level; SGLang's are Python's own."""
    make = getattr(sys.modules.get("vllm.logger"), "init_logger", None)
    if make is not None:
        return make("vllm.ringcast")
    return logging.getLogger("sglang.ringcast" if "sglang" in sys.modules else "ringcast.vllm")


def warning_interval() -> float:
    """Seconds between two warnings: vLLM's setting if vLLM is loaded, else the environment's."""
    value = getattr(sys.modules.get(_VLLM_MODULE), _INTERVAL, None)
    if value is None:
        value = os.environ.get(_INTERVAL) or _DEFAULT_INTERVAL
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"{_INTERVAL} is {value!r}: it must be a number of seconds above 0, such as 60")
    return seconds


class Wait:
    """The wait of one call. timeout: seconds, None for ever. spent: seconds that have passed. warns: whether to
    warn."""

    def __init__(self, timeout: Optional[float], spent: float = 0.0, warns: bool = True) -> None:
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, or None, not nan")
        self._began = time.monotonic() - spent
        self._deadline = math.inf if timeout is None else self._began + timeout
        self._interval = warning_interval() if warns else math.inf
        self._warned = self._began

    def over(self) -> bool:
        return time.monotonic() >= self._deadline

    def left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def slice(self, most: float = math.inf) -> Optional[float]:
        """Seconds until the first of the next warning, the end, and `most`. None: no limit."""
        now = time.monotonic()
        seconds = min(self._deadline - now, self._warned + self._interval - now, most)
        return None if seconds == math.inf else max(0.0, seconds)

    def warn(self, describe: Callable[[], str]) -> None:
        """Warn, if the interval has passed."""
        now = time.monotonic()
        if now - self._warned >= self._interval:
            self._warned = now
            # Operators search for the first words, which are vLLM's.
            engine_logger().warning(
                "No available shared memory broadcast block found in %d seconds: %s", now - self._began, describe()
            )

    def end(self) -> None:
        """The call goes on: say so after a warning."""
        if self._warned != self._began:
            engine_logger().warning(
                "The shared memory broadcast goes on after %d seconds", time.monotonic() - self._began
            )
