# SPDX-License-Identifier: Apache-2.0
"""The errors of ringcast. Each has an `errno`; the text tells the failure and the remedy.

Beside them, as elsewhere in Python: TimeoutError when the time is up, ValueError for an argument
out of range or a closed handle, TypeError, BufferError while a memoryview is in use, RuntimeError
for use by two threads at once.
"""

import errno
from typing import Dict, Optional, Type


class Error(OSError):
    """
    The base of ringcast's errors, itself raised when no subclass fits. `errno` tells the kind.
    """

    def __str__(self) -> str:
        return self.strerror if isinstance(self.strerror, str) else super().__str__()


class WriterGone(Error):
    """The writer is closed or dead, and all its frames were received. errno EPIPE."""


class ReaderDied(Error):
    """A writer with on_death="fail" had to wait, and a reader is dead; the text names the reader.
    errno EOWNERDEAD."""


class Evicted(Error):
    """The writer goes on without this Reader, which blocked for longer than `slow` allows. errno
    ESTALE.

    Data read in place, from a Frame, may be overwritten data. Close the Reader; a new Reader may
    attach.
    """


class FrameTooLarge(Error):
    """A frame can never fit, in the ring or in spill memory. errno EMSGSIZE.

    spill_bytes: the spill memory that a ring needs for the frame, None if no ring can have so much.
    capacity: for a ring without spill memory, the bytes of a ring that holds the frame; else None.
    """

    spill_bytes: Optional[int] = None
    capacity: Optional[int] = None


class RingNotFound(Error):
    """The ring of the handle is gone. errno ENOENT."""


class AccessDenied(Error, PermissionError):
    """
    The ring is another user's, or the kernel forbids access to the writer's process. errno EACCES
    or EPERM.
    """


class ProtocolError(Error):
    """The other side is of an incompatible build, or wrote invalid data. errno EPROTO."""


class NoFreeSlot(Error):
    """All reader slots of the ring are taken. errno EUSERS."""


class ForkedError(Error):
    """The Writer or Reader was made by the parent, before a fork. errno ECHILD."""


class SendError(Error):
    """
    Raised by recv(): the writer could not send the object, and sent the reason. errno EREMOTEIO.
    """


class PickleRefused(Error):
    """
    Pickles are turned off here, and a value needs one to be sent, or a frame holds one, or names a
    class that is not allowed. errno EOPNOTSUPP.
    """


class Cancelled(Error):
    """cancel() was called on the Writer or Reader, and the call would have had to wait. errno
    ECANCELED."""


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
