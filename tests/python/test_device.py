# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device, from process to process, on a driver that is a fake: what is equal to what."""

import itertools
import random
import re

import device_peers as peers
import numpy as np
import pytest
from device_exchange import exchange, expected, told
from device_peers import COPIES, MEGABYTE, handle_of
from peers import call_all

import ringcast


# ---- Values --------------------------------------------------------------------------------------------------------

KINDS = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]


def random_array(chance, most=2000):
    shape = [chance.choice([0, 1, 1, 2, 3, 5, 7]) for _ in range(chance.randrange(4))]
    if chance.random() < 0.1:
        shape = [chance.randrange(1, most)]
    kind = np.dtype(chance.choice(KINDS))
    raw = chance.randbytes(int(np.prod(shape)) * kind.itemsize)
    return np.frombuffer(raw if kind.kind != "b" else bytes(byte & 1 for byte in raw), kind).reshape(shape)


def random_tensor(chance):
    how, kind = {}, chance.choice(["cuda", "cuda", "cuda", "cpu", "other"])
    array = random_array(chance, 300000)
    if kind == "cuda" and array.dtype in (np.float32, np.float16) and chance.random() < 0.2:
        how = {"parameter": True, "grad": chance.random() < 0.5}
    elif kind == "cuda" and chance.random() < 0.1:
        array, how = np.frombuffer(chance.randbytes(60), np.uint16), {"dtype": "bfloat16"}
    elif kind != "cpu" and chance.random() < 0.3:
        array = np.frombuffer(chance.randbytes(960), np.float32)
        how = chance.choice(
            [
                {"shape": (4, 5), "strides": (1, 4), "offset": 3},
                {"shape": (3, 4, 5), "strides": (40, 2, 8)},
                {"shape": (6, 3), "strides": (7, 0)},
                {"shape": (10,), "strides": (20,), "offset": 1},
            ]
        )
        how = {**how, "dtype": "float32"}
    return kind, array, how


def random_value(chance):
    value = {f"t{i}": random_tensor(chance) for i in range(chance.randrange(1, 9))}
    value["n"] = {"deep": [1, random_tensor(chance), {"x": random_tensor(chance)}], "s": "text"}
    value["numpy"] = random_array(chance)
    return value


