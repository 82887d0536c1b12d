# SPDX-License-Identifier: Apache-2.0
"""The base of the adapters: a way from rank 0, which writes, to the rest of a group, which reads.

Each member of the group makes the way with a Member, calls initialize(), then write() or read()
many times, then cleanup(). Only the calls write(), read() and so on are measured. No way may lose a
message.
"""

import pickle
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple


class LeftOut(Exception):
    """
    The way can't be used here; the text is the reason, and becomes the status of the way's rows.
    """


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
        """
        Hand a text, for example an address or a handle, to the rest of the group under a name.
        """
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
        """
        Wait until all members have come here, in initialize() or cleanup(); a new name each time.
        """
        self.publish(f"{name}-{self.rank}", "")
        for rank in range(self.processes):
            self.wait_for(f"{name}-{rank}", seconds)


class Way:
    """
    The base of all ways. A subclass sets its differences, and has write(), read() and more as the
    peer allows.
    """

    family = ""  # of the peer
    packages: Tuple[
        str, ...
    ] = ()  # of which the first one installed tells the version; usual: the family
    requires: Tuple[str, ...] = ()  # modules; where one is missing, the way is left out
    serialiser = "pickle5"  # of write_object(): "pickle5", "ringcast", or "own"
    readings: Tuple[str, ...] = ("bytes", "objects")  # and "in-place"
    collective = False  # write() waits until the readers have called read()
    copying = True  # read() returns a copy; False: the memory filled by write()
    keeps: Optional[int] = (
        None  # bytes; a message of this size or larger is read later than in write()
    )
    payloads: Optional[Tuple[str, ...]] = None  # starts of names of payloads; None: any
    seconds = 60.0  # until initialize() must have ended
    note = ""  # into each row of the way

    def __init__(self, me: Member) -> None:
        self.me = me

    @classmethod
    def version(cls) -> str:
        """Of the peer."""
        for package in cls.packages or (cls.family,):
            try:
                return version(package)
            except PackageNotFoundError:
                continue
        return "unknown"

    @classmethod
    def launcher(cls, processes: int) -> List[str]:
        """The words in front of the command of all members, as of mpiexec; [] where each is started
        alone."""
        return []

    @classmethod
    def check(cls) -> None:
        """Raise LeftOut if the way can't be used here."""

    def initialize(self) -> None:
        """Connect all members; afterwards no message may be lost for want of a reader."""

    def cleanup(self) -> None:
        """Leave; called by all members once the last message is read."""

    # ---- Bytes: made beforehand, a write is the transport alone ----------------------------------

    def write(self, data: Any) -> None:
        """
        Send bytes to all readers. The caller may change the data afterwards, unless the way `keeps`
        them.
        """
        raise NotImplementedError

    def read(self) -> Any:
        """The next message, bytes-like, valid until the next read()."""
        raise NotImplementedError

    # ---- Objects: the peer's usual way -----------------------------------------------------------

    def write_object(self, value: Any) -> None:
        self.write(pickle.dumps(value, 5))

    def read_object(self) -> Any:
        return pickle.loads(self.read())

    # ---- Only where `readings` has "in-place" ----------------------------------------------------

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
