# SPDX-License-Identifier: Apache-2.0
"""
The one generator of hostile frames: honest frames, and what to break in each.

    python3 tests/vectors/hostile.py FOLDER     writes frames.txt and more for the tests in C

It needs nothing but Python, and makes its bytes itself, by README.md; so it is also a second writer
of frames, as read_frame.py is a second reader.

- HONEST: frames by name. LIES: for each, what is put into which field of the header or of an entry,
  and what a reader has to refuse: the frame ("open"), the entry alone, several entries, a frame of a
  later version ("version"), or nothing ("good": it is odd, and allowed). cases() makes frames of it.
- GOOD and REFUSED: streams of tokens (an entry that is a nested value), in the notation of
  `stream()`. ringcast_object_check accepts the former, and says what they need; it refuses the
  latter, and so does everybody who reads tokens.
- WRONG: whole frames, and WRONG_STREAMS: streams, each part of which is as it must be, but which
  mean nothing. The C library hands them out; Python refuses them.

Who uses it: tests/unit/test_frame_hostile.c and test_object.c read what FOLDER has; tests/python
imports it; tests/fuzz starts from all of it. What is asserted is asserted there, of every row; a new
lie is one more row here.
"""

import functools
import pathlib
import pickle
import re
import struct
import sys
import types

from read_frame import (
    CLASSES,
    ENTRY,
    HEADER,
    KINDS,
    PLACEMENTS,
    TAGS,
    Damaged,
    Frame,
    on_line,
    stored,
)

MAGIC = 0x31464352
DICT, VALUE = 1, 2
NONE, BOOL, INT, FLOAT, STR, BYTES, TENSOR, PICKLE, BUFFER, LEAF, ERROR, OBJECT = KINDS
KEYED, NUMPY, TORCH, REQUIRES_GRAD, PARAMETER, READONLY = (1 << bit for bit in range(6))
SHA256, XXH3, PADDED, CUDA, CUPY, JAX = (1 << bit for bit in range(6, 12))
INT64, FLOAT32, UINT8 = (0, 64, 1), (2, 32, 1), (1, 8, 1)
TYPECODE = {code: ord(code) << 24 for code in "bqdzD"}

# ---- Streams of tokens ---------------------------------------------------------------------------

# T.LIST is the tag of a list.
T = types.SimpleNamespace(**{name.upper(): 0xC0 + place for place, name in enumerate(TAGS)})
T.NAMED_CLASSES = {name: kind for kind, name in CLASSES.items()}
STANDARD = dict(
    zip(
        "defaultdict ordered deque counter uuid posix path windows datetime date time timedelta "
        "timezone zoneinfo decimal npdtype".split(),
        range(1, 17),
    ),
    ndarray=64,
    recarray=65,
)
ONE = "~000000000000f03f"  # 1.0


def count(number):
    if number < 252:
        return bytes([number])
    size = 0 if number < 1 << 16 else 1 if number < 1 << 32 else 2
    return bytes([252 + size]) + number.to_bytes(2 << size, "little")


def text(of):
    data = of.encode()
    is_short = len(data) < 64 and data.isascii()
    return (
        bytes([0x80 + len(data)]) + data if is_short else bytes([T.UTF8]) + count(len(data)) + data
    )


def class_token(kind, *words):
    names = "\0".join(words).encode()
    kind = T.NAMED_CLASSES.get(kind, kind)
    return bytes([T.CLASS, kind]) + count(len(names)) + names


def big(number):
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return bytes([T.BIGINT]) + count(len(data)) + data


@functools.cache
def word(of):
    if of[0] == "'":
        return text(of[1:-1])
    if of[0] == "~":
        return bytes.fromhex(of[1:])
    if of[0] == "#":
        return count(int(of[1:]))
    if of[0] == "=":
        return big(int(of[1:]))
    if "/" in of:
        kind, *names = of.split("/")
        return class_token(int(kind) if kind.isdigit() else kind, *names)
    if of[0].isdigit():
        return bytes([int(of, 0)])
    return bytes([STANDARD[of] if of in STANDARD else getattr(T, of)])


def stream(of):
    """
    LIST, KIND: the tag. deque: the number of this kind. 5, 0xff: a byte. #5000: a count. =-1: an int
    of any size. 'x': a text. ~00ff: these bytes. enum/natives/Color: a class, of this kind, with
    module, name and fields.
    """
    return b"".join(word(each) for each in re.findall(r"'[^']*'|\S+", of))


# ---- Frames --------------------------------------------------------------------------------------


def entry(kind, flags=0, scalar=0, size=0, *, dtype=(0, 0, 0), key=(0, 0), dims=(0, 0)):
    """
    An entry for frame_of. key: its place in the meta part, and its bytes. dims: how many, and their
    place.
    """
    return kind, flags, scalar, size, dtype, key, dims


def frame_of(root, entries, data=b"", meta=b"", version=1):
    """A frame by hand, whose entries have all their data at the same place."""
    start = HEADER.size + ENTRY.size * len(entries)
    at = on_line(start + len(meta))
    raw = HEADER.pack(MAGIC, version, root, 0, len(entries), at + len(data), len(meta), 0, 0, 0)
    for kind, flags, scalar, size, dtype, key, dims in entries:
        key = (start + key[0], key[1]) if key[1] else (0, 0)
        dims_offset = start + dims[1] if dims[0] else 0
        fields = (*key, kind, dims[0], 0, *dtype, dims_offset, flags)
        raw += ENTRY.pack(*fields, at if size else 0, size, scalar, 0, 0)
    return (raw + meta).ljust(at, b"\0") + data


def nested(tokens, parts=(), first=1, pickled=None):
    """A frame that is one nested value. parts: kinds of entries, or kinds, flags and data."""
    tokens = stream(tokens) if isinstance(tokens, str) else bytes(tokens)
    items = [item(OBJECT, scalar=first | len(parts) << 32, data=tokens)]
    for part in parts:
        kind, flags, data = part if isinstance(part, tuple) else (part, 0, b"abc")
        items.append(item(kind, flags=flags, data=data))
    items += [item(PICKLE, data=pickled)] if pickled else []
    return build(VALUE, *items)


