# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device: what is told to torch of them, and what they are made of."""

import ctypes
import errno
import gc
import types

import device_peers as peers
import numpy as np
import pytest
from device_exchange import exchange, told
from device_peers import MEGABYTE

import ringcast
from ringcast import _device
from ringcast._group import devices

pytestmark = pytest.mark.alike


def receive_and_tell_bases(state):
    torch = state["torch"]
    torch.Tensor.as_strided = torch.Tensor.view = None  # a view, whose version is its base's
    got = state["reader"].recv(peers.WATCHDOG)
    return peers.seen(got), len({id(tensor.memory) for tensor in got.values()})


def test_small_tensors_share_their_storage_but_are_no_views(rings, fake_driver):
    writer, _ = rings()
    reader = peers.start()
    try:
        reader.call(peers.attach, writer.call(peers.make_writer, MEGABYTE))
        value = {f"{i}": ("cuda", np.arange(i + 1, dtype=kind)) for i, kind in enumerate(["int8", "float64", "int32"])}
        writer.call(peers.send, value)
        got, storages = reader.call(receive_and_tell_bases)
        assert got == {key: told(*item) for key, item in value.items()} and storages == 1
    finally:
        reader.stop()


def send_and_tell_recorded(state):
    torch = state["torch"]
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        tensors = [torch.from_numpy(np.arange(12.0)).cuda() for _ in range(2)]
    tensors[1] = tensors[1].as_strided((3, 2), (1, 3))
    seen = []
    for stream in (other, one, other):
        for tensor in tensors:
            tensor.memory.recorded.clear()
        with torch.cuda.stream(stream):
            state["writer"].send({"x": tensors[0], "y": [tensors[1]]}, peers.WATCHDOG)
        seen.append([tensor.memory.recorded == {(0, stream.cuda_stream)} for tensor in tensors])
    torch.cuda.synchronize()
    return seen


def test_torch_is_told_which_stream_looks_at_a_tensor(rings):
    writer, _ = rings()
    assert writer.call(send_and_tell_recorded) == [[True, True]] * 3


def send_of_cupy(state, array):
    import cupy

    asked = []
    current = cupy.cuda.get_current_stream
    cupy.cuda.get_current_stream = lambda: asked.append(cupy.cuda.ordinal) or current()
    try:
        state["writer"].send(cupy.ndarray(state["torch"].from_numpy(array).cuda(1)), peers.WATCHDOG)
    finally:
        cupy.cuda.get_current_stream = current
    return asked


def test_cupy_is_asked_for_the_stream_of_the_array_s_device(two_devices):
    writer = two_devices[0]
    writer.call(peers.make_writer, MEGABYTE)
    assert writer.call(send_of_cupy, np.arange(5.0)) == [1]
    writer.call(peers.close)


def receive_of_cupy(state):
    import cupy

    asked = []
    current, make = cupy.cuda.get_current_stream, cupy.from_dlpack
    cupy.cuda.get_current_stream = lambda: asked.append(cupy.cuda.ordinal) or current()
    cupy.from_dlpack = lambda tensor: asked.append(cupy.cuda.ordinal) or make(tensor)
    try:
        return peers.seen(state["reader"].recv(peers.WATCHDOG)), asked
    finally:
        cupy.cuda.get_current_stream, cupy.from_dlpack = current, make


def test_cupy_is_asked_for_the_stream_of_the_device_where_its_array_arrives(two_devices):
    writer, reader, _ = two_devices
    reader.call(peers.attach, writer.call(peers.make_writer, MEGABYTE), {"map_location": "cuda:1"})
    writer.call(send_of_cupy, np.arange(5.0))
    assert reader.call(receive_of_cupy) == (told("cupy", np.arange(5.0)), [1, 1, 1])
    for peer in (reader, writer):
        peer.call(peers.close)


def send_what_is_not_recorded(state):
    """As an allocator does whose memory is not torch's own."""
    torch = state["torch"]

    def refuse(*_):
        raise RuntimeError("not of this allocator")

    record, torch.Tensor.record_stream = torch.Tensor.record_stream, refuse
    try:
        peers.send(state, {"x": ("cuda", np.arange(3))})
    finally:
        torch.Tensor.record_stream = record


def test_memory_that_torch_does_not_record_is_sent_all_the_same(rings):  # noqa: F811
    writer, (reader,) = rings()
    writer.call(send_what_is_not_recorded)
    assert reader.call(peers.receive) == {"x": told("cuda", np.arange(3))}


