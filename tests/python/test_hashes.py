# SPDX-License-Identifier: Apache-2.0
"""
Hashes that travel with tensors: what they are of, that they are right, and where they are found.
"""

import asyncio
import collections
import dataclasses
import hashlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import values
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import torch
from peers import WATCHDOG

import ringcast

pytestmark = pytest.mark.alike

try:
    ringcast.pack(0, hash="xxh3")
except ringcast.Error as missing:
    NO_XXH3 = str(missing)
else:
    NO_XXH3 = ""

needs_xxh3 = pytest.mark.skipif(bool(NO_XXH3), reason=NO_XXH3)


def content(value):
    """The bytes of a tensor or array in C order."""
    if torch and isinstance(value, torch.Tensor):
        return values.tensor_bytes(value)
    return np.ascontiguousarray(value).tobytes()


def sha(value):
    """As SGLang makes it of a feature tensor."""
    return int.from_bytes(hashlib.sha256(content(value)).digest()[:8], "big", signed=False)


def test_what_an_independent_implementation_gives_for_a_tensor():
    array = np.arange(5, dtype="<i2")
    digest = hashlib.sha256(b"\0\0\1\0\2\0\3\0\4\0").hexdigest()
    assert ringcast.pack({"a": array}, hash="sha256").hashes == {"a": int(digest[:16], 16)}
    # SHA-256 of nothing, as FIPS 180-4's examples have it.
    assert ringcast.pack(np.empty(0), hash="sha256").hashes == 0xE3B0C44298FC1C14


@needs_xxh3
def test_known_answers_of_xxh3():
    """Of the package xxhash; the last two are made of many pieces."""
    known = {
        0: 0x2D06800538D394C2,
        1: 0xC44BDFF4074EECDB,
        100: 0xC598146F967FA5EB,
        1000: 0x9FCE85B3BB725D4A,
        1 << 20: 0x699A06DBC4C02D45,
        3 << 20: 0x8CCAB539BA30C0FF,
    }
    for length, answer in known.items():
        numbers = np.arange(length, dtype=np.int64)
        assert (
            ringcast.pack((numbers * numbers >> 3).astype(np.uint8), hash="xxh3").hashes == answer
        )


@pytest.mark.parametrize("shape", [(3, 100_000), (700, 1001), (1, 5, 300, 800), (2, 3, 4)])
def test_pieces_of_any_layout_make_the_same_hash(shape):
    """Larger than a piece of either kind, whose borders then fall anywhere."""
    plain = np.random.default_rng(1).random(shape)
    padded = np.zeros((*shape[:-1], 2 * shape[-1]))
    padded[..., ::2] = plain
    layouts = [
        plain,
        plain.copy(order="F"),
        padded[..., ::2],
        plain[..., ::-1][..., ::-1],
        plain[::-1][::-1].copy("F"),
    ]
    for name in ["sha256"] + ([] if NO_XXH3 else ["xxh3"]):
        hashes = ringcast.pack(layouts, hash=name).hashes
        assert len(set(hashes)) == 1 and len(hashes) == len(layouts)
        assert name == "xxh3" or hashes[0] == sha(plain)
    reverse = plain[::-1]
    assert ringcast.pack(reverse, hash="sha256").hashes == sha(reverse)
    wide = np.broadcast_to(plain, (2, *shape))
    assert ringcast.pack(wide, hash="sha256").hashes == sha(wide)


# The others are nested values: test_values.py.
sendable = values.arrays.filter(
    lambda recipe: recipe[1] not in (">i4", "datetime64[s]", "longdouble")
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(sendable, *([values.tensors] if torch else [])))
def test_a_hash_is_of_the_bytes_in_c_order(recipe):
    value = values.cook(recipe)
    packed = ringcast.pack({"v": value, "n": [1, value]}, hash="sha256")
    assert packed.hashes == {"v": sha(value), "n": [sha(value)]}
    assert bytes(ringcast.pack(ringcast.unpack(packed), hash="sha256")) == bytes(packed)


# ---- Where they are ------------------------------------------------------------------------------


