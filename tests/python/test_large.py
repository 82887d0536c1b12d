# SPDX-License-Identifier: Apache-2.0
"""Frames that are too large for the ring: they go through spill memory, and nobody sees a difference."""

import os
import pickle
import signal

import numpy as np
import pytest
from needs import needs_torch, torch
from peers import WATCHDOG, attach, call_all, detach

import ringcast

MIB = 1 << 20


def pattern(mib, seed):
    """Eight-byte words that are all different, within a seed and between two."""
    return np.arange(mib << 17, dtype=np.uint64) * 0x9E3779B97F4A7C15 + np.uint64(seed)


def is_pattern(data, mib, seed):
    """Each byte is compared."""
    words = np.frombuffer(data, np.uint64)
    return len(words) == mib << 17 and not np.bitwise_or.reduce(words ^ pattern(mib, seed))


@pytest.fixture
def small():
    """A ring of 64 KiB, spill memory of 1 GiB, a reader in this process."""
    with ringcast.Writer(1 << 16, spill_bytes=1 << 30) as writer, ringcast.Reader(writer.handle) as reader:
        yield writer, reader


@pytest.fixture
def tight():
    """Spill memory of 8 MiB."""
    with ringcast.Writer(1 << 16, spill_bytes=8 * MIB) as writer:
        yield writer


# ---- What goes through it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mib", [64, 300])
def test_a_dict_with_a_large_array_arrives_whole(small, mib):
    writer, reader = small
    sent = {"a": pattern(mib, 1).reshape(4, -1), "step": 7}
    writer.send(sent, 0, tag=3)
    sent["a"] = None  # the reader has a copy
    got, tag = reader.recv_tagged(0)
    assert (list(got), got["step"], tag) == (["a", "step"], 7, 3)
    assert got["a"].shape == (4, mib << 15) and got["a"].flags.writeable and is_pattern(got["a"], mib, 1)


@needs_torch
@pytest.mark.parametrize("mib", [64, 300])
def test_a_dict_with_a_large_tensor_arrives_whole(small, mib):
    writer, reader = small
    tensor = torch.from_numpy(pattern(mib, 2).view(np.float32)).reshape(2, -1)
    writer.send({"t": tensor, "text": "x"}, 0)
    got = reader.recv(0)
    assert got["text"] == "x" and got["t"].dtype == torch.float32 and got["t"].shape == tensor.shape
    assert is_pattern(got["t"].numpy(), mib, 2)


@needs_torch
def test_large_tensors_of_any_strides_arrive_in_order(small):
    writer, reader = small
    tensor = torch.from_numpy(pattern(16, 1).view(np.int64)).reshape(1024, -1)
    for _ in range(2):
        writer.send({"x": tensor.t(), "y": tensor[::2]}, 0)
        got = reader.recv(0)
        assert torch.equal(got["x"], tensor.t()) and torch.equal(got["y"], tensor[::2])
        assert got["x"].is_contiguous()


def test_large_pickled_leaves_and_their_buffers_arrive(small):
    writer, reader = small
    sent = {"list": [pattern(20, 1), "x" * (9 * MIB)], "bytes": bytes(pattern(10, 2)), "set": set(range(300_000))}
    writer.send(sent, 0)
    got = reader.recv(0)
    assert is_pattern(got["list"][0], 20, 1) and got["list"][1] == sent["list"][1]
    assert is_pattern(got["bytes"], 10, 2) and got["set"] == sent["set"]
    writer.send([pattern(20, 3)], 0)
    assert is_pattern(reader.recv(0)[0], 20, 3)


def test_large_bytes_arrive(small):
    writer, reader = small
    writer.send_bytes(pattern(100, 4), 0)
    writer.send_bytes(pattern(2, 5).reshape(2, -1)[:, ::-1], 0)  # not contiguous
    assert is_pattern(reader.recv(0), 100, 4)
    assert np.array_equal(np.frombuffer(reader.recv(0), np.uint64), pattern(2, 5).reshape(2, -1)[:, ::-1].ravel())


def test_a_large_error_arrives(small):
    writer, reader = small
    writer.send_error("no " * MIB, 0)
    with pytest.raises(ringcast.SendError) as raised:
        reader.recv(0)
    assert str(raised.value) == "no " * MIB


