# SPDX-License-Identifier: Apache-2.0
"""torch tensors: what arrives is what was sent, in memory that is the receiver's."""

import contextlib
import gc
import subprocess
import sys
import threading
import tracemalloc
import types
import weakref

import numpy as np
import pytest
import values
from keeping import TENSOR_LOOKS, check_look
from links import linked
from needs import needs_torch, torch
from peers import WATCHDOG, in_a_fork
from recycling import recycling

import ringcast

if torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

pytestmark = pytest.mark.alike


@pytest.fixture
def link():
    with linked() as link:
        yield link


@pytest.mark.parametrize("dtype", values.TORCH_DTYPES)
def test_tensors_of_every_dtype_arrive(link, dtype):
    for shape in ((), (0,), (3, 0, 2), (2, 3, 4)):
        for layout in values.LAYOUTS + ("conjugated", "imaginary"):
            kind = ("plain", "requires_grad", "parameter")[len(shape) % 3]
            tensor = values.cook_tensor(dtype, shape, layout, kind, 1)
            got = link({"t": tensor, "in": [tensor]})
            values.assert_same(got, {"t": tensor, "in": [tensor]})
            for each in got["t"], got["in"][0]:
                assert not each._is_view() and each._version == 0


def lazies():
    whole = torch.tensor([1 + 2j, 3 - 4j])
    return {
        "conjugate": whole.conj(),
        "its imaginary part": whole.conj().imag,
        "its real part": whole.conj().real,
        "negative": torch._neg_view(torch.arange(3.0)),
        "negative integers": torch._neg_view(torch.arange(6)).reshape(2, 3).T,
        "negative conjugate": torch._neg_view(whole).conj(),
        "negative, with a gradient": torch._neg_view(torch.ones(2, requires_grad=True)),
        "negative zeros": torch._neg_view(torch.zeros(2)),
    }


@pytest.mark.parametrize("name", lazies())
def test_what_is_still_to_be_negated_or_conjugated_arrives_done(link, name):
    tensor = lazies()[name]
    got = link(tensor)
    assert not got.is_neg() and not got.is_conj() and got.requires_grad == tensor.requires_grad
    assert values.tensor_bytes(got) == values.tensor_bytes(tensor)
    assert torch.equal(torch.signbit(got.real), torch.signbit(tensor.real.resolve_neg()))


def views():
    base = torch.arange(24.0).reshape(2, 3, 4)
    return [
        base[1:, 1:, ::2],
        base.permute(2, 0, 1),
        base[:, :, :1].expand(2, 3, 5),
        torch.ones(()).expand(3, 4),
        base[1],
        base.flatten()[5:5],
        base.unfold(2, 2, 1),
        base.diagonal(dim1=1, dim2=2),
        base.as_strided((3, 3), (1, 1)),
        torch.arange(6).reshape([1] * 63 + [6]),
        torch.arange(6).reshape([1] * 70 + [6]),
        base.detach()[0, 0, 0],
        torch.tensor(7),
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.empty(0, dtype=torch.int8),
        torch.tensor(True),
    ]


def test_views_arrive_packed(link):
    for index, tensor in enumerate(views()):
        got = link({"t": tensor})
        values.assert_same(got, {"t": tensor})
        assert got["t"].storage_offset() == 0, index
    with torch.inference_mode():
        assert torch.equal(link(torch.ones(3).view(3, 1)), torch.ones(3, 1))


def odd():
    with contextlib.suppress(Exception):
        yield "sparse", torch.eye(3).to_sparse()
        yield "csr", torch.eye(3).to_sparse_csr()
        yield "quantized", torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.quint8)
        yield "bits", torch.arange(4, dtype=torch.uint8).view(torch.bits8)


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_memory_do_no_harm_to_others(link):
    """DLPack refuses them."""
    for name, tensor in odd():
        got = link({"odd": tensor, "t": torch.arange(3)})
        assert type(got["odd"]) is torch.Tensor and got["odd"].layout == tensor.layout, name
        assert got["odd"].dtype == tensor.dtype and got["t"].tolist() == [0, 1, 2], name
        others = [torch.arange(4, dtype=torch.int8), torch.nn.Parameter(torch.ones(2))]
        for plain in [*lazies().values(), *views(), *others]:
            got = link([plain, {"t": plain}]) if plain.dim() < 60 else [link(plain), {"t": plain}]
            values.assert_same_tensor(got[0], plain)
            assert values.tensor_bytes(link(plain)) == values.tensor_bytes(plain)


