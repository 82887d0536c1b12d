# SPDX-License-Identifier: Apache-2.0
"""The errors of ringcast. Each has an `errno`, and its text says what was wrong and what to do.

Beside them, as elsewhere in Python: TimeoutError when the time is up, ValueError for an argument out of range or a
handle that is closed, TypeError, BufferError while a memoryview is in use, RuntimeError for use by two threads at once.
"""

import errno
from typing import Dict, Optional, Type


class Error(OSError):
    """The base of ringcast's errors, and what is raised when none of the others fits. `errno` tells the kind."""

    def __str__(self) -> str:
        return self.strerror if isinstance(self.strerror, str) else super().__str__()


class WriterGone(Error):
    """The writer is closed or dead, and everything that it sent was received. errno EPIPE."""


class ReaderDied(Error):
    """A reader died, and the writer, whose `on_death` is "fail", had to wait; the text names it. errno EOWNERDEAD."""


class Evicted(Error):
    """The writer goes on without this Reader, which was in its way for too long or was taken for dead. errno ESTALE.

    What was read of a Frame in place may have been overwritten meanwhile. Close the Reader; a new one may attach.
    """


class FrameTooLarge(Error):
    """What is to be sent can never fit, in the ring or in its spill memory. errno EMSGSIZE.

    spill_bytes: how much spill memory a ring needs for it, None if none can have so much. capacity: of a ring without
    spill memory, the bytes of one that it fits as a whole; else None.
    """

    spill_bytes: Optional[int] = None
    capacity: Optional[int] = None


class RingNotFound(Error):
    """The ring that the handle names is no longer there. errno ENOENT."""


class AccessDenied(Error, PermissionError):
    """The ring is another user's, or its process may not be looked into. errno EACCES or EPERM."""


class ProtocolError(Error):
    """The other side is of an incompatible build, or wrote invalid data. errno EPROTO."""


class NoFreeSlot(Error):
    """The ring has as many readers as it can have. errno EUSERS."""


class ForkedError(Error):
    """The Writer or Reader was made by the parent, before a fork. errno ECHILD."""


class SendError(Error):
    """Raised by recv(): the writer could not send what was due, and says why. errno EREMOTEIO."""


class PickleRefused(Error):
    """A value needs a pickle to be sent, or a frame holds one, and pickles are turned off here. errno EOPNOTSUPP."""


class Cancelled(Error):
    """cancel() was called on the Writer or Reader, and the call would have had to wait. errno ECANCELED."""


_BY_ERRNO: Dict[int, Type[Error]] = {
    errno.EPIPE: WriterGone,
    errno.EOWNERDEAD: ReaderDied,
    errno.ESTALE: Evicted,
    errno.EMSGSIZE: FrameTooLarge,
    errno.ENOENT: RingNotFound,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EPROTO: ProtocolError,
    errno.EUSERS: NoFreeSlot,
    errno.ECHILD: ForkedError,
    errno.EREMOTEIO: SendError,
    errno.ECANCELED: Cancelled,
}
