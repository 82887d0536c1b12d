# SPDX-License-Identifier: Apache-2.0
"""The base of the adapters: a way from rank 0, which writes, to the rest of a group, which reads.

Each member of the group makes the way with a Member, calls initialize(), then write() or read() many times, then
cleanup(). Only the calls write(), read() and so on are measured.
"""

import importlib
import pickle
import time
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple


class LeftOut(Exception):
    """The way can't be used here; the text is the reason, and becomes the status of the way's rows."""


class Member(NamedTuple):
    """One process of a group."""

    rank: int  # rank 0 writes, the rest reads
    processes: int
    largest: int  # bytes of the largest message of the group
    folder: Path  # private to the group
    vllm: Optional[str] = None  # a folder with vLLM's source
    sglang: Optional[str] = None  # a folder with SGLang's source

    @property
    def readers(self) -> int:
        return self.processes - 1

    def publish(self, name: str, text: str) -> None:
        """Hand a text, for example an address or a handle, to the rest of the group under a name."""
        part = self.folder / f".{name}.{self.rank}"
        part.write_text(text)
        part.rename(self.folder / f"{name}.told")

    def wait_for(self, name: str, seconds: float = 60.0) -> str:
        """The text published under the name."""
        end = time.monotonic() + seconds
        path = self.folder / f"{name}.told"
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no other member has published {name!r} in {seconds:.0f} s")
            time.sleep(0.001)
        return path.read_text()

    def barrier(self, name: str, seconds: float = 60.0) -> None:
        """Wait until all members have come here; for initialize() and cleanup(), with a new name each time."""
        self.publish(f"{name}-{self.rank}", "")
        for rank in range(self.processes):
            self.wait_for(f"{name}-{rank}", seconds)


class Way:
    """The base of all ways. A subclass sets its differences, and has write(), read() and more as the peer allows."""

    name = ""  # of the way, as in the registry
    family = ""  # of the peer
    requires: Tuple[str, ...] = ()  # modules; where a module is missing, the way is left out, and the reason says so
    serialiser = "pickle5"  # of write_object(): "pickle5", "ringcast", "own" or "none"
    readings: Tuple[str, ...] = ("bytes", "objects")  # and "typed", "in-place"
    lossless = True  # every reader gets every message, also a slow reader
    collective = False  # write() waits until the readers have called read()
    copying = True  # read() returns a copy; False: read() returns the memory filled by write()
    keeps: Optional[int] = None  # bytes; a written message of this size or larger is read later than in write()
    again = False  # read_again() reads a message any number of times, after a single write
    processes: Optional[Tuple[int, ...]] = None  # sizes of groups; None: any
    scenarios: Optional[Tuple[str, ...]] = None  # None: any
    payloads: Optional[Tuple[str, ...]] = None  # starts of names of payloads; None: any
    seconds = 60.0  # until initialize() must have ended
    note = ""  # into each row of the way

    def __init__(self, me: Member) -> None:
        self.me = me

    @classmethod
    def version(cls) -> str:
        """Of the peer."""
        from importlib.metadata import version

        return version(cls.family)

    @classmethod
    def launcher(cls, processes: int) -> List[str]:
        """The words in front of the command of all members: mpiexec and options, for example; [] where each member
        is started alone. Under a launcher a member takes the rank from OMPI_COMM_WORLD_RANK or PMI_RANK."""
        return []

    @classmethod
    def check(cls) -> None:
        """Raise LeftOut if the way can't be used here; called in a process with no further work."""

    def initialize(self) -> None:
        """Connect all members; afterwards no message may be lost for want of a reader."""

    def cleanup(self) -> None:
        """Leave; called by all members once the last message is read."""

    # ---- Bytes: made beforehand, a write is the transport alone ----------------------------------------------

    def write(self, data: Any) -> None:
        """Send bytes to all readers. The caller may change the data afterwards, unless the way `keeps` them."""
        raise NotImplementedError

    def read(self) -> Any:
        """The next message, bytes-like, valid until the next read()."""
        raise NotImplementedError

    # ---- Objects: the peer's usual way -------------------------------------------------------------------------------

    def write_object(self, value: Any) -> None:
        self.write(pickle.dumps(value, 5))

    def read_object(self) -> Any:
        return pickle.loads(self.read())

    # ---- Only where `readings` has "typed": without a pickle ---------------------------------------------------------

    def write_typed(self, value: Any) -> None:
        raise NotImplementedError

    def read_typed(self) -> Any:
        raise NotImplementedError

    # ---- Only where `readings` has "in-place" ------------------------------------------------------------------------

    def reserve(self, size: int) -> Any:
        """Memory of the transport, a writable buffer, into which the next message is written."""
        raise NotImplementedError

    def commit(self) -> None:
        """Send the reserved memory. The caller has dropped all views of the memory."""
        raise NotImplementedError

    def read_in_place(self) -> Any:
        """The next message in the transport's memory, a buffer, valid until release()."""
        raise NotImplementedError

    def release(self) -> None:
        """The caller has dropped all views of the message."""

    # ---- Only where `again` ------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Called once by a reader, after the write and before the first read_again()."""

    def read_again(self) -> Any:
        """The object of the newest message of write_object() or write_typed(), read and decoded anew each time."""
        raise NotImplementedError


def needs(module: str) -> Any:
    """The module; LeftOut if the import fails."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # some modules raise further errors when a library is missing
        reason = " ".join(str(error).split())
        raise LeftOut(f"needs {module}, which can't be imported: {reason}") from None
