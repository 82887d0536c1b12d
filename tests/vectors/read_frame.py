# SPDX-License-Identifier: Apache-2.0
"""
Reads frames with nothing but `struct` (and `hashlib`): those of frames.json, which it checks against
what stands there, or those of files, whose meaning it prints.

It follows README.md and shares no code with the library.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

HEADER = struct.Struct("<IHHIIQQIIQ")
ENTRY = struct.Struct("<IIHBBBBHIIQQQQQ")
ROOTS = {1: "dict", 2: "value"}
KINDS = dict(
    enumerate("none bool int float str bytes tensor pickle buffer leaf error object".split(), 1)
)
# The typecodes of array.array, and the bytes of an element.
TYPECODES = dict(zip("bBhHeuwiIflLqQdFD", (1, 1, 2, 2, 2, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 16)))
FLAGS = (
    "keyed numpy torch requires_grad parameter readonly sha256 xxh3 padded cuda cupy jax".split()
)
PLACEMENTS = ["inline", "pool"]
HASHES, CUDA, LIBRARIES = 64 | 128, 512, 1024 | 2048
MAX_ENTRIES, MAX_NDIM, MAX_DEPTH, LARGEST = 1 << 24, 64, 1024, (1 << 63) - 1
MAX_CLASSES = MAX_SHAPES = 256


class Damaged(Exception):
    """The bytes are no frame of this version, or an entry breaks a rule."""


def require(condition, rule):
    if not condition:
        raise Damaged(rule)


def on_line(offset):
    """The first offset on a line, at `offset` or after it."""
    return (offset + 16 + 63) // 64 * 64 - 16


class Frame:
    def __init__(self, raw):
        self.raw = raw
        # Marks the bytes that mean something; the others are padding.
        self.used = bytearray(len(raw))
        self.parts = set()  # the entries that are parts of an object
        self.marks = []  # for each value that is marked, whether it is complete
        self.fields = []  # of each entry: its data, shape and strides, as they were found
        require(len(raw) >= HEADER.size, "shorter than a header")
        magic, self.version, root, self.tag, self.count, size, meta_bytes, *words = (
            HEADER.unpack_from(raw)
        )
        require(magic == int.from_bytes(b"RCF1", "little"), "magic")
        require(1 <= self.version <= 3, "version")
        require(root in ROOTS, "root")
        self.words = dict(zip(("slot", "epoch", "generation"), words))
        self.check_words(*words)
        require(size == len(raw), "length")
        require(self.count <= MAX_ENTRIES, "count")
        self.root = ROOTS[root]
        require(self.root == "dict" or self.count > 0, "a value needs an entry")
        self.meta = HEADER.size + ENTRY.size * self.count
        self.meta_end = self.meta + meta_bytes
        require(self.meta_end <= size, "meta area")
        self.used[: self.meta] = b"\1" * self.meta

    def check_words(self, slot, epoch, generation):
        """Those that say when tensors of devices are there: all of it or nothing."""
        require(epoch or slot == generation == 0, "words of no epoch")
        require(not epoch or (generation and self.version >= 3), "words where there are none")

    def span(self, offset, size, start, end, what):
        """The bytes at `offset`; what is empty has offset 0."""
        if size == 0:
            require(offset == 0, f"{what}: empty, with an offset")
            return b""
        require(start <= offset and offset + size <= end, f"{what}: outside its area")
        self.used[offset : offset + size] = b"\1" * size
        return self.raw[offset : offset + size]

    def entry(self, index):
        fields = ENTRY.unpack_from(self.raw, HEADER.size + ENTRY.size * index)
        key_offset, key_bytes, kind, ndim, placement, code, bits, lanes, dims_offset, flags = (
            fields[:10]
        )
        offset, size, scalar, hashed, reserved = fields[10:]
        require(reserved == 0, "reserved")
        require(kind in KINDS, "kind")
        typecode, flags = flags >> 24, flags & 0xFFFFFF
        require(flags < 1 << len(FLAGS), "flags")
        self.check_typecode(kind, typecode, size)
        self.check_hash(kind, flags, hashed)
        self.check_device(kind, flags)
        kind, meaning = KINDS[kind], {"kind": KINDS[kind]}
        if flags & 1:
            require(self.root == "dict", "a key without a dict")
            meaning["key"] = self.span(
                key_offset, key_bytes, self.meta, self.meta_end, "key"
            ).decode()
        else:
            require(key_offset == key_bytes == 0, "a key that is none")
        padded = bool(flags & 256)
        require(
            not padded or (self.version >= 2 and kind == "tensor"), "padding where there is none"
        )
        place = self.place(placement, flags, offset, size)
        elsewhere = placement != 0
        data = (
            b""
            if elsewhere
            else self.span(offset, size, on_line(self.meta_end), len(self.raw), "data")
        )
        if kind == "tensor":
            require(size == 0 or elsewhere or offset % 64 == 48, "a tensor off its line")
            require(scalar == 0, "a scalar where there is none")
            meaning["dtype"] = [code, bits, lanes]
            meaning["shape"], meaning["strides"] = self.dimensions(ndim, dims_offset)
            expected, c_order = tensor_bytes(
                **{k: meaning[k] for k in ("dtype", "shape", "strides")}, padded=padded
            )
            require(size == expected, "tensor's length")
            require(c_order or not elsewhere, "a tensor elsewhere that is not in C order")
            meaning.update(place or {"data": data.hex()})
        else:
            require(
                ndim == dims_offset == code == bits == lanes == 0, "dimensions where there are none"
            )
            meaning.update(
                self.object(offset, scalar, data)
                if kind == "object"
                else plain(kind, offset, scalar, data)
            )
        shape, strides = meaning.get("shape", []), meaning.get("strides", [])
        self.fields.append((data, shape, strides))
        if flags & HASHES:
            meaning["hash"] = f"{hashed:016x}"
        named = [name for bit, name in enumerate(FLAGS) if bit > 0 and flags >> bit & 1]
        if typecode:
            meaning["typecode"] = chr(typecode)
        return {**meaning, "flags": named} if named else meaning

    def check_typecode(self, kind, typecode, size):
        if typecode == 0:
            return
        require(KINDS[kind] == "bytes" and self.version >= 2, "a typecode of what is no array")
        require(chr(typecode) in TYPECODES, "typecode")
        require(size % TYPECODES[chr(typecode)] == 0, "a part of an element")

    def place(self, placement, flags, offset, size):
        """Where a tensor's bytes are that are not in the frame, or None."""
        require(placement < len(PLACEMENTS), "placement")
        name = PLACEMENTS[placement]
        if name == "inline":
            return None
        require(
            flags & CUDA and self.words["epoch"],
            "a tensor elsewhere, of no device or without words",
        )
        require(size > 0 and offset + size < 1 << 64, "bytes elsewhere")
        return {"placement": name, "offset": offset, "bytes": size}

    def check_device(self, kind, flags):
        libraries = flags & LIBRARIES
        require(
            not flags & (CUDA | LIBRARIES) or (KINDS[kind] == "tensor" and self.version >= 3),
            "what has no device",
        )
        require(flags & CUDA or not libraries, "a library's array, and of no device")
        require(libraries != LIBRARIES, "an array of two libraries")

    def check_hash(self, kind, flags, hashed):
        require(flags & HASHES or hashed == 0, "a hash, and no flag says which")
        require(flags & HASHES != HASHES, "two hashes")
        require(
            not flags & HASHES or (KINDS[kind] == "tensor" and self.version >= 2),
            "a hash where there is none",
        )

    def object(self, offset, scalar, data):
        first, parts = scalar & 0xFFFFFFFF, scalar >> 32
        require(self.version >= 2, "a nested value in a frame of version 1")
        require(first <= self.count and parts <= self.count - first, "parts that are not there")
        require(data and offset % 8 == 0, "a nested value without bytes, or off 8 bytes")
        stream = Stream(self, data, first)
        value = stream.value(0)
        require(stream.at == len(data), "bytes after the value")
        require(stream.part == first + parts, "parts that are not used")
        for index in range(first, first + parts):
            kind, flags = self.kind_and_flags(index)
            is_part = kind in ("tensor", "str", "bytes") and not flags & 1
            require(is_part, "an entry that is no part")
            require(index not in self.parts, "a part of two objects")
            self.parts.add(index)
        return {"first": first, "parts": parts, "value": value}

    def kind_and_flags(self, index):
        fields = ENTRY.unpack_from(self.raw, HEADER.size + ENTRY.size * index)
        return KINDS.get(fields[2]), fields[9]

    def dimensions(self, ndim, dims_offset):
        require(ndim <= MAX_NDIM, "ndim")
        require(dims_offset % 8 == 0, "dimensions off 8 bytes")
        packed = self.span(dims_offset, 16 * ndim, self.meta, self.meta_end, "dimensions")
        dims = list(struct.unpack(f"<{2 * ndim}q", packed))
        return dims[:ndim], dims[ndim:]

    def meaning(self):
        entries = [self.entry(i) for i in range(self.count)]
        device = {"device": self.words} if self.words["epoch"] else {}
        return {
            "version": self.version,
            "root": self.root,
            "tag": self.tag,
            **device,
            "entries": entries,
        }