def test_a_large_packed_frame_goes_on_two_rings(small):
    packed = ringcast.pack({"a": pattern(64, 6)})
    with ringcast.Writer(1 << 20, spill_bytes=128 * MIB) as other, ringcast.Reader(other.handle) as end:
        for tag, (writer, reader) in enumerate([small, (other, end)]):
            writer.send(packed, 0, tag=tag)
            got, tagged = reader.recv_tagged(0)
            assert tagged == tag and is_pattern(got["a"], 64, 6)


def test_large_frames_are_written_and_read_in_place(small):
    writer, reader = small
    with writer.reserve(64 * MIB, 0) as span:
        array = np.frombuffer(span, np.uint64)
        array[:] = pattern(64, 7)
        del array
    with reader.next(0) as frame:
        assert len(frame) == 64 * MIB and frame.kind == ringcast.KIND_BYTES
        with memoryview(frame) as view:
            assert view.readonly and is_pattern(view, 64, 7)


def test_a_span_grows_out_of_the_ring_and_keeps_what_was_written(small):
    writer, reader = small
    span = writer.reserve(1000, 0)
    words = pattern(8, 8)
    for size in (1000, 100_000, MIB, 8 * MIB):
        span.grow(size, timeout=0)
        with memoryview(span) as view:
            view[:size] = words.view(np.uint8)[:size] if size == 1000 else bytes(view[:1000]) + bytes(size - 1000)
    with memoryview(span) as view:
        view[1000:] = words.view(np.uint8)[1000:]
    span.commit()
    assert is_pattern(reader.recv(0), 8, 8)


def test_small_and_large_frames_come_in_order(small):
    writer, reader = small
    for number in range(30):
        writer.send({"n": number, "a": np.full(number % 3 * MIB, number, np.uint8)}, 0)
        writer.send(number, 0)
    for number in range(30):
        got = reader.recv(0)
        assert got["n"] == number and len(got["a"]) == number % 3 * MIB and (got["a"] == number).all()
        assert reader.recv(0) == number


def test_a_tap_copies_a_large_frame_that_is_still_held(small):
    writer, _ = small
    with ringcast.Tap(writer.handle) as tap:
        writer.send({"a": pattern(16, 9)}, 0)
        assert is_pattern(tap.recv(0)["a"], 16, 9)


def test_what_was_received_is_no_part_of_spill_memory(tight):
    with ringcast.Reader(tight.handle) as reader:
        kept = []
        for seed in range(6):
            tight.send({"a": pattern(6, seed)}, 0)  # there is room for one
            kept.append(reader.recv(0)["a"])
        assert all(is_pattern(array, 6, seed) for seed, array in enumerate(kept))


# ---- Several readers -----------------------------------------------------------------------------------------------


def check_received(state, mib, seeds):
    for seed in seeds:
        got = state["reader"].recv(WATCHDOG)
        assert got["seed"] == seed and is_pattern(got["a"], mib, seed)
        if torch:
            assert is_pattern(got["t"].numpy(), mib, seed + 100)


def test_large_frames_arrive_at_several_readers_through_little_spill_memory(crew):
    with ringcast.Writer(1 << 16, spill_bytes=80 * MIB) as writer:
        call_all(crew, attach, writer.handle)
        for peer in crew:
            peer.start(check_received, 32, range(4))
        for seed in range(4):
            tensor = torch.from_numpy(pattern(32, seed + 100).view(np.int64)) if torch else None
            writer.send({"seed": seed, "a": pattern(32, seed), "t": tensor}, WATCHDOG)
        for peer in crew:
            peer.finish()
        assert writer.info().spill_used <= 80 * MIB
        call_all(crew, detach)


# ---- When it is full -----------------------------------------------------------------------------------------------


def test_a_writer_without_spill_memory_to_spare_names_who_holds_it(tight, peer):
    peer.call(attach, tight.handle, "rank 1")
    tight.send({"a": pattern(5, 1)}, 0)
    for send in (lambda: tight.send({"a": pattern(5, 2)}, 0.01), lambda: tight.reserve(5 * MIB, 0.01)):
        with pytest.raises(TimeoutError, match=rf"spill memory \({8 * MIB} bytes\) is full: .*rank 1"):
            send()
    with pytest.raises(TimeoutError, match="spill memory is full right now"):
        tight.send_bytes(pattern(5, 2), 0)
    tight.send("small ones go on", 0)
    assert is_pattern(peer.call(receive_a), 5, 1)
    tight.send({"a": pattern(5, 2)}, WATCHDOG)
    peer.call(detach)