def build(root, *items, words=(0, 0, 0), spare=b""):
    """
    An honest frame, byte for byte as README.md tells a writer: of (kind, what it has by name). spare:
    more of the meta part, behind all that is used.
    """
    count, meta, fields = len(items), b"", []
    start = HEADER.size + ENTRY.size * count
    for kind, has in items:
        key, dims = has.get("key"), has.get("shape", ())
        key_at = start + len(meta) if key else 0
        meta += (key or "").encode()
        dims_at = 0
        if dims:
            meta += bytes(-len(meta) % 8)
            dims_at = start + len(meta)
            strides = [1]
            for size in reversed(dims[1:]):
                strides.insert(0, strides[0] * max(size, 1))
            meta += struct.pack(f"<{2 * len(dims)}q", *dims, *strides)
        flags = has.get("flags", 0) | (KEYED if key is not None else 0)
        fields.append((key_at, len((key or "").encode()), dims_at, flags))
    meta += spare
    version = max([1, *(2 for kind, _ in items if kind == OBJECT)])
    data, at = b"", on_line(start + len(meta))
    entries = b""
    for (kind, has), (key_at, key_bytes, dims_at, flags) in zip(items, fields):
        if flags & (SHA256 | XXH3 | PADDED | 255 << 24):
            version = max(version, 2)
        if flags & CUDA:
            version = 3
        content, offset, size = has.get("data", b""), has.get("pool", 0), has.get("bytes", 0)
        if content:
            line = 64 if kind == TENSOR else 8
            data += bytes(-(at + 16 + len(data)) % line)
            offset, size = at + len(data), len(content)
            data += content
        placement = PLACEMENTS.index("pool") if "pool" in has else 0
        dtype = has.get("dtype", (0, 0, 0))
        entries += ENTRY.pack(
            *(
                key_at,
                key_bytes,
                kind,
                len(has.get("shape", ())),
                placement,
                *dtype,
                dims_at,
                flags,
            ),
            *(offset, size, has.get("scalar", 0), has.get("hash", 0), 0),
        )
    end = at + len(data) if data else start + len(meta)
    header = HEADER.pack(MAGIC, version, root, 5, count, end, len(meta), *words)
    return (header + entries + meta).ljust(at if data else end, b"\0") + data


def item(kind, key=None, **has):
    return kind, {"key": key, **has}


LIST = pickle.dumps(["x"], 4)
NAMES = {
    "host": "int str tensor zero empty object bool array leaf none part pickle".split(),
    "nibbles": ["int4", "padded"],
    "device": "pool more here text".split(),
    "roomy": ["tensor"],
}
FLOATS = {"dtype": FLOAT32, "shape": (2, 3)}
HONEST = {
    "host": build(
        DICT,
        item(INT, "int", scalar=42),
        item(STR, "str", data=b"hello"),
        item(
            TENSOR, "tensor", flags=SHA256 | NUMPY, hash=0x123456789ABCDEF, data=bytes(24), **FLOATS
        ),
        item(TENSOR, "zero", flags=NUMPY, dtype=INT64, data=b"abcdefgh"),
        item(TENSOR, "empty", flags=NUMPY, dtype=FLOAT32, shape=(0, 3)),
        item(OBJECT, "object", scalar=10 | 1 << 32, data=stream("LIST 2 PART NONE")),
        item(BOOL, "bool", scalar=1),
        item(BYTES, "array", flags=TYPECODE["q"], data=bytes(8)),
        item(LEAF, "leaf"),
        item(NONE, ""),
        item(STR, data=b"a part"),
        item(PICKLE, data=LIST),
    ),
    "nibbles": build(
        DICT,
        item(TENSOR, "int4", dtype=(0, 4, 1), shape=(5,), data=b"abc"),
        item(TENSOR, "padded", flags=PADDED, dtype=(1, 4, 1), shape=(5,), data=b"abcde"),
    ),
    "device": build(
        DICT,
        item(TENSOR, "pool", flags=CUDA | TORCH, pool=512, bytes=24, **FLOATS),
        item(TENSOR, "more", flags=CUDA | TORCH, pool=12, bytes=24, **FLOATS),
        item(TENSOR, "here", flags=CUDA | TORCH, data=bytes(24), **FLOATS),
        item(STR, "text", data=b"text"),
        words=(1, 2, 3),
    ),
    # There is room for more dimensions than there can be.
    "roomy": build(
        VALUE,
        item(TENSOR, dtype=UINT8, shape=(1,), data=b"x"),
        spare=struct.pack("<510q", *[1] * 510),
    ),
    "empty": build(DICT),
}

# ---- Lies ----------------------------------------------------------------------------------------

