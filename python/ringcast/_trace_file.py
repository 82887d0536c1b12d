# SPDX-License-Identifier: Apache-2.0
"""The file of a trace, written by several processes: a JSON object with a list of events, an event a line.

A flush writes new lines over the closing brackets, and the brackets anew, under a lock. So the file is whole after each
flush. A process killed inside a flush leaves a torn end; the next flush of any process cuts the torn end off.

A process keeps a shared lock until the trace ends. The first process of a run finds no such lock, and replaces the file
of an earlier run; all others append. Both locks are of bytes far behind the end. They belong to the open file
description, so the kernel ends the locks with the process. (flock would not do: NFS turns it into a lock of all bytes.)
Whoever can read a file can lock it, so the file is for this user alone.
"""

import contextlib
import errno
import fcntl
import os
import struct
import time
from typing import Iterator, Tuple

from ringcast import _files

HEAD = b'{"traceEvents":[\n'
MARK = HEAD + b'{"cat":"ringcast",'  # how each trace of ringcast begins
TAIL = b"]}\n"
_LIVE = 1 << 62  # the byte of the shared lock
_FLUSH = _LIVE + 1  # the byte of a flush
_LOOK = 1 << 20  # more than a line
_PATIENCE = 10  # seconds, to begin
_WAIT = 0.05  # seconds, to append: the caller is between two messages


class TooLarge(Exception):
    """The events do not fit the limit of the file's bytes."""


class Busy(OSError):
    """Another process has held the file for longer than a flush takes. Nothing was written."""


class TraceFile:
    def __init__(self, path: str, limit: int, first: bytes) -> None:
        """first: an event, the first line of a new file. OSError: the file can't be written. ValueError: the file is
        no trace."""
        self.path, self.limit = path, limit
        self.fd = -1
        self.id = (-1, -1)
        self._open(first, _PATIENCE)

    def _open(self, first: bytes, patience: float) -> None:
        self.close()
        self.fd = _files.open_shared(self.path)
        self.id = _id(os.fstat(self.fd))
        try:
            with self._locked(patience):
                if self._lock(_LIVE, fcntl.F_WRLCK):
                    self._begin(first)
                self._lock(_LIVE, fcntl.F_RDLCK)
        except BaseException:
            self.close()
            raise

    def _begin(self, first: bytes) -> None:
        found = os.pread(self.fd, len(MARK), 0)
        if found and found != MARK:
            raise ValueError(f"{self.path} is there, and no trace of ringcast: give another name, or delete the file")
        with contextlib.suppress(OSError):  # of a file system without modes
            os.fchmod(self.fd, 0o600)  # the file of an earlier release
        os.ftruncate(self.fd, 0)
        self._write(HEAD + first + TAIL, 0)

    @contextlib.contextmanager
    def _locked(self, patience: float) -> Iterator[None]:
        deadline = time.monotonic() + patience
        while not self._lock(_FLUSH, fcntl.F_WRLCK):
            if time.monotonic() >= deadline:
                raise Busy(f"{self.path} is locked: a process was stopped while it wrote there")
            time.sleep(0.0005)
        try:
            yield
        finally:
            self._lock(_FLUSH, fcntl.F_UNLCK)

    def _lock(self, byte: int, kind: int) -> bool:
        """Take the lock, or give it back; False: another process has one in the way."""
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def append(self, first: bytes, lines: bytes) -> None:
        """Add lines of the form b",{...}\\n". first: for a new file, if the file was deleted. TooLarge: nothing was
        added. Busy. OSError."""
        if self._is_gone():
            self._open(first, _WAIT)
        with self._locked(_WAIT):
            end = self._end()
            if end + len(lines) + len(TAIL) > self.limit:
                raise TooLarge(f"{self.path} has reached its limit of {self.limit} bytes")
            self._write(lines + TAIL, end)

    def _is_gone(self) -> bool:
        """Whether the file was deleted or replaced, or could not be opened anew."""
        try:
            return not self._is_mine() or _id(os.lstat(self.path)) != self.id
        except FileNotFoundError:
            return True

    def _is_mine(self) -> bool:
        """Whether the descriptor is still the file's: the program may have closed it, and opened a file of its own."""
        try:
            return self.fd >= 0 and _id(os.fstat(self.fd)) == self.id
        except OSError:
            return False

    def _end(self) -> int:
        """Where the last whole line ends."""
        size = os.fstat(self.fd).st_size
        if os.pread(self.fd, len(TAIL), max(0, size - len(TAIL))) == TAIL:
            return size - len(TAIL)
        start = max(0, size - _LOOK)
        seen = os.pread(self.fd, _LOOK, start)
        at = seen.rfind(b"\n") + 1
        while at > 0:
            before = seen.rfind(b"\n", 0, at - 1) + 1
            line = seen[before:at]
            if line == HEAD or (line.startswith((b",{", b"{")) and line.endswith(b"}\n")):
                break
            at = before
        if at == 0:
            raise ValueError(f"{self.path} is no trace of ringcast any more: another program has written to the file")
        os.ftruncate(self.fd, start + at)
        return start + at

    def _write(self, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.fd, rest, at)
            rest, at = rest[written:], at + written

    def close(self) -> None:
        if self._is_mine():
            os.close(self.fd)
        self.fd = -1


def _id(found: os.stat_result) -> Tuple[int, int]:
    return found.st_dev, found.st_ino
