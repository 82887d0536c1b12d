# SPDX-License-Identifier: Apache-2.0
"""The payloads. Each message carries its number, by which the reader finds what was lost, repeated or mixed up."""

from typing import Any


class Payload:
    """A few variants of a value; value(k) is variant k % VARIANTS. The subclasses say how it bears its number."""

    name = ""
    bytes = 0  # of one message

    def make(self, k: int) -> Any:
        """The value of variant k."""
        raise NotImplementedError

    def stamp(self, value: Any, number: int) -> None:
        """Write the number of the message into the value."""
        raise NotImplementedError

    def number(self, received: Any) -> int:
        """The number of a received value."""
        raise NotImplementedError

    def same(self, value: Any, received: Any) -> bool:
        """Whether the received value is what was sent, number included."""
        raise NotImplementedError
