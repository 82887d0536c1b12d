# SPDX-License-Identifier: Apache-2.0
"""The waits of a MessageQueue: how long they are, when they warn, and who it is that they wait for."""

import logging
import math
import os
import sys
import time
from typing import Callable, List, Optional

import ringcast

_logger = logging.getLogger("ringcast.vllm")

_PEER = "vllm.distributed.device_communicators.shm_broadcast"
_INTERVAL = "VLLM_RINGBUFFER_WARNING_INTERVAL"
_DEFAULT_INTERVAL = 60.0
# How many readers a warning names.
_MOST_NAMED = 8


def warning_interval() -> float:
    """Seconds between two warnings: vLLM's own where it is loaded, which its users may have changed; else the
    environment's."""
    value = getattr(sys.modules.get(_PEER), _INTERVAL, None)
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
    """The wait of one call. timeout: seconds, None for ever. spent: how many have passed. warns: whether it does."""

    def __init__(self, timeout: Optional[float], spent: float = 0.0, warns: bool = True) -> None:
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, or None, not nan")
        self._began = time.monotonic() - spent
        self._deadline = math.inf if timeout is None else self._began + timeout
        self._interval = warning_interval() if warns else math.inf
        self._warned = self._began

    def over(self) -> bool:
        return time.monotonic() >= self._deadline

    def slice(self, most: float = math.inf) -> Optional[float]:
        """Seconds until there is something to do: a warning, the end, or `most` are over. None: never."""
        now = time.monotonic()
        seconds = min(self._deadline - now, self._warned + self._interval - now, most)
        return None if seconds == math.inf else max(0.0, seconds)

    def warn(self, who: Callable[[], str]) -> None:
        """Warn, if it is time to."""
        now = time.monotonic()
        if now - self._warned >= self._interval:
            self._warned = now
            # Operators look for the first words: they are what vLLM says.
            _logger.warning(
                "No available shared memory broadcast block found in %d seconds: %s", now - self._began, who()
            )


def describe_readers(writer: ringcast.Writer) -> str:
    """Who holds the writer back: each reader that is behind, the last one first."""
    sent = writer.stats().frames
    behind = sorted((peer for peer in writer.peers() if peer.lag), key=lambda peer: -peer.lag)
    if not behind:
        return "every reader has received all by now"
    texts = [_describe(peer, sent) for peer in behind[:_MOST_NAMED]]
    if len(behind) > _MOST_NAMED:
        texts.append(f"and {len(behind) - _MOST_NAMED} more readers")
    return "; ".join(texts)


def _describe(peer: ringcast.ReaderStatus, sent: int) -> str:
    # All have been there from the first message on, so that the numbers can be compared.
    messages = max(0, sent - peer.stats.frames)
    state = {"active": "alive", "stopped": "stopped by a signal or a debugger", "joining": "attaching"}
    return (
        f"{peer.name} (pid {peer.pid}) is {state.get(peer.state, peer.state)}, {peer.lag} bytes ({messages} messages) "
        f"behind, and has held the writer back for {peer.held:.3g} s"
    )


def name_dead(peer: ringcast.ReaderStatus) -> str:
    how = "has died" if peer.state == "dead" else "lives, but has written into the ring what it must not"
    return f"{peer.name} (pid {peer.pid}), a reader of the message queue of pid {os.getpid()}, {how}: make a new queue"


def describe_missing(writer: ringcast.Writer, names: List[str]) -> str:
    came = {peer.name for peer in writer.peers() if peer.state in ("active", "stopped")}
    missing = [name for name in names if name not in came]
    if not missing:
        return f"all {len(names)} readers of this machine are attached"
    return f"{len(names) - len(missing)} of {len(names)} readers are attached; missing: {', '.join(missing)}"


def describe_writer(reader: ringcast.Reader, who: str) -> str:
    """Whom a reader waits for. who: what the ring's writer is."""
    pid = reader.writer_pid
    return f"{who} (pid {pid}) is {_state(pid)}, and all that it has sent was received"


def _state(pid: int) -> str:
    """That of a process of this machine; one whose state can't be seen is taken to live, or the wait would end."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            letter = stat.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "alive"
    return "stopped by a signal or a debugger" if letter in "Tt" else "alive"