def test_a_tensor_elsewhere_is_refused_by_its_place(link):
    for _ in range(2):
        with pytest.raises(TypeError, match=r"value\['t'\] is a tensor on device 'meta'"):
            link.writer.send({"t": torch.empty(3, device="meta")}, 0)
        assert link({"t": torch.ones(2)})["t"].tolist() == [1, 1]


def test_a_tensor_without_memory_is_refused(link):
    """Torch's own pickle makes up what was in it."""
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)

    def refused(tensor):
        with pytest.raises(ValueError, match=r"value\['t'\]: a tensor without memory"):
            link.writer.send({"t": tensor}, 0)
        return tensor

    refused(freed)
    torch.func.functionalize(refused)(torch.ones(2))
    assert link(torch.ones(2)).tolist() == [1, 1]


def watched(count):
    """A tensor over memory that a weak reference watches."""
    array = np.arange(count, dtype=np.int32)
    return torch.from_numpy(array), weakref.ref(array)


class Replaces:
    """Gives a tensor other memory while it is pickled itself, and notes whether the old memory is
    still there."""

    def __init__(self, tensor, memory, replace):
        self.do, self.is_there = lambda: replace(tensor), lambda: memory() is not None
        self.was_there = None

    def __reduce__(self):
        self.do()
        self.was_there = self.is_there()
        return int, ()


def by_data(tensor):
    tensor.data = torch.zeros(1, dtype=torch.int32)


REPLACE = [by_data, lambda tensor: tensor.set_(torch.zeros(1, dtype=torch.int32))]


@pytest.mark.parametrize("replace", REPLACE, ids=["data", "set_"])
@pytest.mark.parametrize(
    "place", [lambda tensor: tensor, lambda tensor: [tensor]], ids=["item", "nested"]
)
def test_a_tensor_that_gets_other_memory_while_the_rest_is_measured_is_sent_as_it_was(
    link, place, replace
):
    tensor, memory = watched(1000)
    rest = Replaces(tensor, memory, replace)
    link.writer.send({"t": place(tensor), "rest": rest}, 0)
    assert rest.was_there and memory() is None and tensor.tolist() == [0]
    values.assert_same(
        link.reader.recv(0), {"t": place(torch.arange(1000, dtype=torch.int32)), "rest": 0}
    )


@pytest.mark.parametrize("replace", REPLACE, ids=["data", "set_"])
def test_a_tensor_that_gets_other_memory_while_send_waits_for_room_is_sent_as_it_was(link, replace):
    tensor, memory = watched(400_000)
    for _ in range(2):
        link.writer.send(tensor, 0)
    with ringcast.Tap(link.writer.handle) as tap:
        before = tap.stats().waits
        sending = threading.Thread(target=link.writer.send, args=(tensor, WATCHDOG))
        sending.start()
        while tap.stats().waits == before:
            pass
    replace(tensor)
    assert memory() is not None
    for _ in range(3):
        values.assert_same(link.reader.recv(WATCHDOG), torch.arange(400_000, dtype=torch.int32))
    sending.join()
    assert memory() is None


class ReplacesAfter(torch.overrides.TorchFunctionMode):
    """Gives a tensor other memory after so many of torch's functions, as another thread could."""

    def __init__(self, tensor, calls):
        super().__init__()
        self.tensor, self.calls = tensor, calls

    def __torch_function__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        self.calls -= 1
        if self.calls == 0:
            by_data(self.tensor)
        return answer


def test_a_tensor_that_gets_other_memory_while_it_is_measured_itself_is_sent_whole_or_refused(link):
    for calls in range(1, 100):
        tensor, memory = watched(1000)
        with ReplacesAfter(tensor, calls) as mode:
            try:
                link.writer.send(tensor, 0)
            except RuntimeError as error:
                assert "value got other memory while it was measured" in str(error)
            else:
                assert link.reader.recv(0).tolist() in (list(range(1000)), [0])
        if mode.calls > 0:
            break
        assert memory() is None
    assert 3 < calls < 100


class Sub(torch.Tensor):
    pass


