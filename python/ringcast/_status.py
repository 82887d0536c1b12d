# SPDX-License-Identifier: Apache-2.0
"""What a writer knows of its readers."""

from typing import NamedTuple


class ReaderStatus(NamedTuple):
    """One reader as Writer.readers() saw it at one moment."""

    slot: int
    pid: int
    #: "joining", "active" or "dead"
    state: str
    #: as given to Reader(..., name=...), or empty
    name: str
    #: bytes since the ring was made: up to here it has received
    position: int
    #: bytes sent that it has not received
    lag: int