# What is put into which fields of a frame: the honest frame and the entry (else the header); then
# field=value, several at once joined by &, where a value is an expression of the names above and of
# what stands there now; then what a reader refuses, if it is not that entry: the entries named, or
# open, version, good.
LIES = """
host: magic=0 magic=0x52434631 version=0 root=0 root=3 count=2**24 count=2**24+1 count=2**31 | open
host: count=2**32-1 count=0&root=2 bytes=0 bytes=48 bytes=bytes+1 bytes=bytes-1 bytes=2**64-1 | open
host: meta_bytes=4096 meta_bytes=2**64-1 meta_bytes=2**64-48 meta_bytes=2**64-START+1 slot=1 | open
host: generation=1 epoch=1&generation=1 slot=1&epoch=1&generation=1 | open
device: version=2 version=1 epoch=0 generation=0 slot=0&epoch=0 slot=1&generation=0 | open
host: version=4 version=0xffff | version
host: count=0 tag=0 | good
host: root=2 | int str tensor zero empty object bool array leaf none
host: version=1 | tensor object array
nibbles: version=1 | padded
device: slot=0&epoch=0&generation=0 | pool more
device: slot=0&epoch=0&generation=0&version=1 | pool more here
device: slot=2**32-1&epoch=2**32-1&generation=2**64-1 slot=0 | good
host int: kind=0 kind=13 kind=0xffff kind=0x103 kind=1 kind=12 placement=1 placement=255 reserved=1
host int: hash=1 flags=0 flags=KEYED|1<<12 flags=KEYED|SHA256 flags=KEYED|CUDA ndim=1
host int: dims_offset=START code=1 bits=8 lanes=1 offset=END bytes=1 key_offset=0 key_offset=48
host int: key_offset=START-1 key_offset=2**32-1 key_offset=END key_bytes=0 key_bytes=2**32-1
host int: key_bytes=4096
host none: key_offset=START scalar=1 bytes=1 offset=START flags=KEYED|PADDED
host part: key_offset=START key_bytes=1 flags=2**32-1
host bool: scalar=2 scalar=2**64-1
host leaf: scalar=2**63 scalar=2**64-1
host str: offset=0 offset=48 offset=offset+1 offset=offset+4 offset=2**64-1 offset=2**64-8
host str: offset=START-8 offset=END offset=END+8 scalar=1 dims_offset=START bytes=0 bytes=4096
host str: bytes=2**63 bytes=2**64-1 bytes=2**64-offset kind=1 bits=8 flags=KEYED|XXH3
host str: flags=KEYED|PADDED flags=KEYED|ord('b')<<24
host array: flags=KEYED|ord('z')<<24 flags=KEYED|1<<24 bytes=7 bytes=4 kind=5 kind=8
host array: flags=KEYED|ord('d')<<24 flags=KEYED|ord('b')<<24&bytes=7 flags=KEYED | good
host object: scalar=COUNT|1<<32 scalar=2**32-1|1<<32 scalar=(COUNT+1)<<32 scalar=2**64-1 kind=5 bytes=0
host object: bytes=0&offset=0 bytes=2**20 offset=0 offset=offset+1 ndim=1
host tensor: scalar=1 reserved=1 placement=1 placement=2 placement=255 kind=6 flags=KEYED
host tensor: flags=KEYED|SHA256|XXH3 flags=KEYED|SHA256|1<<12 ndim=0 ndim=3 ndim=65 ndim=255 bits=0
host tensor: bits=64 bits=30 lanes=0 lanes=65535 code=18 flags=KEYED|SHA256|PADDED
host tensor: flags=KEYED|SHA256|CUDA dims_offset=0 dims_offset=48 dims_offset=dims_offset+4
host tensor: dims_offset=2**32-8 dims_offset=dims_offset+1 dims_offset=2**32-1 dims_offset=END
host tensor: dims_offset=START-8 offset=0 offset=offset+8 offset=offset+32 offset=offset-8
host tensor: offset=offset+1 offset=2**64-16 offset=2**20|48 offset=48 offset=START//64*64-16
host tensor: bytes=0 bytes=23 bytes=25 bytes=2**64-1 bytes=2**64-offset
host zero: hash=1 dims_offset=START ndim=1 bytes=7
host empty: offset=END bytes=4 bytes=4&offset=END
nibbles int4: bytes=2 bytes=4 bits=5 dims=5,2 dims=5,0 flags=KEYED|PADDED
nibbles padded: bytes=3 flags=KEYED bits=0 bits=8 bits=12 lanes=2
host tensor: dims=2,3,0,1 dims=6,9,1,0 dims=6,2,1,0 dims=5,2,1,1 dims=2,3,4,1 dims=3,3,3,1
host tensor: dims=2,4,3,1 dims=2,3,-3,1 dims=2,3,3,-1 dims=-2,3,3,1 dims=-2,-3,3,1 dims=1,6,-1,1
host tensor: dims=0,3,3,1 dims=2**32,2**32,0,0 dims=2**63-1,6,0,1 dims=2,2,2**63-1,1
host tensor: dims=2**63-1,2**63-1,2**63-1,2**63-1 dims=-2**63,-2**63,-2**63,-2**63
host tensor: dims=2**32,2,2**32,5 dims=3,2,2**62,5 dims=5,2,2**62,5
host tensor: dims=3,2,1,3 dims=1,6,0,1 dims=2,2,4,1 dims=6,1,1,2**63-1 | good
roomy tensor: ndim=65 ndim=66 ndim=128 ndim=255
roomy tensor: ndim=2 ndim=64 | good
device pool: placement=0 placement=2 placement=3 reserved=1 scalar=1 hash=1 kind=6 flags=KEYED|TORCH
device pool: flags=KEYED|CUDA|PADDED flags=KEYED|CUDA|1<<12 bits=16 bytes=0 bytes=23 bytes=2**64-1
device pool: dims_offset=0 ndim=65 key_offset=0 dims=2,3,1,2 dims=0,3,3,1&bytes=0
device pool: dims=0,3,3,1&bytes=0&offset=0
device more: flags=KEYED offset=2**64-1 offset=2**64-23 offset=2**64-24
device more: offset=2**64-25 offset=0 dims=1,6,99,1 flags=KEYED|CUDA|JAX | good
device here: placement=2 flags=KEYED|JAX flags=KEYED|CUDA|CUPY|JAX
device here: dims=2,3,1,2 dims=1,6,99,1 dims=0,3,3,1&bytes=0&offset=0 | good
device text: placement=1 reserved=2**63 flags=KEYED|CUDA flags=KEYED|CUPY
"""
FIELDS = {
    "header": "magic version root tag count bytes meta_bytes slot epoch generation".split(),
    "entry": "key_offset key_bytes kind ndim placement code bits lanes dims_offset flags offset "
    "bytes scalar hash reserved".split(),
}


def lie(name, where, change):
    """The honest frame with one change."""
    raw = bytearray(HONEST[name])
    layout, fields, at = HEADER, FIELDS["header"], 0
    if where:
        layout, fields = ENTRY, FIELDS["entry"]
        at = HEADER.size + ENTRY.size * NAMES[name].index(where)
    count = HEADER.unpack_from(raw)[4]
    values = dict(zip(fields, layout.unpack_from(raw, at)))
    known = {"COUNT": count, "START": HEADER.size + ENTRY.size * count, "END": len(raw)}
    for each in change.split("&"):
        field, value = each.split("=")
        # The operand is a line of this file.
        value = eval(value, dict(globals()), {**known, **values})
        if field == "dims":
            struct.pack_into(f"<{len(value)}q", raw, values["dims_offset"], *value)
        else:
            values[field] = value
    layout.pack_into(raw, at, *values.values())
    return bytes(raw)


def cases():
    """Of each frame: its name, its bytes, and what is refused of it; good, or the stored ones' too."""
    for name, raw in HONEST.items():
        yield name, raw, "good"
    for name, frame in stored().items():
        yield name, bytes.fromhex(frame["frame"]), "good"
    for line in LIES.strip().splitlines():
        head, _, rest = line.partition(": ")
        changes, _, expected = rest.partition(" | ")
        name, _, where = head.partition(" ")
        for change in changes.split():
            yield f"{head}:{change}", lie(name, where, change), expected or where


# ---- Streams, good and bad -----------------------------------------------------------------------

