# SPDX-License-Identifier: Apache-2.0
"""The methods of the extension's types that need not be fast. Signatures and docstrings are those of _ringcast.pyi."""

import functools
import sys
import types

from ringcast._options import MEMORY, integer, seconds_or_none
from ringcast._status import TapLost

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


def _handle():
    """Of Writer, Reader and Tap: functions of its own for each, which have its docstrings."""

    def __enter__(self):
        if self.closed:
            raise ValueError(f"the {type(self).__name__} is closed")
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        state = "closed" if self.closed else "open"
        size = f", {self.capacity} bytes of {self.memory}" if hasattr(self, "capacity") else ""
        return f"<ringcast.{type(self).__name__} {self.handle!r}{size}, {state}>"

    def __reduce__(self):
        name = type(self).__name__
        maker = "Tap" if name == "Tap" else "Reader"
        raise TypeError(
            f"a {name} can't go to another process, nor be copied: pass {name.lower()}.handle, and "
            f"make a {maker}(handle) there"
        )

    def info(self):
        return self._status()[0]

    def stats(self):
        return self._status()[1]

    return locals()


def _memory(self):
    return MEMORY[self._memory] if self._memory < len(MEMORY) else "unknown"


def _most(most):
    return sys.maxsize if most is None else integer("most", most, 1, sys.maxsize)


class _Writer:
    memory = property(_memory)

    def send_error(self, text, timeout=None, *, tag=0):
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        self._send_error(text.encode("utf-8", "backslashreplace"), timeout, tag)

    def asend(self, obj, timeout=None, *, tag=0, hash=None):
        return _loops().asend(self, obj, seconds_or_none(timeout), integer("tag", tag, 0, _MOST_TAG), hash)

    def compose(self, value, timeout=None, *, tag=0):
        tag = integer("tag", tag, 0, _MOST_TAG)
        return _composing().ComposedFrame(self, value, seconds_or_none(timeout), tag)

    def asend_many(self, values, timeout=None, *, tag=0):
        return _loops().asend_many(self, values, seconds_or_none(timeout), integer("tag", tag, 0, _MOST_TAG))


class _Reader:
    memory = property(_memory)

    @property
    def lag(self):
        return self._status()[2]

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


class _Tap:
    def lost(self):
        return TapLost(*self._status()[2:])


class _Frame:
    def __reduce__(self):
        raise TypeError(
            "a Frame can't be pickled, nor be sent: it is a place in a ring. Send what it holds, by "
            "send(unpack(frame)), or its bytes, by send_bytes(frame)"
        )


class _PackedFrame:
    def __reduce__(self):
        raise TypeError(
            "a PackedFrame can't be pickled, nor be sent inside another value: send it by itself, by "
            "Writer.send(packed), or what it was made of"
        )


def _add(cls, members, docstrings):
    for name, member in members.items():
        text = docstrings.get(f"{cls.__name__}_{name}", "").rpartition("\n--\n\n")[2]
        if isinstance(member, property):
            setattr(cls, name, property(member.fget, doc=text))
        elif isinstance(member, types.FunctionType):
            member.__doc__ = text or None
            member.__module__, member.__qualname__ = "ringcast", f"{cls.__name__}.{name}"
            setattr(cls, name, member)


def add_to(extension, docstrings):
    """Called by the extension, when its types are made. docstrings: those of the stub, by "Class_method"."""
    _add(extension.Writer, {**_handle(), **vars(_Writer)}, docstrings)
    _add(extension.Reader, {**_handle(), **vars(_Reader)}, docstrings)
    _add(extension.Tap, {**_handle(), **vars(_Tap)}, docstrings)
    _add(extension.Frame, vars(_Frame), docstrings)
    _add(extension.PackedFrame, vars(_PackedFrame), docstrings)
