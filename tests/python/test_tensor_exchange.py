# SPDX-License-Identifier: Apache-2.0
"""DLPack's exchange API: which one is used, what becomes of tensors where it fails, and modes of
torch."""

import collections
import contextlib
import ctypes
import gc

import pytest
import values
from links import linked
from needs import torch
from recycling import recycling

import ringcast

if torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.alike


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(function)


MODES = {
    "no gradients": torch.no_grad,
    "a device": lambda: torch.device("meta"),
    "functions": torch.overrides.BaseTorchFunctionMode,
    "refuses": Refuses,
    "fakes": FakeTensorMode,
}


@pytest.fixture
def link():
    with linked() as link:
        yield link


class InAPickle(collections.UserDict):
    def __getstate__(self):
        return self.data

    def __setstate__(self, state):
        self.data = state


BYTES, CONJUGATE = torch.ones(3, dtype=torch.uint8), torch.ones(3, dtype=torch.complex64).conj()
IN_A_MODE = {
    "t": torch.arange(3),
    "p": torch.nn.Parameter(torch.ones(2)),
    "grad": torch.ones(2, requires_grad=True),
    "none": torch.ones(0),
    "l": torch.ones(1 << 15),
    "turned": torch.ones(3, 4).t(),
    "int4": BYTES.view(torch.uint4),
    "bits": BYTES.view(torch.bits8),
    "conjugate": CONJUGATE,
}
BY_TORCH = {
    "sparse": torch.eye(3).to_sparse(),
    "rows": torch.eye(3).to_sparse_csr(),
    "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("wrap", [lambda value: value, InAPickle], ids=["typed", "pickled"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_no_mode_of_torch_comes_between(link, mode, wrap):
    sent = {**IN_A_MODE, **BY_TORCH}
    with mode():
        before = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
        link.writer.send(wrap(sent), 0)
        got = dict(link.reader.recv(0))
        assert before == (
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
        )
    values.assert_same(
        {name: got[name] for name in IN_A_MODE},
        {**IN_A_MODE, "conjugate": CONJUGATE.resolve_conj()},
    )
    for name, tensor in BY_TORCH.items():
        assert got[name].is_cpu and repr(got[name]) == repr(tensor)


def test_an_error_in_a_mode_leaves_the_mode_in_force(link):
    meta = torch.ones(2, device="meta")
    with FakeTensorMode():
        with pytest.raises(TypeError, match="meta"):
            link.writer.send(InAPickle(x=meta), 0)
        with pytest.raises(Exception, match="lambda|pickle"):
            link.writer.send(lambda: 0, 0)
        assert type(torch.ones(2)) is not torch.Tensor


# ---- Another API, or one that fails --------------------------------------------------------------


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
new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
ADDRESS = pointer_of(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
ALIVE = [b"dlpack_exchange_api", b"another"]  # for as long as the capsules


def torchs_table():
    return Table.from_buffer_copy(ctypes.string_at(ADDRESS, ctypes.sizeof(Table)))


@contextlib.contextmanager
def linked_with(monkeypatch, table, name=0):
    """With a torch that offers this table."""
    ALIVE.append(table)
    with monkeypatch.context() as patch:
        capsule = (
            table
            if isinstance(table, int)
            else new_capsule(ctypes.addressof(table), ALIVE[name], None)
        )
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


PACKED = bytes(ringcast.pack({"t": torch.ones(3)}))


def assert_refused(link):
    with pytest.raises(RuntimeError, match="install torch 2.13 or newer"):
        link.writer.send({"t": torch.ones(3)}, 0)
    values.assert_same(link.module.unpack(PACKED), {"t": torch.ones(3)})


@pytest.mark.parametrize("name", versions())
def test_only_a_version_that_is_known_is_used(monkeypatch, name):
    table, used = versions()[name]
    with linked_with(monkeypatch, table) as link:
        if used:
            values.assert_same(link(torch.ones(3)), torch.ones(3))
        else:
            assert_refused(link)


def test_a_capsule_of_another_name_is_not_opened(monkeypatch):
    with linked_with(monkeypatch, torchs_table(), name=1) as link:
        assert_refused(link)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


# A function of two pointers that raises ValueError, gives -1, and touches neither: the first is no
# capsule.
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
def test_a_large_tensor_is_torchs_own_if_this_way_fails(monkeypatch, name):
    size = 50_000
    table, failure = torchs_table(), FAILURES[name]
    if not isinstance(failure, int):
        ALIVE.append(MAKE(failure))
        failure = address(ALIVE[-1])
    table.make = failure
    before = recycling().lent
    with linked_with(monkeypatch, table) as link:
        for _ in range(3):
            got = link({"t": torch.arange(float(size)), "u": torch.arange(size)})
            assert torch.equal(got["t"], torch.arange(float(size))) and torch.equal(
                got["u"], torch.arange(size)
            )
            got["t"][0] = 5
            assert got["t"].untyped_storage().resizable()
        assert got["u"].untyped_storage().resizable() == (name != "refuses floats")
        del got
        gc.collect()
        assert recycling().lent == before


def test_what_is_refused_goes_by_torchs_own_pickle(monkeypatch):
    table = torchs_table()
    table.describe = REFUSE
    with linked_with(monkeypatch, table) as link:
        for tensor in (torch.ones(3), torch.nn.Parameter(torch.ones(2))):
            values.assert_same(link({"t": tensor}), {"t": tensor})


# ---- Descriptions --------------------------------------------------------------------------------


@contextlib.contextmanager
def linked_with_changed(monkeypatch, change):
    """With a torch whose description of each tensor is changed."""
    table, theirs = torchs_table(), DESCRIBE(torchs_table().describe)

    @DESCRIBE
    def describe(tensor, out):
        status = theirs(tensor, out)
        for name, value in change(out.contents).items():
            setattr(out.contents, name, value)
        return status

    ALIVE.append(describe)
    table.describe = address(describe)
    with linked_with(monkeypatch, table) as link:
        yield link


OTHERWISE = {
    "without strides": lambda _: {"strides": None},
    "without a shape": lambda _: {"shape": None},
    "of fewer than no dimensions": lambda _: {"ndim": -1},
    "beginning elsewhere": lambda tensor: {"data": tensor.data - 8, "byte_offset": 8},
}


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=OTHERWISE)
def test_a_tensor_that_is_described_otherwise_arrives(monkeypatch, change):
    with linked_with_changed(monkeypatch, change) as link:
        assert link(torch.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]


# Shape and strides of a tensor of 8 bytes each, of which int64 can't count all steps, elements or
# bytes.
BEYOND = {
    "a step": ((2, 3), (1 << 61, 3)),
    "a step back": ((2, 3), (-(1 << 61), 3)),
    "all steps of one axis": ((1 << 40, 1), (1 << 23, 1)),
    "the elements": ((1 << 40, 1 << 40), (0, 0)),
    "the bytes": ((1 << 31, 1 << 31), (0, 0)),
}


@pytest.mark.parametrize("dims", BEYOND.values(), ids=BEYOND)
def test_a_description_whose_extent_overflows_is_refused(monkeypatch, dims):
    shape, strides = ((ctypes.c_int64 * 2)(*each) for each in dims)
    change = {"shape": ctypes.addressof(shape), "strides": ctypes.addressof(strides)}
    with linked_with_changed(monkeypatch, lambda _: change) as link:
        tensor = torch.zeros(2, 3, dtype=torch.int64)
        for value in (tensor, {"t": [tensor]}):
            with pytest.raises(ringcast.Error):
                link.writer.send(value, 0)
        assert link(7) == 7
