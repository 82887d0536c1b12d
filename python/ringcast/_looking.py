# SPDX-License-Identifier: Apache-2.0
"""Looking into a Frame or PackedFrame: the keys, a single item, or the hashes, without reading the rest.

The items of a dict stand in entries, in order. To get an item, only its entries are read: the item's own; the parts of
a nested value; and, if the stream of a nested value has leaves, the pickle with its buffers, at the end of the frame.
A dict without entries for its items (many items that are no tensors, or keys that are no str) is a single nested value
or a pickle, and is read as a whole. The extension gives the entries: python/extension/codec/inspect.h.
"""

import errno
from itertools import takewhile

from ringcast.exceptions import ProtocolError

# As in ringcast/frame.h and ringcast/object.h.
_TENSOR, _PICKLE, _BUFFER, _LEAF, _ERROR, _OBJECT = 7, 8, 9, 10, 11, 12
_PART, _MARK, _BACK, _ITEM = 0xDF, 0xE4, 0xE5, 0xE6
_OTHER_PARTS = 0xE0, 0xEC


def _damaged(what):
    return ProtocolError(errno.EPROTO, f"the frame is damaged or of another build: {what}")


def _no_dict(what):
    return TypeError(f"this frame holds {what[:100]}, not a dict: it has no keys; ringcast.unpack() reads it")


def _items(frame):
    """The entries, if the items are entries; None: read the whole frame, which also raises the error for a damaged
    header. TypeError: the frame can't be a dict."""
    found = frame._entries()
    if found is None:
        raise _no_dict("bytes")
    if not found:
        return None
    is_dict, entries = found
    if entries and not is_dict and entries[0][1] not in (_OBJECT, _PICKLE, _ERROR):
        raise _no_dict("a single value")
    return entries if is_dict else None


def _whole(frame):
    value = frame._read(())
    if not isinstance(value, dict):
        raise _no_dict(type(value).__name__)
    return value


def _runs(frame, entries, index):
    """The entries that belong to the item, as runs; None: the item refers to other items, so all must be read."""
    _, kind, _, first, parts = entries[index]
    outside, leaves = frame._tokens(index)[:2] if kind == _OBJECT else (0, kind == _LEAF)
    if outside:
        return None
    runs = [(index, index + 1)]
    if parts:
        if first <= index or first + parts > len(entries):
            raise _damaged("parts in disorder")
        runs.append((first, first + parts))
    if leaves:
        pickle = len(entries) - 1
        while pickle > 0 and entries[pickle][1] == _BUFFER:
            pickle -= 1
        if entries[pickle][1] == _PICKLE:
            runs.append((pickle, len(entries)))
    return tuple(runs)


def keys(frame):
    entries = _items(frame)
    if entries is not None:
        found = [entry[0] for entry in takewhile(lambda entry: entry[0] is not None, entries)]
        if len(set(found)) != len(found):
            raise _damaged("a key twice")
        return found
    found = list(_whole(frame))
    for key in found:
        if not isinstance(key, str):
            kind = type(key).__name__[:100]
            raise TypeError(f"the dict in this frame has a key that is no str but {kind}: ringcast.unpack() reads it")
    return found


def _find(entries, key):
    for index, entry in enumerate(entries):
        if entry[0] is None:
            break
        if entry[0] == key:
            return index
    return None


def contains(frame, key):
    if not isinstance(key, str):
        return False
    entries = _items(frame)
    return dict.__contains__(_whole(frame), key) if entries is None else _find(entries, key) is not None


def item(frame, key):
    if not isinstance(key, str):
        raise TypeError(f"the keys of a frame are str, not {type(key).__name__[:100]}")
    entries = _items(frame)
    index = None if entries is None else _find(entries, key)
    if entries is not None and index is None:
        raise KeyError(key)
    runs = None if entries is None else _runs(frame, entries, index)
    if runs is None:
        return dict.__getitem__(_whole(frame), key)
    # The only item, whatever its key: the ring may have changed meanwhile.
    found = frame._read(runs)
    for value in found.values() if type(found) is dict else ():
        return value
    raise _damaged("it changes while it is read")


class _Walk:
    """The search through the tokens of nested values."""

    def __init__(self, frame, entries):
        self._frame, self._entries = frame, entries
        self._marked = []  # for each mark: the tensor's hash, or None
        self._next = 0  # parts from here on have not been used

    def hashes_of(self, index):
        """The hash or the hashes in the value of an entry; None: no hash."""
        kind, hash = self._entry(index)[1:3]
        return self._nested(index) if kind == _OBJECT else hash if kind == _TENSOR else None

    def _entry(self, index):
        if index >= len(self._entries):
            raise _damaged("an entry points outside it")
        return self._entries[index]

    def _nested(self, index):
        first, parts = self._entries[index][3:]
        _, _, needed, values, tokens = self._frame._tokens(index)
        if needed != parts or (parts and not self._next <= first <= len(self._entries) - parts):
            raise _damaged("parts in disorder")
        if parts:
            self._next = first + parts
        found, part, is_marked = [], first, False
        for tag, count in tokens:
            if tag == _MARK:
                self._marked.append(None)
            elif tag in (_PART, _ITEM):
                _, kind, hash, _, _ = self._entry(part if tag == _PART else count)
                found += [hash] if kind == _TENSOR else []
                if is_marked and kind == _TENSOR:
                    self._marked[-1] = hash
            elif tag == _BACK:  # a repeated container's hashes were added at its first occurrence
                if count >= len(self._marked):
                    raise _damaged("a value that was not there before")
                hash = self._marked[-1 - count]
                found += [hash] if hash is not None else []
            is_marked = tag == _MARK
            part += tag == _PART or tag in _OTHER_PARTS
        if all(hash is None for hash in found):
            return None
        return found if values > 1 else found[0]  # the value is a tensor


def hashes(frame):
    found = frame._entries()
    if found is None:
        return None
    if not found:
        raise _damaged("its header makes no sense")
    is_dict, entries = found
    walk = _Walk(frame, entries)
    if all(entry[2] is None for entry in entries):
        return {} if is_dict else None
    if not is_dict:
        return walk.hashes_of(0)
    keyed = takewhile(lambda numbered: numbered[1][0] is not None, enumerate(entries))
    of_keys = {entry[0]: walk.hashes_of(index) for index, entry in keyed}
    return {key: hash for key, hash in of_keys.items() if hash is not None}