@dataclasses.dataclass
class Item:
    """What a serving engine has of an image, or of a sound."""

    modality: str
    feature: np.ndarray
    pad_value: int = 0


def items():
    return [Item("image", np.full((3, 4), number, np.float32)) for number in range(3)]


def test_a_dict_has_one_for_each_tensor_and_a_list_for_what_is_nested(ring):
    writer, reader = ring
    sent = {
        "ids": np.arange(4),
        "step": 7,
        "items": items(),
        "deep": {"x": [np.ones(2), "text" * 600, {"y": (np.zeros(1), np.zeros((0, 2)))}]},
        "nothing": [1, {"a": "b"}],
        "counter": collections.Counter("ab"),
        "name": "x" * 5000,
    }
    expected = {
        "ids": sha(sent["ids"]),
        "items": [sha(item.feature) for item in sent["items"]],
        "deep": [sha(np.ones(2)), sha(np.zeros(1)), sha(np.empty(0))],
    }
    writer.send(sent, 0, tag=3, hash="sha256")
    with reader.next(0) as frame:
        assert frame.hashes == expected and list(frame.hashes) == list(expected)
        assert frame["items"][1].feature[0, 0] == 1
        own = ringcast.unpack(frame)
        for item, hash_ in zip(own["items"], frame.hashes["items"]):
            assert sha(item.feature) == hash_
    packed = ringcast.pack(sent, hash="sha256")
    assert packed.hashes == expected
    writer.send(packed, 0)
    with reader.view(0) as obj:
        assert obj["step"] == 7
    writer.send(packed, 0)
    view = reader.view(0)
    with view as obj:
        assert view.hashes == expected and obj["step"] == 7
    with pytest.raises(ValueError, match="has ended"):
        view.hashes  # noqa: B018
    writer.send(sent, 0, hash="sha256")
    assert ringcast.pack(reader.recv(0), hash="sha256").hashes == expected
    with ringcast.Tap(writer.handle) as tap:
        writer.send(sent, 0, hash="sha256")
        assert tap.recv(0)["step"] == 7


def test_a_task_of_asyncio_sends_them_too():
    array = np.arange(5000)

    async def both(writer, reader):
        for _ in range(20):  # more than there is room for
            tasks.append(asyncio.ensure_future(writer.asend([array], WATCHDOG, hash="sha256")))
        for _ in range(20):
            await asyncio.sleep(0)
            while not reader.lag:
                await asyncio.sleep(0)
            with reader.next(0) as frame:
                assert frame.hashes == [sha(array)]
        await asyncio.gather(*tasks)
        with pytest.raises(ValueError, match="hash must be"):
            await writer.asend([array], hash="md5")

    tasks = []
    with ringcast.Writer(1 << 18) as writer, ringcast.Reader(writer.handle) as reader:
        asyncio.run(both(writer, reader))


def test_a_tensor_that_comes_again_has_its_hash_at_each_place_and_a_container_once():
    one, other = np.arange(4), np.ones(2)
    first, second, pair = sha(one), sha(other), [other, one]
    packed = ringcast.pack(
        {
            "a": one,
            "again": one,
            "in": [one, other, (other,)],
            "pair": pair,
            "pairs": [pair, pair, one],
        },
        hash="sha256",
    )
    assert packed.hashes == {
        "a": first,
        "again": first,
        "in": [first, second, second],
        "pair": [second, first],
        "pairs": [first],  # of `pair` the hashes are there already
    }
    assert ringcast.pack([one, one], hash="sha256").hashes == [first, first]


def test_a_value_that_is_no_dict_of_items():
    many = {f"k{number}": np.full(3, number) for number in range(100)}
    mixed = {"first": 1, **many}
    cases = [
        (np.arange(3), sha(np.arange(3))),
        (items(), [sha(item.feature) for item in items()]),
        (many, {key: sha(array) for key, array in many.items()}),
        (mixed, [sha(array) for array in many.values()]),
        (7, None),
        ("text", None),
        ([1, 2], None),
        ({}, {}),
        ({"a": 1}, {}),
        (collections.Counter(), None),
    ]
    for value, expected in cases:
        assert ringcast.pack(value, hash="sha256").hashes == expected
        assert ringcast.pack(value).hashes == ({} if isinstance(expected, dict) else None)