@pytest.mark.parametrize("readers", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_random_values_arrive_equal(rings, readers, seed):
    writer, others = rings(readers)
    chance = random.Random(seed * 10 + readers)
    for _ in range(12):
        value = random_value(chance)
        for got in exchange(writer, others, value):
            assert got == expected(value)
    assert writer.call(peers.gpu).pool_frames >= 8


def test_a_value_that_is_a_tensor_and_a_list_of_them(rings):
    writer, others = rings()
    for value in [("cuda", np.arange(5)), [("cuda", np.arange(7.0)), ("cuda", np.float32(3))]]:
        for _ in range(2):
            assert exchange(writer, others, value) == [expected(value)]


@pytest.mark.parametrize("kind", ["cuda", "cupy", "other"])
def test_one_that_is_not_contiguous_is_made_so_by_its_library(rings, kind):
    writer, others = rings()
    value = {"t": (kind, np.arange(10000.0), {"shape": (100, 100), "strides": (1, 100)})}
    for _ in range(2):
        assert exchange(writer, others, value) == [expected(value)]


def test_only_empty_ones(rings):
    writer, others = rings()
    value = {"e": ("cuda", np.empty((0, 4), np.float32)), "o": ("other", np.empty((2, 0)))}
    assert exchange(writer, others, value) == [expected(value)]


# ---- The way -------------------------------------------------------------------------------------------------------


def test_the_first_frame_goes_through_the_ring_and_all_others_by_the_pool(rings):
    writer, others = rings(2)
    value = {"x": ("cuda", np.arange(300000, dtype=np.float32)), "y": ("cuda", np.arange(9))}
    assert writer.call(peers.gpu) is None
    for i in range(5):
        assert exchange(writer, others, value) == [expected(value)] * 2
        info = writer.call(peers.gpu)
        assert (info.inline_frames, info.pool_frames, info.way) == (1, i, "pool")
    for reader in others:
        info = reader.call(peers.gpu, "reader")
        assert (info.opens, info.pool_frames, info.inline_frames, info.way) == (1, 4, 1, "pool")


WAITS = "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "fake_host_waits", "cuStreamQuery"


def send_counted(state, value, times):
    made = peers.make(state["torch"], value)
    before = peers.calls(*WAITS, *COPIES)
    for _ in range(times):
        state["writer"].send(made, peers.WATCHDOG)
    after = peers.calls(*WAITS, *COPIES)
    return [now - then for now, then in zip(after, before)]


def receive_counted(state, times):
    before = peers.calls(*WAITS, *COPIES, "cuIpcOpenMemHandle")
    got = [state["reader"].recv(peers.WATCHDOG) for _ in range(times)]
    after = peers.calls(*WAITS, *COPIES, "cuIpcOpenMemHandle")
    return [now - then for now, then in zip(after, before)], [peers.seen(value) for value in got]


def test_nobody_waits_for_the_device_and_small_tensors_are_one_copy(rings):
    writer, others = rings()
    value = {f"{i}": ("cuda", np.arange(i + 1, dtype=np.int32)) for i in range(30)}
    value["large"] = ("cuda", np.arange(400000, dtype=np.float32))
    others[0].start(receive_counted, 1)
    writer.call(peers.send, value)
    counted, got = others[0].finish()
    assert got == [expected(value)] and counted[-1] == 1  # the pool was opened, and tried
    others[0].start(receive_counted, 10)
    assert writer.call(send_counted, value, 10) == [0, 0, 0, 0, 0, 310, 0, 0]
    counted, got = others[0].finish()
    assert got == [expected(value)] * 10
    assert counted == [0, 0, 0, 0, 0, 20, 0, 0, 0]  # each time an arena, and the large one


def test_who_receives_through_the_ring_does_not_wait_either(rings):
    writer, others = rings(1, {"gpu_pool_bytes": 0})
    value = {f"{i}": ("cuda", np.arange(i + 1, dtype=np.int32)) for i in range(30)}
    assert exchange(writer, others, value) == [expected(value)]
    others[0].start(receive_counted, 10)
    writer.call(send_counted, value, 10)
    counted, got = others[0].finish()
    assert got == [expected(value)] * 10 and counted == [0, 0, 0, 0, 0, 0, 10, 0, 0]


def send_and_overwrite(state, array, times):
    torch = state["torch"]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.from_numpy(array).cuda()
        for i in range(times):
            tensor.fill_(i)
            state["writer"].send({"i": i, "x": tensor}, peers.WATCHDOG)
        tensor.fill_(-1)


def receive_on_a_stream(state, times):
    torch, told, waits = state["torch"], [], 0
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(times):
            before = peers.calls(*WAITS)
            got = state["reader"].recv(peers.WATCHDOG)
            waits += i > 0 and peers.calls(*WAITS) != before
            told.append((got["i"], set(got["x"].numpy().tolist())))
    return told, waits


def test_the_sender_may_write_to_its_tensor_at_once_in_the_order_of_its_stream(rings):
    writer, others = rings(2)
    for reader in others:
        reader.start(receive_on_a_stream, 40)
    writer.call(send_and_overwrite, np.zeros(50000, np.float32), 40)
    for reader in others:
        assert reader.finish() == ([(i, {float(i)}) for i in range(40)], 0)


def test_a_large_frame_through_the_ring_is_there_as_a_whole(rings):
    writer, others = rings(2, {"gpu_pool_bytes": 0})
    chance = np.random.default_rng(5)
    value = {"c": chance.random(400000), "x": ("cuda", chance.random(600000)), "n": [("cuda", chance.random(200000))]}
    for _ in range(3):
        assert exchange(writer, others, value) == [expected(value)] * 2
    info = writer.call(peers.gpu)
    assert (info.way, info.pool_bytes, info.inline_frames) == ("no_pool", 0, 3)


# ---- A full pool ---------------------------------------------------------------------------------------------------


def test_a_full_pool_sends_through_the_ring(rings):
    writer, others = rings(1, {"gpu_pool_bytes": 2 * MEGABYTE})
    value = {"x": ("cuda", np.arange(60000, dtype=np.float64))}
    exchange(writer, others, value)
    for _ in range(5):
        writer.call(peers.send, value)
    info = writer.call(peers.gpu)
    assert (info.pool_frames, info.inline_frames, info.full) == (4, 2, 1)
    for _ in range(5):
        assert others[0].call(peers.receive) == expected(value)


def test_more_than_the_pool_has_goes_through_the_ring(rings):
    writer, others = rings(1, {"gpu_pool_bytes": 2 * MEGABYTE})
    value = {"x": ("cuda", np.arange(400000, dtype=np.float64))}
    for _ in range(2):
        assert exchange(writer, others, value) == [expected(value)]
    assert writer.call(peers.gpu).pool_frames == 0


# ---- Where it arrives ----------------------------------------------------------------------------------------------

VALUE = {
    "x": ("cuda", np.arange(12, dtype=np.float32).reshape(3, 4)),
    "c": ("cpu", np.arange(5)),
    "o": ("other", np.arange(3, dtype=np.int16)),
    "n": np.arange(4),
    "large": ("cuda", np.arange(200000.0)),
}


def test_map_location_cpu(rings):
    writer, others = rings(2, None, {"map_location": "cpu"})
    wanted = expected(VALUE)
    for key in ("x", "large"):
        wanted[key] = ("cpu", *wanted[key][1:])
    wanted["o"] = ("numpy", *wanted["o"][1:])
    for _ in range(3):
        assert exchange(writer, others, VALUE) == [wanted] * 2
    assert writer.call(peers.gpu).pool_frames == 2


def test_map_location_cuda_takes_the_cpu_s_tensors_there_too(rings):
    writer, others = rings(1, None, {"map_location": "cuda"})
    wanted = expected(VALUE)
    wanted["c"] = ("cuda:0", *wanted["c"][1:])
    for _ in range(3):
        assert exchange(writer, others, VALUE) == [wanted]
    value = {"a": ("cpu", np.arange(5)), "b": ("cpu", np.arange(300000))}
    assert exchange(writer, others, value) == [{k: ("cuda:0", *told(*v)[1:]) for k, v in value.items()}]


@pytest.mark.parametrize("location", ["cud", "cuda:", "cuda:x", "mps", 3, "cuda:-1"])
def test_another_map_location_is_refused(ring, location):
    with pytest.raises(ValueError, match="map_location must be"):
        ringcast.Reader(ring[0].handle, map_location=location)


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


def use_device(state, ordinal):
    state["torch"].cuda.set_device(ordinal)


# ---- Other libraries -----------------------------------------------------------------------------------------------


def streams_asked(state, library):
    return __import__(library).asked


def test_arrays_of_cupy_and_jax_stay_theirs(rings):
    writer, others = rings(2)
    value = {"c": ("cupy", np.arange(6.0).reshape(2, 3)), "j": ("jax", np.arange(5)), "e": ("cupy", np.empty((0, 2)))}
    for _ in range(3):
        assert exchange(writer, others, value) == [expected(value)] * 2
    value = {"t": ("cupy", np.arange(24.0), {"shape": (4, 5), "strides": (1, 4)})}
    assert exchange(writer, others, value) == [expected(value)] * 2
    assert set(writer.call(streams_asked, "cupy")) == {1} == set(writer.call(streams_asked, "jax"))


def send_by_streams(state, array):
    import cupy

    torch = state["torch"]
    cupy.cuda.stream = torch.cuda.Stream()
    try:
        with torch.cuda.stream(cupy.cuda.stream):
            mine = torch.from_numpy(array).cuda()
        theirs = torch.from_numpy(array).cuda()
        before = peers.calls("cuStreamSynchronize")[0]
        state["writer"].send({"c": cupy.ndarray(mine), "t": theirs}, peers.WATCHDOG)
        waits = peers.calls("cuStreamSynchronize")[0] - before
        return cupy.asked[-1] == cupy.cuda.stream.cuda_stream and waits == 2  # for each of the streams
    finally:
        cupy.cuda.stream = None


def test_a_frame_of_several_streams_goes_through_the_ring(rings):
    writer, others = rings()
    array = np.arange(30000.0)
    exchange(writer, others, {"x": ("cuda", array)})
    for inline in (2, 3):
        assert writer.call(send_by_streams, array)
        assert others[0].call(peers.receive) == {"c": told("cupy", array), "t": told("cuda", array)}
        assert writer.call(peers.gpu).inline_frames == inline


def send_what_is_used_again(state, array, times):
    """As a library that is not known may: the array is gone, and its memory is somebody else's by another stream."""
    torch = state["torch"]
    tensor, other = torch.from_numpy(array).cuda(), torch.cuda.Stream()
    for i in range(times):
        tensor.fill_(i)
        torch.cuda.synchronize()
        state["writer"].send(peers.Other(tensor), peers.WATCHDOG)
        with torch.cuda.stream(other):
            tensor.fill_(-1)
        torch.cuda.synchronize()


def test_memory_that_nobody_keeps_is_copied_before_the_call_is_over(rings):
    writer, others = rings(1, {"capacity": 4 * MEGABYTE})
    exchange(writer, others, {"x": ("cuda", np.arange(3))})
    array = np.zeros(100000)
    writer.call(send_what_is_used_again, array, 15)
    for i in range(15):
        assert others[0].call(peers.receive) == told("other", array + i)


# ---- Without a device ----------------------------------------------------------------------------------------------


def test_a_writer_that_may_not_use_it_says_why(no_gpu):
    no_gpu.call(peers.make_writer, MEGABYTE)
    for value in ({"x": ("cuda", np.arange(3))}, [("other", np.arange(3))]):
        with pytest.raises(TypeError, match=r"value\[.*\] is a tensor on device 'cuda:0', and .*RINGCAST_DISABLE"):
            no_gpu.call(peers.send, value)
    assert no_gpu.call(peers.gpu) is None
    status = no_gpu.call(status_of)
    assert not status.ready and "RINGCAST_DISABLE" in status.why
    no_gpu.call(peers.close)


def status_of(state):
    return ringcast.gpu_status()


def test_the_status_of_a_device(gpus):
    status = gpus[0].call(status_of)
    assert status.ready and status.why == "" and status.devices == 1 and status.version >= 12000


def test_a_reader_without_one_is_told_how_to_go_on_and_holds_the_others_to_the_ring(rings, no_gpu):
    writer, others = rings()
    value = {"x": ("cuda", np.arange(70000))}
    no_gpu.call(peers.attach, writer.call(handle_of))
    for _ in range(3):
        others[0].start(peers.receive)
        writer.call(peers.send, value)
        assert others[0].finish() == expected(value)
        with pytest.raises(ringcast.Error, match=re.escape('map_location="cpu"')):
            no_gpu.call(peers.receive)
    info = writer.call(peers.gpu)
    assert (info.inline_frames, info.pool_frames) == (3, 0) and info.way in ("waiting", "refused")
    no_gpu.call(peers.close)
    no_gpu.call(peers.attach, writer.call(handle_of), {"map_location": "cpu"})
    others[0].start(peers.receive)
    writer.call(peers.send, value)
    assert others[0].finish() == expected(value)
    assert no_gpu.call(peers.receive) == {"x": ("cpu", *told(*value["x"])[1:])}
    no_gpu.call(peers.close)
    for _ in range(2):
        assert exchange(writer, others, value) == [expected(value)]
    assert writer.call(peers.gpu).pool_frames == 2


def test_all_are_called_at_once(gpus):
    """So that a crew is as good as one after the other."""
    assert call_all(gpus[:2], status_of) == [gpus[0].call(status_of)] * 2
