# SPDX-License-Identifier: Apache-2.0
"""
The files and folders that ringcast makes: for their user alone, and never through what another user
has put there.

A folder that others can write, such as /tmp, may have a link, a pipe or a file of theirs under each
name that they can guess.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from typing import IO, Any, Iterator

_FOREIGN = "belongs to another user: give another name"
_FLAGS = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def open_shared(path: str) -> int:
    """
    A descriptor of a file that processes of this user share; the file is made if it is not there.
    OSError.
    """
    # O_NOATIME takes the owner: in a user namespace, all users that it does not know have one uid.
    try:
        fd = above_the_streams(os.open(path, os.O_RDWR | os.O_NOATIME | _FLAGS, 0o600))
    except OSError as error:
        words = {
            errno.ELOOP: "is a symbolic link: name the file itself",
            errno.EPERM: _FOREIGN,
        }.get(error.errno or 0)
        if words is None:
            raise
        raise OSError(error.errno, words, path) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            words = _FOREIGN if stat.S_ISREG(found.st_mode) else "is no file: give another name"
            raise PermissionError(errno.EPERM, words, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def above_the_streams(fd: int) -> int:
    """
    The number of a stream that the program has closed is not taken: what is printed would go into
    the file.
    """
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


@contextlib.contextmanager
def replacing(path: str, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """
    A new file that takes the place of `path` at the end, as a whole or not at all. A link there is
    replaced.
    """
    part = f"{path}.{secrets.token_hex(8)}.part"
    fd = above_the_streams(os.open(part, os.O_WRONLY | os.O_EXCL | _FLAGS, 0o600))
    try:
        with open(fd, mode, **options) as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def make_folder(path: str) -> str:
    """Make the folder, and those above, if need be. Return `path`. OSError."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        make_folder(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    return path


def make_inner_folder(folder: str, name: str) -> str:
    """A folder of a name that anybody can guess: a link is refused. Return the path. OSError."""
    path = make_folder(os.path.join(folder, name))
    if os.path.islink(path):
        raise OSError(
            errno.ELOOP, "is a symbolic link: name another folder, or remove the link", path
        )
    return path