def test_a_subclass_arrives_as_its_own_pickle_has_it(link):
    got = link({"t": torch.ones(2).as_subclass(Sub)})["t"]
    assert type(got) is Sub and got.tolist() == [1, 1]


# ---- What is in force where it is received -------------------------------------------------------


def test_a_default_device_or_dtype_does_not_matter(link):
    link.writer.send([torch.arange(3)], 0)
    link.writer.send(
        {"t": torch.arange(3), "e": torch.empty(0), "n": torch.arange(3, dtype=torch.int16)}, 0
    )
    with torch.device("meta"):
        link.reader.recv(0)
        got = link.reader.recv(0)
    assert {tensor.device.type for tensor in got.values()} == {"cpu"}
    assert [tensor.dtype for tensor in got.values()] == [torch.int64, torch.float32, torch.int16]
    torch.set_default_dtype(torch.float64)
    try:
        assert link(torch.ones(2, dtype=torch.float32)).dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_in_inference_mode_it_is_an_inference_tensor_as_torchs_own_are(link):
    link.writer.send(torch.ones(2), 0)
    link.writer.send(torch.ones(2), 0)
    with torch.inference_mode():
        assert link.reader.recv(0).is_inference()
    assert not link.reader.recv(0).is_inference()


def test_gradients_flow_through_what_arrived(link):
    got = link({"t": torch.ones(3, requires_grad=True), "p": torch.nn.Parameter(torch.ones(3))})
    (got["t"] * got["p"] * 2).sum().backward()
    assert got["t"].grad.tolist() == got["p"].grad.tolist() == [2, 2, 2]
    assert type(got["p"]) is torch.nn.Parameter and got["p"].is_leaf


# ---- Their memory --------------------------------------------------------------------------------


def test_each_has_memory_of_its_own(link):
    sent = {
        str(size): torch.full((size,), size % 100, dtype=torch.uint8) for size in range(0, 300, 7)
    }
    sent.update(
        {"half": torch.ones(40_000), "whole": torch.ones(16_384), "less": torch.ones(16_383)}
    )
    got = link(sent)
    ranges = []
    for key, tensor in got.items():
        assert torch.equal(tensor, sent[key])
        assert (
            tensor.data_ptr() % 64 == 0
            and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
        )
        ranges.append((tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.itemsize))
    ranges = sorted(each for each in ranges if each[0] != each[1])
    assert all(one[1] <= other[0] for one, other in zip(ranges, ranges[1:]))
    for tensor in got.values():
        tensor += 1
    for key, tensor in got.items():
        assert torch.equal(tensor, sent[key] + 1)


@pytest.mark.parametrize("look", TENSOR_LOOKS.values(), ids=TENSOR_LOOKS)
def test_whatever_looks_at_a_small_one_keeps_its_memory(link, look):
    check_look(link, look, torch.full((1000,), 7).byte(), torch.full((1000,), 9).byte())


RESIZE = """
import warnings, torch, ringcast
warnings.simplefilter("ignore")
with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
    sent = [torch.arange(6.0), torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.ones(0)]
    sent += [torch.ones(3, dtype=torch.uint8).view(torch.uint4), torch.ones(16_383), torch.nn.Parameter(torch.ones(3))]
    for index in range(len(sent)):
        for grow in (lambda t: t.resize_(1 << 22), lambda t: torch.add(torch.ones(1 << 22), 1, out=t)):
            writer.send({"t": sent[index], "in": [sent[index]]}, 0)
            got = reader.recv(0)
            for tensor in (got["t"].detach(), got["in"][0].detach()):
                if tensor.dtype is torch.float32 or "resize_" in grow.__code__.co_names:
                    grow(tensor)
                    assert tensor.shape == (1 << 22,) and tensor.untyped_storage().nbytes() >= 1 << 22
                    tensor.view(torch.uint8).fill_(7)
    print("grown")
"""


@needs_torch
def test_small_ones_can_grow_in_place():
    told = subprocess.run([sys.executable, "-c", RESIZE], capture_output=True, text=True)
    assert (told.returncode, told.stdout, told.stderr) == (0, "grown\n", "")