def receive_a(state):
    return state["reader"].recv(WATCHDOG)["a"]


def hold(state):
    state["frame"] = state["reader"].next(WATCHDOG)
    return len(state["frame"])


def test_a_reader_that_was_killed_with_a_large_frame_is_named_and_holds_nobody_else(tight, peer):
    peer.call(attach, tight.handle, "rank 1")
    with ringcast.Reader(tight.handle) as reader:
        tight.send_bytes(pattern(5, 1), 0)
        assert peer.call(hold) == 5 * MIB
        os.kill(peer.pid, signal.SIGKILL)
        peer.process.join(WATCHDOG)
        with pytest.raises(ringcast.ReaderDied, match="rank 1"):
            while True:
                tight.send_bytes(pattern(5, 2), WATCHDOG)
        assert is_pattern(reader.recv(0), 5, 1)


def test_what_a_machine_can_never_give_is_an_error_and_the_ring_goes_on():
    with ringcast.Writer(1 << 16, spill_bytes=1 << 40) as writer, ringcast.Reader(writer.handle) as reader:
        wanted = (1 << 40) - 4 * MIB
        for send in (
            lambda: writer.reserve(wanted, 0),
            lambda: writer.send({"a": np.broadcast_to(np.zeros(1, np.uint8), (wanted,))}, 0),
        ):
            with pytest.raises(ringcast.Error, match="spill memory") as raised:
                send()
            assert type(raised.value) is ringcast.Error and writer.info().spill_used == 0
        writer.send({"a": pattern(1, 1)}, 0)
        assert is_pattern(reader.recv(0)["a"], 1, 1)


# ---- How much ------------------------------------------------------------------------------------------------------


def test_the_budget_is_rounded_up_to_2_mib():
    for asked, got in ((0, 0), (1, 2 * MIB), (2 * MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB)):
        with ringcast.Writer(1 << 16, spill_bytes=asked) as writer:
            assert writer.spill_bytes == writer.info().spill_bytes == got


@pytest.mark.parametrize("wrong, error, text", [
    (-1, ValueError, "spill_bytes must be from 0 to 1099511627776, not -1"),
    ((1 << 40) + 1, ValueError, "spill_bytes must be from 0 to 1099511627776"),
    (1 << 70, ValueError, "spill_bytes must be from 0 to 1099511627776"),
    ("4G", TypeError, "spill_bytes must be an int, not str"),
    (4e9, TypeError, "spill_bytes must be an int, not float"),
])  # fmt: skip
def test_a_budget_that_is_none_is_refused(wrong, error, text):
    with pytest.raises(error, match=f"^{text}"):
        ringcast.Writer(1 << 16, spill_bytes=wrong)


def test_the_environment_says_how_much_where_the_program_does_not(monkeypatch):
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", str(6 * MIB))
    for asked, got in ((None, 6 * MIB), (0, 0), (2 * MIB, 2 * MIB)):
        with ringcast.Writer(1 << 16, spill_bytes=asked) as writer:
            assert writer.spill_bytes == got
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", "0")
    with ringcast.Writer(1 << 16) as writer:
        assert writer.spill_bytes == 0
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", "4G")
    with pytest.raises(ValueError, match="RINGCAST_SPILL_BYTES is '4G'"):
        ringcast.Writer(1 << 16)


@pytest.mark.parametrize("size, wanted", [(4 * MIB - 16, 4 * MIB), (4 * MIB - 15, 6 * MIB), ((1 << 40) - 16, 1 << 40)])
def test_the_budget_that_the_error_names_is_the_least(size, wanted):
    with ringcast.Writer(1 << 16, spill_bytes=2 * MIB) as writer, pytest.raises(ringcast.FrameTooLarge) as raised:
        writer.reserve(size, 0)
    assert raised.value.spill_bytes == wanted
    with ringcast.Writer(1 << 16, spill_bytes=wanted) as enough:
        assert enough.max_frame - 2 * MIB < size <= enough.max_frame


def test_a_frame_that_is_too_large_can_be_pickled_with_what_it_tells():
    with ringcast.Writer(1 << 16, spill_bytes=0) as writer, pytest.raises(ringcast.FrameTooLarge) as raised:
        writer.send_bytes(bytes(MIB))
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.errno, str(copy)) == (raised.value.errno, str(raised.value))
    assert (copy.spill_bytes, copy.capacity) == (raised.value.spill_bytes, raised.value.capacity) == (2 * MIB, 4 * MIB)