DATACLASS, ENUM_CLASS = "dataclass/natives/Empty", "enum/natives/Color"
FAR = "254 ~ffffffffffffffff"
ALMOST = "254 ~feffffffffffffff"
# What each needs; what is not named is 0.
GOOD = {
    "NONE": "values=1",
    "LIST 2 LIST 1 NONE NONE": "values=4",
    "LIST 5 PART LEAF 7 PART_BYTEARRAY LEAF 2 PART": "values=6 parts=3 leaves=8",
    f"LEAF {ALMOST}": f"values=1 leaves={2**64 - 1}",
    "LIST 3 NAMED 1 ~78 AGAIN 0 NAMED 0": "values=4 texts=2",
    f"{DATACLASS} NONE": "values=1 classes=1",
    "dataclass/m/C/x/y INSTANCE 0 1 2": "values=3 classes=1",
    "struct/m/C/x/y INSTANCE 0 1 2": "values=3 classes=1",
    "namedtuple/m/C INSTANCE 0": "values=1 classes=1",
    "enum/m/E MEMBER 0 'A'": "values=2 classes=1",
    "instance/m/C/x/y INSTANCE 0 1 ABSENT NONE": "values=4 classes=1",
    f"{DATACLASS} " * 256 + "INSTANCE ~fcff00": "values=1 classes=256",
    "LIST 2 MARK LIST 1 0 BACK 0": "values=4 marks=1",
    "LIST 3 MARK SET 0 MARK SET 0 BACK 1": "values=4 marks=2",
    "MARK LIST 2 MARK SET 0 BACK 0": "values=3 marks=2",
    "MARK LIST 1 LIST 1 BACK 1": "values=3 marks=1 before=1",
    "BACK 0": "values=1 before=1",
    "LIST 2 BACK 7 BACK 2": "values=3 before=8",
    f"BACK {ALMOST}": f"values=1 before={2**64 - 1}",
    f"MARK {DATACLASS} INSTANCE 0": "values=1 marks=1 classes=1",
    "MARK ITEM 4": "values=1 marks=1 items=5",
    "SHAPE 2 'x' 'y' RECORD 0 1 2": "values=3 shapes=1",
    "SHAPE 0 RECORD 0": "values=1 shapes=1",
    "SHAPE 1 'x' NONE": "values=1 shapes=1",
    "SHAPE 1 NAMED 1 ~78 RECORD 0 AGAIN 0": "values=2 shapes=1 texts=1",
    "SHAPE 2 UTF8 2 ~c3a9 WTF8 3 ~eda080 RECORD 0 0 0": "values=3 shapes=1",
    "LIST 2 SHAPE 1 'x' SHAPE 0 RECORD 0 0 RECORD 1": "values=4 shapes=2",
    "SHAPE 0 " * 256 + "RECORD ~fcff00": "values=1 shapes=256",
    "LIST #2000 " + "LIST 1 NONE " * 2000: "values=4001",  # what has ended is not deep any more
}
# What asks for values, and how many values it is with those before its last.
CONTAINERS = {
    **dict.fromkeys(["LIST 1", "TUPLE 1", "SET 1", "FROZENSET 1", "KIND uuid"], 1),
    **{"DICT 1 0": 2, "RANGE 0 0": 3, "SLICE 0 0": 3},
}
# Already the first token is refused.
REFUSED_TOKENS = {
    "a count that is cut off": "LIST 253 0 0",
    "a count of no size": "LIST 255 ~0000000000000000",
    "an int that is cut off": "INT32 0 0 0",
    "a list longer than all": "LIST 254 ~ffffffffffffff7f 1",
    "a list one longer than all": "LIST 4 0 0 0",
    "a dict longer than all": "DICT 254 ~ffffffffffffff7f 1",
    "a dict of twice 2^63": "DICT 254 ~0000000000000080",
    "packed numbers longer than all": "PACKED_LIST 0x18 254 ~ffffffffffffff1f 1",
    "packed numbers of eight times 2^61": "PACKED_LIST 0x18 254 ~0000000000000020",
    "packed numbers of no kind": "PACKED_LIST 0x13 1 0 0 0",
    "bytes longer than all": f"BYTES {FAR}",
    "a size longer than all": "SIZE 254 ~ffffffffffffff1f",
    "a size of eight times 2^61": "SIZE 254 ~0000000000000020",
    "a scalar of no bits": "SCALAR 0 0 1 0",
    "a scalar of some bits": "SCALAR 0 4 1 0 1",
    "a scalar of several": "SCALAR 0 8 2 0 1 1",
    "an array of no typecode": "ARRAY",
    "an array of a typecode of nothing": "ARRAY ~7a 0",
    "an array of no count": "ARRAY ~71",
    "an array of a part of an element": "ARRAY ~71 7 ~00000000000000",
    "an array of fewer bytes": "ARRAY ~62 7 ~000000000000",
    "an array of more bytes than all": "ARRAY ~62 254 ~ffffffffffffff7f 1",
    "a part that is an array of no typecode": "PART_ARRAY 0",
    "a class longer than all": f"CLASS 1 {FAR}",
}
REFUSED = {
    **REFUSED_TOKENS,
    "nothing": "",
    "a list that is cut off": "LIST 2 1",
    "more than its value": "1 2",
    "a class after its value": f"NONE {DATACLASS}",
    "a text that was not there": "LIST 2 NAMED 1 ~61 AGAIN 1",
    "a text that is yet to come": "LIST 2 AGAIN 0 NAMED 1 ~61",
    "a text without a number": "LIST 2 ASCII 1 ~61 AGAIN 0",
    "an instance of no class": "INSTANCE 0",
    "an instance of a class to come": f"INSTANCE 0 {DATACLASS}",
    "an instance of a class far away": f"{DATACLASS} INSTANCE {FAR}",
    "a member of no class": "MEMBER 0 'a'",
    "an instance without its fields": "dataclass/natives/Plain/a/b INSTANCE 0 1",
    "an instance of more than its fields": "dataclass/natives/Plain/a/b INSTANCE 0 1 2 3",
    "an instance without its dict": "instance/natives/Bare INSTANCE 0",
    "an instance of an enum": "enum/natives/Color INSTANCE 0 1",
    "a member of a dataclass": "dataclass/natives/Plain/a/b MEMBER 0 'a'",
    "a member of a state": "instance/natives/Bare MEMBER 0 'a'",
    "an enum with a field": "enum/natives/Color/x MEMBER 0 'RED'",
    "a class without a value": "dataclass/natives/Plain/a/b",
    "a class without a name": "CLASS 1 7 ~6e617469766573 NONE",
    "a class of no names": "CLASS 1 0 NONE",
    "a class of no kind": "9/natives/Plain/a/b NONE",
    "a class of kind 0": "0/natives/Plain/a/b NONE",
    "too many classes": "enum/natives/Color " * 257 + "NONE",
    "a leaf far away": f"LEAF {FAR}",
    "an item far away": f"ITEM {FAR}",
    "lists that claim all that follows": "LIST ~fce803 " * 300 + "1 " * 1000,
    "a list in a list that claim the same": "LIST 3 LIST 2 NONE NONE",
    "what was marked, far away": f"LIST 2 MARK 1 BACK {FAR}",
    "a list that holds itself": "MARK LIST 1 BACK 0",
    "a list in a list that holds itself": "MARK LIST 1 LIST 1 BACK 0",
    "a marked list in a list that holds itself": "MARK LIST 1 MARK LIST 1 BACK 0",
    "a list that holds itself after another mark": "MARK LIST 2 MARK SET 0 BACK 1",
    "a record that holds itself": "MARK SHAPE 1 'a' RECORD 0 BACK 0",
    "an instance that holds itself": "MARK dataclass/natives/Plain/a/b INSTANCE 0 1 BACK 0",
    "a mark of a mark": "MARK MARK LIST 0",
    "a mark of a mark behind a class": f"MARK {DATACLASS} MARK INSTANCE 0",
    "a mark of what was marked": "LIST 2 MARK LIST 0 MARK BACK 1",
    "a mark of itself": "MARK BACK 0",
    "a mark of nothing": "MARK",
    "a mark after the value": "NONE MARK",
    "a shape of nothing": "SHAPE 1 'a'",
    "a shape that is cut off": "SHAPE 2 'a'",
    "a shape longer than all": "SHAPE 254 ~ffffffffffffff7f 'a'",
    "a shape with a key that is no str": "SHAPE 1 5 RECORD 0 1",
    "a shape with a key that is a part": "SHAPE 1 PART RECORD 0 1",
    "a shape with a key without a hash": "SHAPE 1 LIST 0 RECORD 0 1",
    "a shape with a marked key": "SHAPE 1 MARK 'a' RECORD 0 1",
    "a shape with a key that was not there": "SHAPE 1 AGAIN 0 RECORD 0 1",
    "too many shapes": "SHAPE 1 'a' " * 257 + "RECORD 0 1",
    "a record of no shape": "RECORD 0",
    "a record of a shape that is yet to come": "LIST 2 RECORD 0 1 SHAPE 1 'a' RECORD 0 1",
    "a record of another shape": "SHAPE 1 'a' RECORD 1 0",
    "a record of a shape far away": f"SHAPE 1 'a' RECORD {FAR}",
    "a record that is short": "SHAPE 2 'a' 'b' RECORD 0 1",
    "a record that is long": "SHAPE 1 'a' RECORD 0 1 2",
    "a record too deep": "LIST 1 " * 1024 + "SHAPE 0 RECORD 0",
    "an instance too deep": "LIST 1 " * 1024 + f"{DATACLASS} INSTANCE 0",
    "a member too deep": "LIST 1 " * 1024 + f"{ENUM_CLASS} MEMBER 0 'RED'",
    "a slice too deep": "LIST 1 " * 1024 + "SLICE 1 1 1",
    **{f"a nest of {it} too deep": f"{it} " * 1025 + "NONE" for it in CONTAINERS},
    **{f"an empty list too deep in {it}": f"{it} " * 1024 + "LIST 0" for it in CONTAINERS},
}
for it, each in CONTAINERS.items():
    GOOD[f"{it} " * 1024 + "NONE"] = f"values={1024 * each + 1}"
    GOOD[f"{it} " * 1023 + "LIST 0"] = f"values={1023 * each + 1}"
    GOOD[f"{it} " * 1024 + "PACKED_LIST 1 1 0"] = f"values={1024 * each + 1}"
