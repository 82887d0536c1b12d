# SPDX-License-Identifier: Apache-2.0
"""DLPack's exchange API: when it is used, and what becomes of tensors where it is another or fails."""

import contextlib
import ctypes
import gc

import pytest
import values
from links import Reads, by_exchange, linked, reads
from needs import torch

import ringcast

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = object
if not hasattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__"):
    pytest.skip("torch is not installed here, or has no DLPack exchange API", allow_module_level=True)

pytestmark = pytest.mark.alike


@pytest.mark.parametrize(
    "switch, used",
    [
        ("", True),
        ("dlpack_api", False),
        ("spin,dlpack_api", False),
        (" dlpack_api , spin", False),
        ("spin", True),
    ],
)
def test_the_exchange_api_is_used_unless_switched_off(monkeypatch, switch, used):
    monkeypatch.setenv("RINGCAST_DISABLE", switch)
    with linked() as link:
        assert by_exchange(link) == used


@pytest.fixture
def exchange(monkeypatch):
    monkeypatch.setenv("RINGCAST_DISABLE", "")
    with linked() as link:
        yield link


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(function)


def test_no_mode_of_torch_comes_between(exchange):
    for mode in (Reads(), torch.no_grad(), torch.device("meta"), Refuses()):
        exchange.writer.send({"t": torch.arange(3), "i": torch.arange(3, dtype=torch.uint8)}, 0)
        with mode:
            got = exchange.reader.recv(0)
        assert type(got["t"]) is torch.Tensor and got["t"].tolist() == got["i"].tolist() == [0, 1, 2]
        if isinstance(mode, Reads):
            assert not mode.names


# ---- Another API, or one that fails --------------------------------------------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("earlier", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_of", ctypes.c_void_p),
        ("make", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


MAKE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Managed), ctypes.POINTER(ctypes.c_void_p))
DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
ADDRESS = pointer_of(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
ALIVE = [b"dlpack_exchange_api", b"another"]  # for as long as the capsules


def torchs_table():
    return Table.from_buffer_copy(ctypes.string_at(ADDRESS, ctypes.sizeof(Table)))


@contextlib.contextmanager
def linked_with(monkeypatch, table, name=0):
    """With a torch that offers this table."""
    ALIVE.append(table)
    monkeypatch.setenv("RINGCAST_DISABLE", "")
    with monkeypatch.context() as patch:
        capsule = table if isinstance(table, int) else new_capsule(ctypes.addressof(table), ALIVE[name], None)
        patch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", capsule)
        with linked() as link:
            yield link


def versions():
    newer_of_ours, newer, older, deaf, dumb, later = (torchs_table() for _ in range(6))
    newer_of_ours.version[0], newer_of_ours.earlier = 2, ADDRESS
    newer_of_ours.make = newer_of_ours.describe = 1  # of no use to us, and never called
    newer.version[0] = 2
    older.version[1] = 2
    deaf.describe, dumb.make = None, None
    later.version[1] = 99
    return {
        "later, of the same major": (later, True),
        "newer, with ours behind it": (newer_of_ours, True),
        "newer": (newer, False),
        "older": (older, False),
        "without one function": (deaf, False),
        "without the other": (dumb, False),
        "a number, as it once was": (7, False),
    }


@pytest.mark.parametrize("name", versions())
def test_only_a_version_that_is_known_is_used(monkeypatch, name):
    table, used = versions()[name]
    with linked_with(monkeypatch, table) as link:
        assert by_exchange(link) == used


def test_a_capsule_of_another_name_is_not_opened(monkeypatch):
    with linked_with(monkeypatch, torchs_table(), name=1) as link:
        assert not by_exchange(link)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


# A function of two pointers that raises ValueError, gives -1, and touches neither: the first is no capsule.
REFUSE = address(ctypes.pythonapi.PyCapsule_SetContext)


def drop(tensor, out):
    """Without an exception, even."""
    DELETER(tensor.contents.deleter)(ctypes.addressof(tensor.contents))
    return -1


def drop_and_copy(tensor, out):
    copy = torch.ones(3)
    ALIVE.append(copy)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(copy))
    out[0] = id(copy)
    drop(tensor, out)
    return 0


def refuse_floats(tensor, out):
    return -1 if tensor.contents.tensor.dtype[0] == 2 else MAKE(torchs_table().make)(tensor, out)