def tensor_bytes(dtype, shape, strides, padded):
    """What the data's length must be, and whether they are in C order."""
    code, bits, lanes = dtype
    width = bits * lanes
    require(code <= 17 and width > 0, "dtype")
    if padded:
        require(width % 8 != 0, "nothing to pad")
        width = (width + 7) // 8 * 8
    require(min(shape, default=0) >= 0, "negative dimension")
    require(min(strides, default=0) >= 0, "negative stride")
    count, c_order, empty = 1, True, 0 in shape
    for size, stride in zip(reversed(shape), reversed(strides)):
        c_order = c_order and (size == 1 or stride == count)
        count *= size or 1
    require(count <= LARGEST, "too many elements")
    packed = 0 if empty else (count * width + 7) // 8
    require(packed <= LARGEST, "too many bytes")
    if empty or c_order:
        return packed, c_order
    require(width % 8 == 0, "less than bytes, and not in C order")
    extent = (sum((size - 1) * stride for size, stride in zip(shape, strides)) + 1) * (width // 8)
    require(packed <= extent, "elements share their bytes")
    return extent, False


def plain(kind, offset, scalar, data):
    if kind in ("none", "bool", "int", "float", "leaf"):
        require(not data, "data where there is none")
        if kind == "none":
            require(scalar == 0, "none")
            return {}
        if kind == "bool":
            require(scalar <= 1, "bool")
            return {"value": bool(scalar)}
        if kind == "float":
            return {"bits": f"{scalar:016x}"}
        require(kind == "int" or scalar <= LARGEST, "leaf")
        return {"value": struct.unpack("<q", struct.pack("<Q", scalar))[0]}
    require(offset % 8 == 0, "data off 8 bytes")
    require(scalar == 0, "a scalar where there is none")
    return {"text": data.decode()} if kind in ("str", "error") else {"data": data.hex()}


NAMED = "ascii utf8 wtf8 bytes bytearray list tuple set frozenset dict packed_list packed_tuple range slice".split()
TAGS = "none false true int8 int16 int32 int64 bigint float complex".split() + NAMED
TAGS += (
    "class instance member scalar dtype device size part part_bytearray leaf named again".split()
)
TAGS += "mark back item shape record absent kind array part_array".split()
PACKED = dict(zip((0x01, 0x02, 0x04, 0x11, 0x12, 0x14, 0x18, 0x28), [*"BHIbhiq", "float"]))
CLASSES = {1: "dataclass", 2: "struct", 3: "namedtuple", 4: "enum", 5: "instance"}


def number(packed):
    return {"float": packed[::-1].hex()}


class Stream:
    """What an object entry holds: one value, a token at a time."""

    def __init__(self, frame, raw, part):
        self.frame, self.raw, self.at, self.part = frame, raw, 0, part
        self.classes, self.texts, self.shapes = [], [], []

    def take(self, size):
        require(size <= len(self.raw) - self.at, "a token is cut off")
        self.at += size
        return self.raw[self.at - size : self.at]

    def count(self, each=1):
        """A count of what takes `each` bytes or more."""
        count = self.take(1)[0]
        if count >= 252:
            require(count < 255, "a count of too many bytes")
            count = int.from_bytes(self.take(2 << (count - 252)), "little")
        require(count * each <= len(self.raw) - self.at, "more is counted than there is")
        return count

    def values(self, count, depth):
        require(depth < MAX_DEPTH, "too deep")
        return [self.value(depth + 1) for _ in range(count)]

    def text(self, encoding, size):
        raw, surrogates = self.take(size), encoding == "wtf8"
        try:
            return raw.decode("utf-8", "surrogatepass") if surrogates else raw.decode(encoding)
        except UnicodeDecodeError:
            raise Damaged(f"text that is no {encoding}") from None

    def value(self, depth):
        tag = self.take(1)[0]
        if tag < 0x80:
            return tag
        if tag < 0xC0:
            return self.text("ascii", tag - 0x80)
        require(tag - 0xC0 < len(TAGS), "unknown tag")
        name = TAGS[tag - 0xC0]
        if name in ("class", "shape"):
            (self.define if name == "class" else self.shape)()
            return self.value(depth)
        return self.read(name, depth)

    def read(self, name, depth):
        match name:
            case "none" | "false" | "true":
                return {"none": None, "false": False, "true": True}[name]
            case "int8" | "int16" | "int32" | "int64":
                return int.from_bytes(self.take(int(name[3:]) // 8), "little", signed=True)
            case "bigint":
                return {"int": hex(int.from_bytes(self.take(self.count()), "little", signed=True))}
            case "float":
                return number(self.take(8))
            case "complex":
                return {name: [number(self.take(8))["float"] for _ in range(2)]}
            case "ascii" | "utf8" | "wtf8":
                return self.text(name, self.count())
            case "named":
                self.texts.append(self.text("utf-8", self.count()))
                return self.texts[-1]
            case "again":
                return self.known(self.texts, "a text")
            case "bytes" | "bytearray":
                return {name: self.take(self.count()).hex()}
            case "list":
                return self.values(self.count(), depth)
            case "tuple" | "set" | "frozenset":
                return {name: self.values(self.count(), depth)}
            case "range" | "slice":
                return {name: self.values(3, depth)}
            case "dict":
                flat = self.values(2 * self.count(2), depth)
                return {name: [list(pair) for pair in zip(flat[::2], flat[1::2])]}
            case "record":
                keys = self.known(self.shapes, "a shape")
                return {"dict": [list(pair) for pair in zip(keys, self.values(len(keys), depth))]}
            case "packed_list" | "packed_tuple":
                numbers = self.packed()
                return numbers if name == "packed_list" else {"tuple": numbers}
            case "instance" | "member":
                return self.instance(name == "member", depth)
            case "absent":
                return {name: True}
            case "scalar":
                code, bits, lanes = struct.unpack("<BBH", self.take(4))
                require(bits > 0 and bits % 8 == 0 and lanes == 1, "a scalar that is no bytes")
                return {name: [code, bits, lanes], "data": self.take(bits // 8).hex()}
            case "dtype" | "device":
                return {f"torch.{name}": self.text("utf-8", self.count())}
            case "size":
                count = self.count(8)
                return {"torch.Size": list(struct.unpack(f"<{count}q", self.take(8 * count)))}
            case "part" | "part_bytearray" | "part_array":
                more = {"bytearray": True} if name == "part_bytearray" else {}
                if name == "part_array":
                    more = {"array": self.typecode()}
                self.part += 1
                return {"part": self.part - 1, **more}
            case "leaf":
                index = self.count(0)
                require(index < (1 << 64) - 1, "a leaf of no list")
                return {name: index}
            case "mark":
                return self.mark(depth)
            case "back":
                number_ = len(self.frame.marks) - 1 - self.count(0)
                is_there = number_ >= 0 and self.frame.marks[number_]
                require(is_there, "back to a value that is not there, or not complete")
                return {name: number_}
            case "item":
                return {name: self.item()}
            case "kind":
                return {name: self.take(1)[0], "state": self.values(1, depth)[0]}
            case "array":
                code, data = self.typecode(), self.take(self.count())
                require(len(data) % TYPECODES[code] == 0, "a part of an element")
                return {name: code, "data": data.hex()}

    def known(self, of, what):
        index = self.count(0)
        require(index < len(of), f"{what} that is not there")
        return of[index]

    def define(self):
        kind, names = self.take(1)[0], self.text("utf-8", self.count()).split("\0")
        require(kind in CLASSES and len(self.classes) < MAX_CLASSES, "class")
        require(len(names) >= 2 and (kind != 4 or len(names) == 2), "names of a class")
        self.classes.append((CLASSES[kind], names[:2], names[2:] + ["__dict__"] * (kind == 5)))

    def instance(self, is_member, depth):
        kind, names, fields = self.known(self.classes, "a class")
        require((kind == "enum") == is_member, "a class of another kind")
        if is_member:
            return {kind: names, "member": self.values(1, depth)[0]}
        pairs = zip(fields, self.values(len(fields), depth))
        return {kind: names, "fields": [list(pair) for pair in pairs]}

    def shape(self):
        keys = []
        require(len(self.shapes) < MAX_SHAPES, "too many shapes")
        for _ in range(self.count()):
            tag = self.raw[self.at] if self.at < len(self.raw) else 0
            is_text = 0x80 <= tag < 0xC0 or tag in (0xCA, 0xCB, 0xCC, 0xE2, 0xE3)
            require(is_text, "a key that is no text")
            keys.append(self.value(0))
        require(len(keys) == len({*keys}), "a key twice")
        self.shapes.append(keys)

    def mark(self, depth):
        number_, marks = len(self.frame.marks), self.frame.marks
        marks.append(False)
        value = self.value(depth)
        is_marked = isinstance(value, dict) and ("mark" in value or "back" in value)
        require(not is_marked, "a mark of what is marked")
        marks[number_] = True
        return {"mark": number_, "value": value}

    def item(self):
        index = self.count(0)
        require(self.frame.root == "dict" and index < self.frame.count, "an item that is not there")
        kind, flags = self.frame.kind_and_flags(index)
        require(kind in ("tensor", "str", "bytes") and flags & 1, "an entry that is no such item")
        return index

    def packed(self):
        kind = self.take(1)[0]
        require(kind in PACKED, "packed numbers of an unknown kind")
        size = kind & 15
        count = self.count(size)
        raw = self.take(count * size)
        if PACKED[kind] == "float":
            return [number(raw[at : at + size]) for at in range(0, len(raw), size)]
        return list(struct.unpack(f"<{count}{PACKED[kind]}", raw))

    def typecode(self):
        code = chr(self.take(1)[0])
        require(code in TYPECODES, "typecode")
        return code


def hashes_are_wrong(meaning):
    """Whether a tensor's hash is not what it says; of its data as it is here, which for these is C
    order."""
    hashed = [entry for entry in meaning["entries"] if "sha256" in entry.get("flags", [])]
    return any(
        hashlib.sha256(bytes.fromhex(entry["data"])).hexdigest()[:16] != entry["hash"]
        for entry in hashed
        if "data" in entry
    )


def check(expected):
    """What is wrong with one stored frame, or None."""
    raw = bytes.fromhex(expected.pop("frame"))
    expected.pop("about")
    try:
        frame = Frame(raw)
        found = frame.meaning()
    except Damaged as rule:
        return f"refused: {rule}"
    # In Python 1 is true.
    if json.dumps(found, sort_keys=True) != json.dumps(expected, sort_keys=True):
        return f"means {found}, not {expected}"
    if hashes_are_wrong(found):
        return "a hash is not that of the data"
    if any(byte for byte, used in zip(raw, frame.used) if not used):
        return "padding is not zero"
    return None


def stored():
    return json.loads(Path(__file__).with_name("frames.json").read_text(encoding="utf-8"))


def main(arguments):
    sys.setrecursionlimit(5 * MAX_DEPTH)
    sys.stdout.reconfigure(errors="backslashreplace")  # JSON's escapes, as it happens
    for name in arguments:
        meaning = Frame(Path(name).read_bytes()).meaning()
        print(json.dumps(meaning, ensure_ascii=False, indent=2))
    if arguments:
        return 0
    failures = {name: wrong for name, frame in stored().items() if (wrong := check(frame))}
    for name, wrong in failures.items():
        print(f"{name}: {wrong}")
    print(f"{len(stored())} frames, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