GOOD["LIST 1 " * 1023 + "SHAPE 0 RECORD 0"] = "values=1024 shapes=1"
GOOD["LIST 1 " * 1023 + f"{DATACLASS} INSTANCE 0"] = "values=1024 classes=1"
GOOD["LIST 1 " * 1023 + f"{ENUM_CLASS} MEMBER 0 'RED'"] = "values=1025 classes=1"

# One of each token, and what is read of it: the tag, and what its tag has: its kind, its count, the
# number itself (i), and where its bytes begin (data).
TOKENS = {
    "0": "INT64",
    "0x7f": "INT64 i=127",
    "0x80": "ASCII data=1",
    "0x82 ~6162": "ASCII count=2 data=1",
    "0xbf ~" + "61" * 63: "ASCII count=63 data=1",
    "NONE": "NONE",
    "FALSE": "FALSE",
    "TRUE": "TRUE",
    "INT8 0x80": "INT64 i=-128 data=1",
    "INT8 0x7f": "INT64 i=127 data=1",
    "INT16 ~ffff": "INT64 i=-1 data=1",
    "INT16 ~0080": f"INT64 i={-(2**15)} data=1",
    "INT16 ~ff7f": f"INT64 i={2**15 - 1} data=1",
    "INT32 ~00000080": f"INT64 i={-(2**31)} data=1",
    "INT32 ~ffffff7f": f"INT64 i={2**31 - 1} data=1",
    "INT64 ~0000000000000080": f"INT64 i={-(2**63)} data=1",
    "INT64 ~ffffffffffffff7f": f"INT64 i={2**63 - 1} data=1",
    "BIGINT 0": "BIGINT data=2",
    "BIGINT 9 ~000000000000000001": "BIGINT count=9 data=2",
    f"FLOAT {ONE}": "FLOAT data=1",
    f"COMPLEX {ONE} {ONE}": "COMPLEX data=1",
    "ASCII 3 ~616263": "ASCII count=3 data=2",
    "UTF8 2 ~c3a9": "UTF8 count=2 data=2",
    "WTF8 3 ~eda080": "WTF8 count=3 data=2",
    "NAMED 3 ~616263": "NAMED count=3 data=2",
    "AGAIN ~fc0001": "AGAIN count=256",
    "BYTES 4 ~00010203": "BYTES count=4 data=2",
    "BYTEARRAY 1 ~78": "BYTEARRAY count=1 data=2",
    "DTYPE 7 ~666c6f61743332": "DTYPE count=7 data=2",
    "DEVICE 6 ~637564613a31": "DEVICE count=6 data=2",
    "LIST 2 0 0": "LIST count=2",
    "TUPLE 2 0 0": "TUPLE count=2",
    "SET 2 0 1": "SET count=2",
    "FROZENSET 2 0 1": "FROZENSET count=2",
    "DICT 2 0 0 1 0": "DICT count=2",
    **{
        f"{tag} {kind} 2 ~{'00' * size * 2}": f"{tag} kind={kind} count=2 data=3"
        for tag in ("PACKED_LIST", "PACKED_TUPLE")
        for kind, size in zip((1, 2, 4, 17, 18, 20, 24, 40), (1, 2, 4, 1, 2, 4, 8, 8))
    },
    "RANGE 0 1 2": "RANGE",
    "SLICE 0 1 2": "SLICE",
    "dataclass/m/C NONE": "CLASS kind=1 count=3 data=3",
    "INSTANCE 2": "INSTANCE count=2",
    "ABSENT": "ABSENT",
    "MEMBER 2 'x'": "MEMBER count=2",
    f"SCALAR 2 64 1 0 {ONE}": "SCALAR count=8 data=5",
    f"SIZE 2 {ONE} {ONE}": "SIZE count=2 data=2",
    "PART": "PART",
    "PART_BYTEARRAY": "PART_BYTEARRAY",
    "KIND uuid NONE": "KIND kind=5",
    f"ARRAY ~71 16 {ONE} {ONE}": f"ARRAY kind={ord('q')} count=16 data=3",
    "PART_ARRAY ~64": f"PART_ARRAY kind={ord('d')}",
    "MARK LIST 1 0": "MARK",
    "BACK ~fc0001": "BACK count=256",
    "ITEM ~fc0001": "ITEM count=256",
    "SHAPE 2 'x' 'y' NONE": "SHAPE count=2",
    "RECORD ~fc0001": "RECORD count=256",
    # A count may have any width, and need not be the shortest.
    "LEAF 0xfb": "LEAF count=251",
    "LEAF ~fcffff": f"LEAF count={2**16 - 1}",
    "LEAF ~fdffffffff": f"LEAF count={2**32 - 1}",
    "LEAF ~fe0000000000000080": f"LEAF count={2**63}",
    "LEAF ~fe0300000000000000": "LEAF count=3",
}