def test_large_ones_can_shrink_and_refuse_to_grow(link):
    tensor = link(torch.arange(1 << 14))
    tensor.resize_(2, 2)
    assert tensor.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="not resizable"):
        link(torch.arange(1 << 14)).resize_(1 << 15)
    assert tensor.clone().resize_(1 << 15).shape == (1 << 15,)
    tensor.share_memory_()
    assert tensor.is_shared() and tensor.tolist() == [[0, 1], [2, 3]]


KINDS = {
    "small": torch.ones(3),
    "gradient": torch.ones(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "byte": torch.ones(3, dtype=torch.uint8),
    "view": torch.ones(3, 4).T,
    "empty": torch.empty(0),
    "negative": torch._neg_view(torch.ones(3)),
    **{
        name: torch.ones(2, dtype=torch.uint8).view(getattr(torch, name))
        for name in values.BIT_DTYPES[4:6]
    },
}


def growth(link, count):
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(count):
        link(KINDS)
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_nothing_is_kept_of_what_is_made_and_dropped(link):
    for _ in range(20):
        link(KINDS)
    counts = {
        name: (sys.getrefcount(tensor), sys.getrefcount(tensor.dtype))
        for name, tensor in KINDS.items()
    }
    tracemalloc.start()
    try:
        # What else the process keeps, it keeps once.
        grown = min(growth(link, 500) for _ in range(2))
    finally:
        tracemalloc.stop()
    assert grown < 4000, grown  # less than a byte for each of them
    for name, tensor in KINDS.items():
        assert (sys.getrefcount(tensor), sys.getrefcount(tensor.dtype)) == counts[name]


def test_tensors_die_in_any_thread(link):
    sent = {str(size): torch.ones(size) for size in (1, 100, 5000, 50_000)}
    before = recycling().lent
    held = [link(sent) for _ in range(100)]
    threads = [threading.Thread(target=lambda: [held.pop() for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not held and recycling().lent == before


def test_a_forked_child_sends_and_drops_as_it_likes(link):
    kept = {str(size): link(torch.full((size,), 7.0)) for size in (3, 1000, 30_000)}

    def child():
        sums = [float(tensor.sum()) for tensor in kept.values()]
        kept.clear()
        gc.collect()
        with link.module.Writer(1 << 20) as writer, link.module.Reader(writer.handle) as reader:
            writer.send({"t": torch.ones(5), "u": torch.nn.Parameter(torch.ones(3))}, 0)
            got = reader.recv(0)
        return sums, got["t"].tolist(), got["u"].tolist()

    assert in_a_fork(child) == ([21.0, 7000.0, 210_000.0], [1.0] * 5, [1.0] * 3)
    assert [float(tensor.sum()) for tensor in kept.values()] == [21.0, 7000.0, 210_000.0]


def test_torch_may_be_imported_half_way(link, monkeypatch):
    with monkeypatch.context() as patch:
        for half in (
            {},
            {"Tensor": torch.Tensor},
            {"Tensor": torch.Tensor, "nn": types.ModuleType("torch.nn")},
        ):
            module = types.ModuleType("torch")
            vars(module).update(half)
            patch.setitem(sys.modules, "torch", module)
            assert link({"a": 1, "n": np.arange(3)})["a"] == 1
    assert link(torch.ones(3)).tolist() == [1, 1, 1]


# ---- What torch says against it ------------------------------------------------------------------

NO_MEMORY = """
import torch, ringcast
def fail(*args, **more):
    raise RuntimeError("no memory is left")
torch.empty = fail
writer = ringcast.Writer(1 << 16)
reader = ringcast.Reader(writer.handle)
for tensor in torch.ones(3), torch.ones(3, dtype=torch.uint8).view(torch.uint4):
    writer.send(tensor, 0)
print(reader.recv(0).tolist())
reader.recv(0)
"""


@needs_torch
def test_torch_without_memory_is_no_damage():
    told = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True)
    assert told.stdout == "[1.0, 1.0, 1.0]\n", "memory of the package's own"
    assert told.stderr.splitlines()[-1] == "RuntimeError: no memory is left"


@needs_torch
def test_a_mode_that_puts_a_tensor_elsewhere_is_left(ring):
    class Elsewhere(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), more=None):
            made = function(*args, **(more or {}))
            return made.clone() if function is torch.Tensor.requires_grad_ else made

    writer, reader = ring
    writer.send(torch.ones(1000).requires_grad_(), 0)
    with Elsewhere():
        assert reader.recv(0).sum() == 1000
