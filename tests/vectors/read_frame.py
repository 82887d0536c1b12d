# SPDX-License-Identifier: Apache-2.0
"""Reads the frames beside it with nothing but `struct`, and checks them against their .json.

It follows README.md and shares no code with the library. Run without arguments it checks every vector of its own
folder, and exits with 1 if one differs; given frames, it prints what they mean.
"""

import json
import struct
import sys
from pathlib import Path

HEADER = struct.Struct("<IHHIIQQ16s")
ENTRY = struct.Struct("<IIHBBBBHIIQQQ16s")
ROOTS = {1: "dict", 2: "value"}
KINDS = dict(enumerate("none bool int float str bytes tensor pickle buffer leaf error".split(), 1))
FLAGS = "keyed numpy torch requires_grad parameter readonly padded".split()
EMPTY = bytes(16)
MAX_ENTRIES, MAX_NDIM, LARGEST = 1 << 24, 64, (1 << 63) - 1


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
        self.used = bytearray(len(raw))  # marks the bytes that mean something; the others are padding
        require(len(raw) >= HEADER.size, "shorter than a header")
        magic, self.version, root, self.tag, self.count, size, meta_bytes, reserved = HEADER.unpack_from(raw)
        require(magic == int.from_bytes(b"RCF1", "little"), "magic")
        require(self.version in (1, 2), "version")
        require(root in ROOTS, "root")
        require(reserved == EMPTY, "reserved field of the header")
        require(size == len(raw), "length")
        require(self.count <= MAX_ENTRIES, "count")
        self.root = ROOTS[root]
        require(self.root == "dict" or self.count > 0, "a value needs an entry")
        self.meta = HEADER.size + ENTRY.size * self.count
        self.meta_end = self.meta + meta_bytes
        require(self.meta_end <= size, "meta area")
        self.used[: self.meta] = b"\1" * self.meta

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
        key_offset, key_bytes, kind, ndim, placement, code, bits, lanes, dims_offset, flags = fields[:10]
        offset, size, scalar, reserved = fields[10:]
        require(kind in KINDS, "kind")
        require(placement == 0, "placement")
        require(reserved == EMPTY, "reserved field of an entry")
        require(flags < 1 << len(FLAGS), "flags")
        kind, meaning = KINDS[kind], {"kind": KINDS[kind]}
        if flags & 1:
            require(self.root == "dict", "a key without a dict")
            meaning["key"] = self.span(key_offset, key_bytes, self.meta, self.meta_end, "key").decode()
        else:
            require(key_offset == key_bytes == 0, "a key that is none")
        padded = bool(flags & 64)
        require(not padded or (self.version >= 2 and kind == "tensor"), "padding where there is none")
        data = self.span(offset, size, on_line(self.meta_end), len(self.raw), "data")
        if kind == "tensor":
            require(size == 0 or offset % 64 == 48, "a tensor off its line")
            require(scalar == 0, "a scalar where there is none")
            meaning["dtype"] = [code, bits, lanes]
            meaning["shape"], meaning["strides"] = self.dimensions(ndim, dims_offset)
            expected = tensor_bytes(**{k: meaning[k] for k in ("dtype", "shape", "strides")}, padded=padded)
            require(size == expected, "tensor's length")
            meaning["data"] = data.hex()
        else:
            require(ndim == dims_offset == code == bits == lanes == 0, "dimensions where there are none")
            meaning.update(plain(kind, offset, scalar, data))
        named = [name for bit, name in enumerate(FLAGS) if bit > 0 and flags >> bit & 1]
        return {**meaning, "flags": named} if named else meaning

    def dimensions(self, ndim, dims_offset):
        require(ndim <= MAX_NDIM, "ndim")
        require(dims_offset % 8 == 0, "dimensions off 8 bytes")
        packed = self.span(dims_offset, 16 * ndim, self.meta, self.meta_end, "dimensions")
        dims = list(struct.unpack(f"<{2 * ndim}q", packed))
        return dims[:ndim], dims[ndim:]

    def meaning(self):
        entries = [self.entry(i) for i in range(self.count)]
        return {"root": self.root, "tag": self.tag, "entries": entries}


def tensor_bytes(dtype, shape, strides, padded):
    """What the data's length must be."""
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
        return packed
    require(width % 8 == 0, "less than bytes, and not in C order")
    extent = (sum((size - 1) * stride for size, stride in zip(shape, strides)) + 1) * (width // 8)
    require(packed <= extent, "elements share their bytes")
    return extent


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


def check(path):
    """Says what is wrong with one vector, or None."""
    expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    expected.pop("about")
    damaged, raw = expected.pop("damaged"), path.read_bytes()
    try:
        frame = Frame(raw)
        found = frame.meaning()
    except Damaged as rule:
        return None if damaged else f"refused: {rule}"
    if damaged:
        return "damaged, but was read"
    if found != expected:
        return f"means {found}, not {expected}"
    if any(byte for byte, used in zip(raw, frame.used) if not used):
        return "padding is not zero"
    return None


def main(arguments):
    if arguments:
        for name in arguments:
            print(json.dumps(Frame(Path(name).read_bytes()).meaning(), ensure_ascii=False, indent=2))
        return 0
    paths = sorted(Path(__file__).parent.glob("*.bin"))
    failures = {path.stem: wrong for path in paths if (wrong := check(path))}
    for name, wrong in failures.items():
        print(f"{name}: {wrong}")
    print(f"{len(paths)} vectors, {len(failures)} failures")
    return 1 if failures or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