# NumPy divides by a count of 0, which ends the process.
NO_UNITS = (
    "M8[0s] <m8[0s] M8[00s] M8[01s] M8[0generic] M8[5] M8[] M8[9999999999s] M8[s]s M8[".split()
)
PLAIN = "dataclass/natives/Plain"
WRONG_STREAMS = {
    "a key without a hash": "DICT 1 LIST 0 1",
    "a key with a key without a hash": "DICT 1 TUPLE 1 BYTEARRAY 0 1",
    "a member of a set without a hash": "SET 1 DICT 0",
    "a member of a frozenset without a hash": "FROZENSET 1 SET 0",
    "a marked list as a key": "LIST 2 MARK LIST 0 DICT 1 BACK 0 1",
    "a text that is no ASCII": "0x82 ~c3a9",
    "a long text that is no ASCII": "ASCII 9 ~616263646566676880",
    "a text that is no UTF-8": "UTF8 2 ~c3c3",
    "a surrogate in UTF-8": "UTF8 3 ~eda080",
    "a text that is no WTF-8": "WTF8 1 ~ff",
    "a named text that is no UTF-8": "NAMED 1 ~ff",
    "a range of texts": "RANGE 'a' 1 1",
    "a range that stands still": "RANGE 0 1 0",
    "a member that is not there": "enum/natives/Color MEMBER 0 'a'",
    "a member whose name is no text": "enum/natives/Color MEMBER 0 LIST 0",
    "a member whose name is too long a number": "enum/natives/Color MEMBER 0 BIGINT #5000 ~"
    + "01" * 5000,
    "a member whose name is too deep to be shown": "enum/natives/Color MEMBER 0 "
    + "LIST 1 " * 1000
    + "5",
    "a class that is no UTF-8": "CLASS 1 2 ~ffff NONE",
    "other fields": f"{PLAIN}/a/c INSTANCE 0 1 2",
    "fewer fields": f"{PLAIN}/a INSTANCE 0 1",
    "a field twice": f"{PLAIN}/a/b/a INSTANCE 0 1 2 3",
    "a dataclass as a namedtuple": "namedtuple/natives/Plain/a/b INSTANCE 0 1 2",
    "a namedtuple as a dataclass": "dataclass/natives/Pair/a/b INSTANCE 0 1 2",
    "an enum as a dataclass": "dataclass/natives/Color INSTANCE 0",
    "a scalar of no dtype": "SCALAR 9 64 1 0 ~0000000000000000",
    "a scalar that NumPy lacks": "SCALAR 4 16 1 0 1 1",
    "a truth value that is neither": "SCALAR 6 8 1 0 2",
    "a part that is not there": "PART",
    "an array that is not there": "PART_ARRAY ~71",
    "a leaf without a pickle": "LEAF 0",
    "what was marked, before any mark": "BACK 0",
    "what was marked, further back than any": "LIST 2 MARK LIST 0 BACK 1",
    "an item of no dict": "ITEM 0",
    "a shape with a key twice": "SHAPE 2 'a' 'a' RECORD 0 1 2",
    "a shape with a key twice, in other tokens": "SHAPE 2 'a' UTF8 1 ~61 RECORD 0 1 2",
    "a shape with a key that is no UTF-8": "SHAPE 1 UTF8 1 ~ff RECORD 0 1",
    # States of instances.
    "an absent value in a list": "LIST 1 ABSENT",
    "an absent root": "ABSENT",
    "an absent key": "DICT 1 ABSENT 1",
    "a slot that is absent where all are told": "dataclass/natives/Bare/a INSTANCE 0 ABSENT",
    "an absent dict": "instance/natives/Bare INSTANCE 0 ABSENT",
    "an absent field of a namedtuple": "namedtuple/natives/Pair/a/b INSTANCE 0 1 ABSENT",
    "fewer slots": "instance/natives/SlotsAlone/a/b INSTANCE 0 1 2 NONE",
    "other slots": "instance/natives/SlotsAlone/a/b/c INSTANCE 0 1 2 3 NONE",
    "a slot twice": "instance/natives/SlotsAlone/a/b/a INSTANCE 0 1 2 3 NONE",
    "slots of a class without": "instance/natives/Bare/a INSTANCE 0 1 NONE",
    "attributes where there is no dict": "instance/natives/SlotsAlone/a/b/_SlotsAlone__private "
    "INSTANCE 0 1 2 3 DICT 1 'a' 1",
    "attributes that are a list": "instance/natives/Bare INSTANCE 0 LIST 0",
    "attributes that are a number": "instance/natives/Bare INSTANCE 0 7",
    "a name where there is no dict": "dataclass/natives/SlotsAlone/a/b/_SlotsAlone__private/d "
    "INSTANCE 0 1 2 3 4",
    "a name that is a property": "dataclass/natives/Bare/__class__ INSTANCE 0 1",
    "the name of the dict itself": "dataclass/natives/Bare/__dict__ INSTANCE 0 DICT 0",
    "a struct by its state": "instance/natives/Struct/a/b INSTANCE 0 1 2 NONE",
    "a namedtuple by its state": "instance/natives/Pair INSTANCE 0 NONE",
    "an enum by its state": "instance/natives/Color INSTANCE 0 NONE",
    "a member of no flag by value": "enum/natives/Color MEMBER 0 1",
    "a member of more bits than its flag": "enum/natives/Bits MEMBER 0 BIGINT 9 ~010101010101010101",
    "names beyond the most": "/".join(["dataclass/natives/Bare", *(f"n{n}" for n in range(201))])
    + " NONE",
    "a member of a flag that is none": "enum/natives/Permission MEMBER 0 INT32 0 0 0 1",
    "a text beyond the longest": "dataclass/natives/Bare/" + "n" * 8192 + " NONE",
}
DAY = 86400 * 10**6
MOMENT, UTC = "~07d001020304050000 6", "KIND timezone 0"
# States of the standard library's types: what follows KIND.
WRONG_STATES = {
    "a factory that is none of the known": "defaultdict TUPLE 2 'eval' DICT 0",
    "a factory of another module": "defaultdict TUPLE 2 'collections.deque' DICT 0",
    "a factory that is a type of no use": "defaultdict TUPLE 2 'type' DICT 0",
    "a factory that is no text": "defaultdict TUPLE 2 5 DICT 0",
    "a factory that is no UTF-8": "defaultdict TUPLE 2 WTF8 3 ~eda080 DICT 0",
    "a factory with more behind it": "defaultdict TUPLE 2 'list\0' DICT 0",
    "a defaultdict of a list": "defaultdict TUPLE 2 NONE LIST 0",
    "a defaultdict of a defaultdict": "defaultdict TUPLE 2 NONE KIND ordered DICT 0",
    "a defaultdict of three": "defaultdict TUPLE 3 NONE DICT 0 1",
    "an OrderedDict of pairs": "ordered LIST 1 TUPLE 2 1 2",
    "an OrderedDict of one": "ordered KIND ordered DICT 0",
    "a Counter of a text": "counter 'aab'",
    "a Counter of a number": "counter 5",
    "a key without a hash": "counter DICT 1 LIST 0 1",
    "a deque longer than it may be": "deque TUPLE 2 1 LIST 2 1 2",
    "a deque of a length below 0": "deque TUPLE 2 INT8 0xff LIST 0",
    "a deque of a length beyond all": f"deque TUPLE 2 ={1 << 64} LIST 0",
    "a deque of a length that is True": "deque TUPLE 2 TRUE LIST 0",
    "a deque of a text": "deque TUPLE 2 NONE 'abc'",
    "a deque of a set": "deque TUPLE 2 NONE SET 0",
    "a UUID of 15 bytes": "uuid BYTES 15 ~" + "00" * 15,
    "a UUID of 18 bytes": "uuid BYTES 18 ~" + "00" * 18,
    "a UUID of a number": "uuid 5",
    "a UUID of a bytearray": "uuid BYTEARRAY 16 ~" + "00" * 16,
    "a UUID of no safety": "uuid BYTES 17 ~" + "00" * 16 + "02",
    "a path of bytes": "posix BYTES 1 65",
    "a path of a path": "path KIND posix 'a'",
    "a path of a list": "windows LIST 0",
    "a path of parts that are none": "windows TUPLE 2 'a' 5",
    "a datetime in month 13": "datetime BYTES 10 ~07d00d0203040500 0 6",
    "a datetime in month 0": "datetime BYTES 10 ~07d0800203040500 0 6",
    "a datetime of February 30": "datetime BYTES 10 ~07d0021e03040500 0 6",
    "a datetime in year 0": "datetime BYTES 10 ~0000020103040500 0 6",
    "a datetime in year 65535": "datetime BYTES 10 ~ffff020103040500 0 6",
    "a datetime at 24:00": "datetime BYTES 10 ~07d0010218000000 0 0",
    "a datetime of a million microseconds": "datetime BYTES 10 ~07d001020304050f 0x42 0x40",
    "a datetime of 9 bytes": "datetime BYTES 9 ~010203040506070809",
    "a datetime in no zone": f"datetime TUPLE 2 BYTES 10 {MOMENT} NONE",
    "a datetime in a zone that is a text": f"datetime TUPLE 2 BYTES 10 {MOMENT} 'UTC'",
    "a datetime in two zones": f"datetime TUPLE 3 BYTES 10 {MOMENT} {UTC} {UTC}",
    "a date of day 0": "date BYTES 4 ~07d00100",
    "a date of 5 bytes": "date BYTES 5 ~07d0010101",
    "a time at 23:60": "time BYTES 6 ~173c00000000",
    "a time at 127:00": "time BYTES 6 ~7f0000000000",
    "a time in a zone that is a date": "time TUPLE 2 BYTES 6 ~030405000006 KIND date BYTES 4 ~07d00102",
    **{
        f"a timedelta of {days} days, {seconds} s and {micros} us": "timedelta BYTES 12 ~"
        + struct.pack("<3i", days, seconds, micros).hex()
        for days, seconds, micros in (
            *((10**9, 0, 0), (-(10**9), 0, 0), (0, 86400, 0), (0, -1, 0), (0, 0, 10**6)),
        )
    },
    **{f"a timezone of {it} us": f"timezone ={it}" for it in (DAY, -DAY, 1 << 100)},
    "a timezone of True": "timezone TRUE",
    "a timezone with a name that is none": "timezone TUPLE 2 0 1",
    "a Decimal of a float": f"decimal FLOAT {ONE}",
    "a Decimal of words": "decimal 'many'",
    "a Decimal with too large an exponent": "decimal '1E+99999999999999999999'",
    **{
        f"a dtype of {it}": f"npdtype '{it}'"
        for it in 'i4,f8 (2,3)i4 __import__("os") < float32 i3 S9999999999 M8[eon]'.split()
        + NO_UNITS
    },
    "a dtype of a number": "npdtype 5",
    **{
        f"a time zone '{key}'": f"zoneinfo '{key}'"
        for key in (
            "",
            "/etc/passwd",
            "../x",
            "Europe/../../x",
            "Europe/",
            "a//b",
            ".",
            "a b",
            "a\0b",
            "é",
        )
    },
    "a time zone of a long name": "zoneinfo '" + "a" * 256 + "'",
    "a time zone with a dot": "zoneinfo 'a.b'",
    "no kind": "0 NONE",
    "a kind that is yet to come": "17 NONE",
    "the last kind": "255 NONE",
}
WRONG_STREAMS.update({name: f"KIND {state}" for name, state in WRONG_STATES.items()})

