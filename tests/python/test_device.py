# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device are sent and received, on a driver that is a fake: what is equal to what, which way it goes,
and where it arrives. A test with the argument `gpu` runs in a process that has a device."""

import random
import re
from unittest import mock

import device_peers as peers
import numpy as np
import pytest
from device_peers import COPIES, MEGABYTE, exchange, expected, handle_of, seen, told
from peers import WATCHDOG

import ringcast

INLINE = {"gpu_pool_bytes": 0}
WAITS = "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "fake_host_waits", "cuStreamQuery"
VALUE = {
    "x": ("cuda", np.arange(12, dtype=np.float32).reshape(3, 4)),
    "n": {"deep": [("cuda", np.arange(30000))]},
    "o": ("other", np.arange(5, dtype=np.int16)),
    "c": ("cpu", np.arange(5)),
    "host": np.arange(4),
    "i": 7,
}


def passed(gpu, writer, reader, value):
    """What is seen of a value that was sent and received."""
    writer.send(gpu.make(value), WATCHDOG)
    return seen(reader.recv(WATCHDOG))


# ---- Values ----------------------------------------------------------------------------------------------------------

KINDS = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]
SINGLE = [
    ("cuda", np.arange(5)),
    [("cuda", np.arange(7.0)), ("cuda", np.float32(3))],
    *({"t": (kind, np.arange(10000.0), {"shape": (100, 100), "strides": (1, 100)})} for kind in ("cuda", "other")),
    {"e": ("cuda", np.empty((0, 4), np.float32)), "o": ("other", np.empty((2, 0)))},
]


def random_array(chance):
    shape = [chance.choice([0, 1, 2, 3, 7]) for _ in range(chance.randrange(4))]
    return np.arange(np.prod(shape, dtype=int)).astype(chance.choice(KINDS)).reshape(shape)


STRIDED = [
    {"shape": (4, 5), "strides": (1, 4), "offset": 3},
    {"shape": (3, 4, 5), "strides": (40, 2, 8)},
    {"shape": (6, 3), "strides": (7, 0)},
    {"shape": (10,), "strides": (20,), "offset": 1},
]


def random_tensor(chance):
    kind = chance.choice(["cuda", "cuda", "cuda", "cpu", "other"])
    if kind != "cpu" and chance.random() < 0.3:
        return kind, np.arange(240, dtype=np.float32), chance.choice(STRIDED)
    if kind == "cuda" and chance.random() < 0.2:
        return kind, np.arange(9.0), {"parameter": True, "grad": chance.random() < 0.5}
    if kind == "cuda" and chance.random() < 0.1:
        return kind, np.arange(30, dtype=np.uint16), {"dtype": "bfloat16"}
    return kind, random_array(chance), {}


def random_value(chance):
    value = {f"t{i}": random_tensor(chance) for i in range(chance.randrange(1, 9))}
    value["n"] = {"deep": [1, random_tensor(chance), {"x": random_tensor(chance)}], "s": "text"}
    value["numpy"] = random_array(chance)
    return value


@pytest.mark.parametrize("options, way", [({}, "pool"), (INLINE, "no_pool")])
@pytest.mark.parametrize("readers", [1, 4])
def test_values_arrive_equal(rings, readers, options, way):
    writer, others = rings(readers, options)
    chance = random.Random(readers)
    for value in [*SINGLE, *(random_value(chance) for _ in range(20))]:
        for got in exchange(writer, others, value):
            assert got == expected(value)
    info = writer.call(peers.gpu)
    assert info.way == way and (info.pool_frames >= 15 if way == "pool" else info.inline_frames >= 15)


# ---- The way ---------------------------------------------------------------------------------------------------------


def test_a_frame_goes_by_the_pool_once_all_readers_have_had_one(rings, gpus):
    writer, others = rings(2)
    assert writer.call(peers.gpu) is None
    for ways in (["inline", "pool", "pool"], ["inline", "pool"]):
        for way in ways:
            before = writer.call(peers.gpu)
            assert exchange(writer, others, VALUE) == [expected(VALUE)] * len(others)
            assert writer.call(peers.gpu).pool_frames - (before.pool_frames if before else 0) == (way == "pool")
        for reader in others:
            info = reader.call(peers.gpu, "reader")
            assert (info.opens, info.inline_frames, info.way) == (
                1,
                1 + (len(others) == 3 and reader is not gpus[4]),
                "pool",
            )
        if len(others) == 2:
            others.append(gpus[4])
            gpus[4].call(peers.attach, writer.call(handle_of))
    gpus[4].call(peers.close)


@pytest.mark.parametrize("options", [{}, INLINE])
def test_nothing_waits_for_the_device_and_small_tensors_are_one_copy(gpu, options):
    writer, reader = gpu.opened(options)
    value = {f"{i}": ("cuda", np.arange(i + 1, dtype=np.int32)) for i in range(30)}
    if not options:
        value["large"] = ("cuda", np.arange(400000, dtype=np.float32))
    made = gpu.make(value)
    writer.send(made, WATCHDOG)
    reader.recv(WATCHDOG)
    gpu.torch._packed.copies = 0
    with gpu.counting(*WAITS, *COPIES) as sent:
        for _ in range(10):
            writer.send(made, WATCHDOG)
    sent[len(WAITS)] -= gpu.torch._packed.copies  # kernels of torch's
    with gpu.counting(*WAITS, *COPIES) as came:
        got = [reader.recv(WATCHDOG) for _ in range(10)]
    assert [seen(each) for each in got] == [expected(value)] * 10
    if options:  # who sends through the ring waits, and who receives does not
        assert came == [0, 0, 0, 0, 0, 0, 10, 0]
    else:  # each time the small ones together, and the large one
        assert sent == [0, 0, 0, 0, 0, 20, 0, 0] and came == [0, 0, 0, 0, 0, 20, 0, 0]


def test_a_full_pool_and_one_that_is_too_small_send_through_the_ring(gpu):
    writer, reader = gpu.opened({"gpu_pool_bytes": 2 * MEGABYTE})
    value = {"x": ("cuda", np.arange(60000.0))}
    for _ in range(5):
        writer.send(gpu.make(value), WATCHDOG)
    info = writer.gpu
    assert (info.pool_frames, info.inline_frames, info.full) == (4, 2, 1)
    for _ in range(5):
        assert seen(reader.recv(WATCHDOG)) == expected(value)
    value = {"x": ("cuda", np.arange(400000.0))}
    assert passed(gpu, writer, reader, value) == expected(value)
    assert writer.gpu.pool_frames == 4


@pytest.mark.parametrize("value", ["", "0"])
def test_without_an_ask_there_is_no_pool(gpu, value):
    with peers.environment(RINGCAST_GPU_POOL_BYTES=value):
        writer, reader = gpu.pair()
        for _ in range(2):
            assert passed(gpu, writer, reader, {"x": ("cuda", np.arange(5))}) == expected({"x": ("cuda", np.arange(5))})
        assert (writer.gpu.way, writer.gpu.pool_frames, writer.gpu.inline_frames) == ("no_pool", 0, 2)
        asking, _ = gpu.opened({"gpu_pool_bytes": 2 * MEGABYTE})
        assert (asking.gpu.way, asking.gpu.pool_bytes) == ("pool" if value == "" else "waiting", 2 * MEGABYTE)


def test_options_are_checked():
    with pytest.raises((ValueError, OverflowError), match="gpu_pool_bytes"):
        ringcast.Writer(gpu_pool_bytes=-1)
    with pytest.raises(TypeError):
        ringcast.Writer(gpu_pool_bytes="1")


# ---- Where it arrives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["cpu", "cuda"])
def test_map_location(gpu, location):
    writer, reader = gpu.pair(map_location=location)
    for value in [VALUE] * 3 + [{"c": ("cpu", np.arange(300000))}]:
        wanted = expected(value)
        wanted["c"] = ("cpu" if location == "cpu" else "cuda:0", *wanted["c"][1:])
        if location == "cpu" and value is VALUE:
            wanted["x"], wanted["o"] = ("cpu", *wanted["x"][1:]), ("numpy", *wanted["o"][1:])
            wanted["n"]["deep"][0] = ("cpu", *wanted["n"]["deep"][0][1:])
        assert passed(gpu, writer, reader, value) == wanted
    assert writer.gpu.pool_frames == 2


BAD = ["cud", "cuda:", "cuda:x", "mps", 3, "cuda:-1", *(f"cuda:{i}" for i in (1024, 1 << 32, (1 << 32) + 1, 1 << 70))]


@pytest.mark.parametrize("location", BAD)
def test_another_map_location_is_refused(ring, location):
    with pytest.raises(ValueError, match="map_location must be"):
        ringcast.Reader(ring[0].handle, map_location=location)


def use_device(state, ordinal):
    state["torch"].cuda.set_device(ordinal)


def test_several_devices(two_devices):
    writer, reader, third = two_devices
    handle = writer.call(peers.make_writer, MEGABYTE)
    reader.call(peers.attach, handle, {"map_location": "cuda:1"})
    third.call(use_device, 1)
    third.call(peers.attach, handle)
    value = {"x": ("cuda", np.arange(9), {"device": 1}), "y": ("cuda", np.arange(70000), {"device": 0})}
    wanted = {key: ("cuda:1", *told(*item)[1:]) for key, item in value.items()}
    for _ in range(3):
        assert exchange(writer, [reader, third], value) == [wanted] * 2
    with pytest.raises(TypeError, match=r"value\['o'\] is a tensor on device 'cuda:0', and this Writer .* 'cuda:1'"):
        writer.call(peers.send, {"o": ("other", np.arange(3), {"device": 0})})
    assert writer.call(peers.gpu).device == 1
    for peer in (reader, third, writer):
        peer.call(peers.close)


# ---- Other libraries -------------------------------------------------------------------------------------------------


def test_arrays_of_cupy_and_jax_stay_theirs(gpu):
    import cupy
    import jax

    writer, reader = gpu.pair()
    del cupy.asked[:], jax.asked[:]
    value = {"c": ("cupy", np.arange(6.0).reshape(2, 3)), "j": ("jax", np.arange(5)), "e": ("cupy", np.empty((0, 2)))}
    strided = {"t": ("cupy", np.arange(24.0), {"shape": (4, 5), "strides": (1, 4)})}
    for each in [value] * 3 + [strided]:
        assert passed(gpu, writer, reader, each) == expected(each)
    assert set(cupy.asked) == {1} == set(jax.asked)


def test_what_its_library_refuses_stays_a_device_tensor(gpu):
    """As JAX does where it is for the CPU alone; the frame is not lost."""
    import cupy
    import jax.dlpack

    writer, reader = gpu.pair()
    value = {"j": ("jax", np.arange(3.0)), "c": ("cupy", np.arange(3.0)), "n": 1}
    refuse = mock.Mock(side_effect=RuntimeError("Unknown backend: 'cuda' requested"))
    with mock.patch.object(jax.dlpack, "from_dlpack", refuse), mock.patch.object(cupy, "from_dlpack", refuse):
        writer.send(gpu.make(value), WATCHDOG)
        got = reader.recv(WATCHDOG)
    for function in (np.asarray, np.array):
        with pytest.raises(TypeError, match='map_location="cpu"'):
            function(got["j"])
    assert seen(got) == {"j": told("other", np.arange(3.0)), "c": told("other", np.arange(3.0)), "n": 1}


def test_a_frame_of_several_streams_goes_through_the_ring(gpu):
    import cupy

    writer, reader = gpu.opened()
    array = np.arange(30000.0)
    for inline in (2, 3):
        with mock.patch.object(cupy.cuda, "stream", gpu.side):
            with gpu.on_side():
                mine = gpu.tensor(array)
            value = {"c": cupy.ndarray(mine), "t": gpu.tensor(array)}
            with gpu.counting("cuStreamSynchronize") as waits:
                writer.send(value, WATCHDOG)
            assert cupy.asked[-1] == gpu.side.cuda_stream and waits == [2]  # for each of the streams
        assert seen(reader.recv(WATCHDOG)) == {"c": told("cupy", array), "t": told("cuda", array)}
        assert writer.gpu.inline_frames == inline


class Refusing:
    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None):
        raise BufferError("it is busy")


class Elsewhere:
    def __dlpack_device__(self):
        return 10, 0

    def __dlpack__(self, **_):
        raise AssertionError("it should not be asked")


class Broken(Elsewhere):
    def __dlpack_device__(self):
        raise ValueError("on several devices")


def test_what_an_array_refuses_is_said_with_its_place(ring):
    with pytest.raises(BufferError, match=r"^value\['a'\]\[1\]: it is busy$"):
        ring[0].send({"a": [0, Refusing()]}, 0)


@pytest.mark.parametrize("kind", [Elsewhere, Broken])
def test_what_is_on_no_cuda_device_goes_by_pickle(ring, kind):
    writer, reader = ring
    writer.send({"x": kind(), "y": [kind()]}, 0)
    got = reader.recv(0)
    assert type(got["x"]) is kind and type(got["y"][0]) is kind


# ---- Without a device ------------------------------------------------------------------------------------------------


def status_of(state):
    return ringcast.gpu_status()


def test_a_writer_that_may_not_use_it_says_why(no_gpu, gpus):
    no_gpu.call(peers.make_writer, MEGABYTE)
    for value in ({"x": ("cuda", np.arange(3))}, [("other", np.arange(3))]):
        with pytest.raises(TypeError, match=r"value\[.*\] is a tensor on device 'cuda:0', and .*RINGCAST_DISABLE"):
            no_gpu.call(peers.send, value)
    assert no_gpu.call(peers.gpu) is None
    no_gpu.call(peers.close)
    status = no_gpu.call(status_of)
    assert not status.ready and "RINGCAST_DISABLE" in status.why
    status = gpus[0].call(status_of)
    assert status.ready and status.why == "" and status.devices == 1 and status.version >= 12000


def test_a_reader_without_one_is_told_how_to_go_on_and_holds_the_others_to_the_ring(rings, no_gpu):
    writer, others = rings()
    value = {"x": ("cuda", np.arange(70000))}
    no_gpu.call(peers.attach, writer.call(handle_of))
    for _ in range(3):
        assert exchange(writer, others, value) == [expected(value)]
        with pytest.raises(ringcast.Error, match=re.escape('map_location="cpu"')):
            no_gpu.call(peers.receive)
    info = writer.call(peers.gpu)
    assert (info.inline_frames, info.pool_frames) == (3, 0) and info.way in ("waiting", "refused")
    no_gpu.call(peers.close)
    no_gpu.call(peers.attach, writer.call(handle_of), {"map_location": "cpu"})
    assert exchange(writer, [*others, no_gpu], value) == [expected(value), {"x": ("cpu", *told(*value["x"])[1:])}]
    no_gpu.call(peers.close)
    for _ in range(2):
        assert exchange(writer, others, value) == [expected(value)]
    assert writer.call(peers.gpu).pool_frames == 2
