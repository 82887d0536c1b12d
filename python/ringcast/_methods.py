# SPDX-License-Identifier: Apache-2.0
"""The methods of Writer and Reader that need not be fast. Signatures and docstrings are those of
_ringcast.pyi."""

import functools
import sys

from ringcast._options import integer, seconds_or_none

_MOST_TAG = (1 << 32) - 1


@functools.lru_cache(None)
def _loops():
    """asyncio is imported on first use."""
    import ringcast._asyncio

    return ringcast._asyncio


@functools.lru_cache(None)
def _composing():
    import ringcast._compose

    return ringcast._compose


def _most(most):
    return sys.maxsize if most is None else integer("most", most, 1, sys.maxsize)


class Writer:
    def send_error(self, text, timeout=None, *, tag=0):
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        self._send_error(text.encode("utf-8", "backslashreplace"), timeout, tag)

    def asend(self, obj, timeout=None, *, tag=0, hash=None):
        return _loops().asend(
            self, obj, seconds_or_none(timeout), integer("tag", tag, 0, _MOST_TAG), hash
        )

    def compose(self, value, timeout=None, *, tag=0):
        tag = integer("tag", tag, 0, _MOST_TAG)
        return _composing().ComposedFrame(self, value, seconds_or_none(timeout), tag)

    def asend_many(self, values, timeout=None, *, tag=0):
        return _loops().asend_many(
            self, values, seconds_or_none(timeout), integer("tag", tag, 0, _MOST_TAG)
        )


class Reader:
    def recv_many(self, timeout=None, most=None):
        most = _most(most)
        received = [self.recv(timeout)]
        try:
            self._more(received, most)
        except BaseException as error:
            error.received = received
            raise
        return received

    def arecv_many(self, timeout=None, most=None):
        return _loops().arecv_many(self, seconds_or_none(timeout), _most(most))

    def arecv(self, timeout=None):
        return _loops().arecv(self, False, seconds_or_none(timeout))

    def arecv_tagged(self, timeout=None):
        return _loops().arecv(self, True, seconds_or_none(timeout))

    def __anext__(self):
        return _loops().anext_(self)


def add_to(extension, docstrings):
    """Called by the extension, when its types are made. docstrings: those of the stub, by
    "Class_method"."""
    for ours, cls in ((Writer, extension.Writer), (Reader, extension.Reader)):
        for name, method in vars(ours).items():
            text = docstrings.get(f"{cls.__name__}_{name}")
            if text is not None:
                method.__doc__, method.__module__ = text.rpartition("\n--\n\n")[2], "ringcast"
                setattr(cls, name, method)