# Parts that do not fit: the stream, and the parts.
EIGHT = bytes(8)
WRONG_PARTS = {
    "too few": ("PART", [STR, STR]),
    "too many": ("LIST 2 PART PART", [STR]),
    "of another kind": ("PART_BYTEARRAY", [STR]),
    "no parts but pickles": ("PART", [PICKLE]),
    "no parts but values": ("PART", [(NONE, 0, b"")]),
    "no parts but nested values": ("PART", [(OBJECT, 0, b"\xc0")]),
    "an array of bytes": ("PART_ARRAY ~71", [(BYTES, 0, EIGHT)]),
    "an array of another typecode": ("PART_ARRAY ~71", [(BYTES, TYPECODE["d"], EIGHT)]),
    "an array of text": ("PART_ARRAY ~71", [STR]),
    "text with a typecode": ("PART", [(STR, TYPECODE["q"], EIGHT)]),
    "a typecode of nothing": ("PART_ARRAY ~71", [(BYTES, TYPECODE["z"], EIGHT)]),
    "a part of an element": ("PART_ARRAY ~71", [(BYTES, TYPECODE["q"], bytes(7))]),
    "another flag": ("PART_ARRAY ~71", [(BYTES, 1 << 20 | TYPECODE["q"], EIGHT)]),
    "an array for a bytearray": ("LIST 1 PART_BYTEARRAY", [(BYTES, TYPECODE["q"], EIGHT)]),
}