FAILURES = {
    "refuses": REFUSE,
    "drops it": drop,
    "drops it for a copy": drop_and_copy,
    "forgets it": lambda *_: 0,
    "refuses floats": refuse_floats,
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("size", [3, 50_000])
def test_a_tensor_is_made_in_another_way_if_this_one_fails(monkeypatch, name, size):
    table, failure = torchs_table(), FAILURES[name]
    if not isinstance(failure, int):
        ALIVE.append(MAKE(failure))
        failure = address(ALIVE[-1])
    table.make = failure
    before = ringcast.recycling().lent
    with linked_with(monkeypatch, table) as link:
        for _ in range(3):
            got = link({"t": torch.arange(float(size)), "u": torch.arange(size)})
            assert torch.equal(got["t"], torch.arange(float(size))) and torch.equal(got["u"], torch.arange(size))
            got["t"][0] = 5
            assert got["t"].untyped_storage().resizable()
        assert got["u"].untyped_storage().resizable() == (name != "refuses floats")
        del got
        gc.collect()
        assert ringcast.recycling().lent == before


def test_a_tensor_is_described_in_another_way_if_this_one_fails(monkeypatch):
    table = torchs_table()
    table.describe = REFUSE
    with linked_with(monkeypatch, table) as link:
        for tensor in (torch.ones(3), torch.arange(6).reshape(2, 3).T, torch.nn.Parameter(torch.ones(2))):
            assert "data_ptr" in reads(link, tensor)
            values.assert_same(link({"t": tensor}), {"t": tensor})


def without_strides(tensor):
    tensor.strides = None


def without_a_shape(tensor):
    tensor.shape = None


def of_fewer_than_no_dimensions(tensor):
    tensor.ndim = -1


@pytest.mark.parametrize("change", [without_strides, without_a_shape, of_fewer_than_no_dimensions])
def test_a_description_without_its_dimensions_is_none(monkeypatch, change):
    table, theirs = torchs_table(), DESCRIBE(torchs_table().describe)

    @DESCRIBE
    def describe(tensor, out):
        status = theirs(tensor, out)
        change(out.contents)
        return status

    ALIVE.append(describe)
    table.describe = address(describe)
    with linked_with(monkeypatch, table) as link:
        assert link(torch.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]


# Shape and strides of a tensor of 8 bytes each, of which int64 can't count all steps, elements or bytes.
BEYOND = {
    "a step": ((2, 3), (1 << 61, 3)),
    "a step back": ((2, 3), (-(1 << 61), 3)),
    "all steps of one axis": ((1 << 40, 1), (1 << 23, 1)),
    "the elements": ((1 << 40, 1 << 40), (0, 0)),
    "the bytes": ((1 << 31, 1 << 31), (0, 0)),
}


@pytest.mark.parametrize("shape, strides", BEYOND.values(), ids=BEYOND)
def test_a_description_whose_extent_overflows_is_refused(monkeypatch, shape, strides):
    table, theirs = torchs_table(), DESCRIBE(torchs_table().describe)
    dims = [(ctypes.c_int64 * 2)(*each) for each in (shape, strides)]

    @DESCRIBE
    def describe(tensor, out):
        status = theirs(tensor, out)
        out.contents.shape, out.contents.strides = map(ctypes.addressof, dims)
        return status

    ALIVE.append(describe)
    table.describe = address(describe)
    with linked_with(monkeypatch, table) as link:
        for value in (torch.zeros(2, 3, dtype=torch.int64), {"t": [torch.zeros(2, 3, dtype=torch.int64)]}):
            with pytest.raises(ringcast.Error):
                link.writer.send(value, 0)
        link.writer.send(7, 0)
        assert link.reader.recv(0) == 7


def test_a_tensor_that_from_dlpack_copies_gets_its_bytes(monkeypatch):
    """Without the exchange API; what is received would go to memory that is used again."""
    theirs = torch.from_dlpack
    monkeypatch.setattr(torch, "from_dlpack", lambda capsule: theirs(capsule).clone())
    monkeypatch.setenv("RINGCAST_DISABLE", "dlpack_api")
    with linked() as link:
        first = link(torch.arange(50_000))
        link(torch.zeros(50_000))
        assert torch.equal(first, torch.arange(50_000))


def test_what_was_refused_once_is_not_offered_again(monkeypatch):
    """To refuse takes a thousand times as long as to describe."""
    table, theirs, offered = torchs_table(), DESCRIBE(torchs_table().describe), []

    @DESCRIBE
    def describe(tensor, out):
        offered.append(tensor.layout)
        return theirs(tensor, out) if tensor.layout is torch.strided else -1

    ALIVE.append(describe)
    table.describe = address(describe)
    with linked_with(monkeypatch, table) as link:
        for tensor in (torch.ones(2), torch.eye(2).to_sparse(), torch.ones(2), torch.eye(2).to_sparse(), torch.ones(2)):
            assert torch.equal(link({"t": tensor})["t"].to_dense(), tensor.to_dense())
    assert offered == [torch.strided] * 2 + [torch.sparse_coo] + [torch.strided] * 4


def test_where_a_description_says_the_tensor_begins_it_begins(monkeypatch):
    table, theirs = torchs_table(), DESCRIBE(torchs_table().describe)

    @DESCRIBE
    def describe(tensor, out):
        status = theirs(tensor, out)
        out.contents.data -= 8
        out.contents.byte_offset = 8
        return status

    ALIVE.append(describe)
    table.describe = address(describe)
    with linked_with(monkeypatch, table) as link:
        assert link(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