def test_what_pickle_sends_has_none():
    class_ = type("Odd", (), {"__module__": __name__, "__getstate__": lambda self: vars(self)})
    globals()["Odd"] = class_
    odd = class_()
    odd.array = np.arange(100_000)
    assert ringcast.pack({"a": odd, "b": np.arange(2)}, hash="sha256").hashes == {
        "b": sha(np.arange(2))
    }


def test_the_frame_is_the_same_but_for_the_hashes():
    sent = {"a": np.arange(3), "n": [np.ones((500, 1200))[:, ::2]], "text": "x" * 3000}
    plain, hashed = (bytearray(ringcast.pack(sent, hash=name)) for name in (None, "sha256"))
    assert len(plain) == len(hashed)
    for index in range(4):  # entries: their flags, and the hash
        for start, end in ((20, 24), (48, 56)):
            plain[48 + 64 * index + start : 48 + 64 * index + end] = bytes(end - start)
            hashed[48 + 64 * index + start : 48 + 64 * index + end] = bytes(end - start)
    assert plain == hashed


# ---- What is refused -----------------------------------------------------------------------------


def test_other_names_are_refused_and_nothing_is_sent(ring):
    writer, reader = ring
    for call in (
        lambda name: writer.send([1], 0, hash=name),
        lambda name: ringcast.pack([1], hash=name),
    ):
        for name in "md5", "", "SHA256":
            with pytest.raises(
                ValueError, match=f'hash must be "sha256", "xxh3" or None, not {name!r}'
            ):
                call(name)
        for name in 1, b"sha256", True:
            with pytest.raises(TypeError, match='hash must be "sha256", "xxh3" or None, not '):
                call(name)
    packed = ringcast.pack([1])
    for call in (
        lambda: writer.send(packed, 0, hash="sha256"),
        lambda: ringcast.pack(packed, hash="sha256"),
    ):
        with pytest.raises(ValueError, match="with the hashes that it was packed with"):
            call()
    assert reader.lag == 0
    assert ringcast.pack(packed, hash=None) is packed


OTHER_HASHLIB = {
    "one that fails leaves nothing open": """
class Broken:
    def update(self, data):
        raise MemoryError("none left")
hashlib.sha256 = Broken
import numpy as np, ringcast
with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
    for send in writer.send, lambda value, _, hash: ringcast.pack(value, hash=hash):
        try:
            send(np.arange(3), 0, hash="sha256")
        except MemoryError:
            print("told")
    writer.send(5, 0)
    print(reader.recv(0))
""",
    "one that keeps what it was given has no memory of the ring": """
class Keeping:
    def __init__(self):
        self.real = sha256()
    def update(self, data):
        kept.append(data)
        self.real.update(data)
    def digest(self):
        return self.real.digest()
kept, sha256, hashlib.sha256 = [], hashlib.sha256, Keeping
import numpy as np, ringcast
with ringcast.Writer(1 << 16) as writer:
    writer.send(np.arange(1000), 0, hash="sha256")
try:
    bytes(kept[0])
except ValueError as error:
    print("told", "told", 5 if "released" in str(error) else error)
""",
}


@pytest.mark.parametrize("program", OTHER_HASHLIB.values(), ids=OTHER_HASHLIB)
def test_another_hashlib_does_no_harm(program):
    command = [sys.executable, "-c", "import hashlib\n" + program]
    done = subprocess.run(command, check=False, timeout=WATCHDOG, capture_output=True, text=True)
    assert done.stdout.split() == ["told", "told", "5"], done.stderr


def test_threads_pack_one_value_at_once():
    array = np.random.default_rng(0).random(500_000)
    expected, found = sha(array), []
    names = ["sha256"] * 4 + ([] if NO_XXH3 else ["xxh3"] * 4)

    def pack(name):
        found.append((name, ringcast.pack([array], hash=name).hashes[0]))

    threads = [threading.Thread(target=pack, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(names) and len(set(found)) == len(set(names))
    assert ("sha256", expected) in found