# ---- Frames that mean nothing --------------------------------------------------------------------


def two_objects(first, second):
    """A dict of two nested values of a part each, of two that there are."""
    parts = [item(STR, data=b"a part"), item(STR, data=b"a part")]
    objects = zip("ab", (first, second))
    return build(
        DICT, *(item(OBJECT, key, scalar=at | 1 << 32, data=b"\xdf") for key, at in objects), *parts
    )


LEAVES = entry(PICKLE, size=len(LIST))
WRONG = {
    "nothing": b"",
    "too short": b"RCF1",
    "garbage": b"\xff" * 200,
    "no entries": frame_of(VALUE, []),
    "leaf without pickle": frame_of(DICT, [entry(LEAF, KEYED)]),
    "leaf out of range": frame_of(DICT, [entry(LEAF, KEYED, 1), LEAVES], LIST),
    "leaf far out of range": frame_of(DICT, [entry(LEAF, KEYED, 2**62), LEAVES], LIST),
    "leaves of no list": frame_of(DICT, [entry(LEAF, KEYED), entry(PICKLE, size=4)], b"\x80\x02N."),
    "leaf as the value": frame_of(VALUE, [entry(LEAF), LEAVES], LIST),
    "two pickles": frame_of(DICT, [LEAVES] * 2, LIST),
    "item after the pickle": frame_of(DICT, [LEAVES, entry(NONE, KEYED)], LIST),
    "buffer without pickle": frame_of(DICT, [entry(BUFFER, size=4)], b"abcd"),
    "two values": frame_of(VALUE, [entry(NONE)] * 2),
    "item without key": frame_of(DICT, [entry(NONE)]),
    "a key twice": frame_of(DICT, [entry(NONE, KEYED)] * 2),
    "text that is no UTF-8": frame_of(VALUE, [entry(STR, size=2)], b"\xff\xff"),
    "buffers that share their bytes": frame_of(
        VALUE, [entry(PICKLE, size=1000)] + [entry(BUFFER, size=1000)] * 20, bytes(1000)
    ),
    "unknown kind": frame_of(VALUE, [entry(99)]),
    "gradient of integers": frame_of(
        VALUE, [entry(TENSOR, TORCH | REQUIRES_GRAD, size=8, dtype=INT64)], bytes(8)
    ),
    "a dtype of nobody": frame_of(VALUE, [entry(TENSOR, TORCH, size=8, dtype=(2, 8, 8))], bytes(8)),
    "int4 bit on bit": frame_of(VALUE, [entry(TENSOR, TORCH, size=1, dtype=(1, 4, 1))], bytes(1)),
    "bfloat16 of NumPy": frame_of(
        VALUE, [entry(TENSOR, NUMPY, size=2, dtype=(4, 16, 1))], bytes(2)
    ),
    "a part of two objects": two_objects(2, 2),
    "parts of two objects in disorder": two_objects(3, 2),
}


# ---- For C, and for the fuzzers ------------------------------------------------------------------


def told(raw):
    """What C has to print of a good frame: a line for the header, one for each entry."""
    frame = Frame(raw)
    meaning = frame.meaning()
    words = frame.words.values()
    yield (
        f"= {meaning['version']} {'0 dict value'.split().index(frame.root)} {frame.tag} "
        + " ".join(map(str, words))
    )
    for index, (data, shape, strides) in enumerate(frame.fields):
        at = HEADER.size + ENTRY.size * index
        is_ = types.SimpleNamespace(**dict(zip(FIELDS["entry"], ENTRY.unpack_from(raw, at))))
        key = raw[is_.key_offset : is_.key_offset + is_.key_bytes] if is_.key_bytes else b""
        yield (
            f"= {is_.kind} {is_.flags} '{key.hex()}' {is_.scalar} {is_.hash} {is_.code},{is_.bits},{is_.lanes} "
            f"{shape} {strides} {is_.placement} {is_.offset if is_.placement else 0} {is_.bytes} '{data.hex()}'"
        )


NEEDS = "values parts leaves items before texts marks shapes classes".split()


def frames_txt():
    """One frame a line, as the corpora of the fuzzers are written, and after # what is refused."""
    for name, raw, expected in cases():
        base = name.replace(":", " ").split()[0]
        if expected not in ("open", "version", "good"):
            expected = " ".join(str(NAMES[base].index(where)) for where in expected.split())
        yield f"{raw.hex()} # {name} # {expected}"
        if expected == "good":
            yield from told(raw)


def streams_txt():
    """One stream a line, and after # what it needs, in the order of NEEDS, or "refused"."""
    for tokens, needs in GOOD.items():
        given = dict(need.split("=") for need in needs.split())
        yield f"{stream(tokens).hex()} # " + " ".join(given.get(need, "0") for need in NEEDS)
    for tokens in REFUSED.values():
        yield f"{stream(tokens).hex()} # refused"


def tokens_txt():
    """One token and its values a line, and after # its tag, kind, count, number and data."""
    for tokens, meaning in TOKENS.items():
        tag, *given = meaning.split()
        given = dict(each.split("=") for each in given)
        values = " ".join(given.get(name, "0") for name in ("kind", "count", "i", "data"))
        yield f"{stream(tokens).hex()} # {getattr(T, tag)} {values}"
    for tokens in REFUSED_TOKENS.values():
        yield f"{stream(tokens).hex()} # refused"


def seeds(target):
    """What a fuzz target starts from, beside its corpus."""
    frames = [raw for _, raw, _ in cases()] + [*WRONG.values()]
    streams = [
        stream(tokens) for tokens in (*TOKENS, *GOOD, *REFUSED.values(), *WRONG_STREAMS.values())
    ]
    if target == "python":
        frames += [nested(tokens) for tokens in streams]
    return (
        streams if target == "object" else frames if target in ("frame", "dump", "python") else []
    )


def check():
    """Each frame has a name of its own, and the second reader the same opinion of it."""
    names = [name for name, _, _ in cases()]
    assert len(names) == len({*names}), [name for name in names if names.count(name) > 1]
    for name, raw, expected in cases():
        try:
            Frame(raw).meaning()
            found = "good"
        except Damaged as damage:
            found = str(damage)
        assert (found == "good") == (expected == "good"), f"{name}: {found}, not {expected}"
    for name, tokens in REFUSED.items():
        try:
            Frame(nested(tokens)).meaning()
        except Damaged:
            continue
        raise AssertionError(f"{name} was read")


def main(folder):
    sys.setrecursionlimit(10_000)
    check()
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (
        ("frames", frames_txt()),
        ("streams", streams_txt()),
        ("tokens", tokens_txt()),
    ):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