def test_a_torch_that_has_not_begun_is_not_asked_what_it_captures(monkeypatch):
    def begin():
        raise AssertionError("it would begin")

    cuda = types.SimpleNamespace(is_initialized=lambda: False, is_current_stream_capturing=begin)
    monkeypatch.setitem(_device.sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert _device.captures() is False


def fail_then_receive(state):
    ctypes.CDLL("libcuda.so.1").fake_cuda_fault(b"cuDevicePrimaryCtxRetain", ctypes.c_long(1), 2)
    try:
        return state["reader"].recv(peers.WATCHDOG)
    except ringcast.Error as error:
        return error.errno


def test_a_reader_that_could_not_open_its_device_once_tries_again(rings):
    writer, (reader,) = rings()
    value = {"x": ("cuda", np.arange(3))}
    writer.call(peers.send, value)
    assert reader.call(fail_then_receive) not in (None, errno.ENODEV)
    for _ in range(3):
        assert exchange(writer, [reader], value) == [{"x": told(*value["x"])}]


def ask_for_places(state):
    tensor = state["reader"].recv(peers.WATCHDOG)
    raised = []
    asked = [{"dl_device": place} for place in ([2, 0], 3, (2,), (1, 0))] + [{"copy": True}]
    for how in asked:
        try:
            tensor.__dlpack__(**how)
        except (TypeError, BufferError) as error:
            raised.append(type(error).__name__)
    tensor.__dlpack__(dl_device=(2, 0), copy=False)
    return raised


def test_a_place_for_a_capsule_is_checked(rings):
    writer, (reader,) = rings()
    writer.call(peers.send, ("other", np.arange(3)))
    assert reader.call(ask_for_places) == ["TypeError"] * 3 + ["BufferError"] * 2
    reader.call(gc_collect)


GET = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def dlpack_flags(tensor):
    """They stand behind the version, a pointer of the maker's, and the deleter."""
    capsule = tensor.__dlpack__(stream=-1, max_version=(1, 0))
    return ctypes.c_uint64.from_address(GET(capsule, b"dltensor_versioned") + 8 + 2 * 8).value


def tell_dlpack_flags(state):
    with state["reader"].view(peers.WATCHDOG) as value:
        looked = dlpack_flags(value["o"])
    return looked, dlpack_flags(state["reader"].recv(peers.WATCHDOG)["o"])


def test_what_lies_in_the_pool_is_read_only_to_dlpack(rings):  # noqa: F811
    writer, (reader,) = rings()
    value = {"o": ("other", np.arange(3))}
    exchange(writer, [reader], value)
    for _ in range(2):
        writer.call(peers.send, value)
    assert reader.call(tell_dlpack_flags) == (1, 0)
    reader.call(gc_collect)


def look_on_two_streams(state):
    torch = state["torch"]
    with state["reader"].next(peers.WATCHDOG) as frame:
        seen = peers.seen(frame["x"])
        with torch.cuda.stream(torch.cuda.Stream()):
            return [seen, peers.seen(frame["y"]), peers.seen(ringcast.unpack(frame))]


def test_a_frame_can_be_looked_into_on_another_stream_than_before(rings):
    writer, (reader,) = rings()
    value = {"x": ("cuda", np.arange(3)), "y": ("cuda", np.arange(200000.0))}
    wanted = {key: told(*item) for key, item in value.items()}
    for _ in range(3):
        writer.call(peers.send, value)
        assert reader.call(look_on_two_streams) == [wanted["x"], wanted["y"], wanted]


def gc_collect(state):
    gc.collect()


@pytest.mark.parametrize("number", [1024, 1 << 32, (1 << 32) + 1, 1 << 70])
def test_an_index_that_does_not_fit_is_refused(ring, number):
    with pytest.raises(ValueError, match="map_location must be"):
        ringcast.Reader(ring[0].handle, map_location=f"cuda:{number}")


def test_a_library_that_is_missing_is_looked_for_once(monkeypatch):
    asked = []

    def find(name):
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr(_device.importlib, "import_module", find)
    _device._imported.cache_clear()
    tensor = object()
    assert all(make(tensor) is tensor for make in (_device.as_cupy, _device.as_jax) * 3)
    assert asked == ["cupy", "jax.dlpack"]
    _device._imported.cache_clear()


def test_an_unknown_array_that_is_not_contiguous_needs_torch(monkeypatch):
    monkeypatch.delitem(_device.sys.modules, "torch", raising=False)
    with pytest.raises(TypeError, match="object on a CUDA device is not contiguous"):
        _device.export_contiguous(object())


class Plain:
    is_cuda, is_nested, layout = True, False, "strided"

    def numel(self):
        return 10

    def element_size(self):
        return 4


class Sub(Plain):
    pass


class Sparse(Plain):
    pass


@pytest.mark.parametrize("capturing", [False, True])
def test_the_rings_carry_what_has_a_form_there_while_no_graph_is_captured(monkeypatch, capturing):
    cuda = types.SimpleNamespace(is_current_stream_capturing=lambda: capturing)
    nn = types.SimpleNamespace(Parameter=Sparse)
    torch = types.SimpleNamespace(Tensor=Plain, nn=nn, strided="strided", cuda=cuda)
    monkeypatch.setitem(devices.sys.modules, "torch", torch)
    monkeypatch.setattr(ringcast, "gpu_status", lambda: types.SimpleNamespace(ready=True))
    end, sparse = types.SimpleNamespace(carries_cuda=True, most_cuda_bytes=40), Sparse()
    sparse.layout = "sparse"
    tensors = [Plain(), Sparse(), Sub(), sparse]
    assert [devices.carries(end, tensor) for tensor in tensors] == [not capturing, not capturing, False, False]
    end.most_cuda_bytes = 39
    assert not any(devices.carries(end, tensor) for tensor in tensors)
