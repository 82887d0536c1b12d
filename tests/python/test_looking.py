# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a ring: facts, counts, readers; and by a Tap, what it carries."""

import os
import pickle

import numpy as np
import pytest

import ringcast

# ---- Facts and counts ----------------------------------------------------------------------------


def test_all_sides_tell_the_same_facts(ring):
    writer, reader = ring
    writer.send_bytes(bytes(100), 0)
    with ringcast.Tap(writer.handle) as tap:
        infos = writer.info(), reader.info(), tap.info()
    for info in infos:
        assert isinstance(info, ringcast.Info)
        assert (info.capacity, info.readers) == (1 << 20, 64)
        assert (info.memory, info.writer_pid) == (
            writer.memory,
            os.getpid(),
        ) and info.page_size >= 4096
        assert info.tail == 128  # 16 of header, 100, rounded up to lines
        assert info.numa in ("local", "none", "interleaved", "node") and info.numa_error <= 0
        assert info.spin_ns >= -1
        assert 0 < info.ring_frame < info.capacity < info.max_frame < info.spill_bytes
        assert (info.spill_used, info.spill_error) == (0, 0)


def test_the_use_of_spill_memory_is_seen_by_all_sides():
    with (
        ringcast.Writer(1 << 16, spill_bytes=5 << 20) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        writer.send_bytes(bytes(3 << 20), 0)
        with ringcast.Tap(writer.handle) as tap:
            for info in (writer.info(), reader.info(), tap.info()):
                assert (info.spill_bytes, info.spill_used, info.spill_error) == (
                    6 << 20,
                    4 << 20,
                    0,
                )
    with ringcast.Writer(1 << 16, spill_bytes=0) as writer:
        info = writer.info()
        assert (info.spill_bytes, info.spill_used, info.spill_error) == (0, 0, 0)
        assert 0 < info.max_frame == info.ring_frame


def test_the_spin_time_is_each_ones_own(ring):
    writer, _ = ring
    with ringcast.Reader(writer.handle, spin=0.001) as reader:
        assert reader.info().spin_ns == 1_000_000


@pytest.mark.parametrize("numa", ["local", "none", "interleaved", 0])
def test_the_nodes_can_be_chosen(numa):
    with ringcast.Writer(1 << 16, 1, numa=numa) as writer:
        info = writer.info()
        wanted = "node" if numa == 0 else numa
        # One node leaves nothing to choose, and where mbind is forbidden the kernel chooses.
        assert info.numa in (wanted, "none")


@pytest.mark.parametrize("numa, error", [("near", ValueError), (-1, ValueError), (1.5, TypeError),
                                         (1 << 40, ValueError), (4000, ValueError)])  # fmt: skip
def test_nodes_that_are_none_are_refused(numa, error):
    with pytest.raises(error):
        ringcast.Writer(1 << 16, 1, numa=numa)


def test_what_was_done_is_counted(ring):
    writer, reader = ring
    for size in (10, 20, 30):
        writer.send_bytes(bytes(size), 0)
    reader.recv(0)
    mine, its = writer.stats(), reader.stats()
    assert isinstance(mine, ringcast.Stats)
    assert (mine.frames, mine.bytes, its.frames, its.bytes) == (3, 60, 1, 10)
    with ringcast.Tap(writer.handle) as tap:
        assert tap.stats()[:2] == (3, 60)
    (status,) = writer.peers()
    assert isinstance(status, ringcast.ReaderStatus)
    assert status.stats.frames == 1 and status.stalls == 0 and status.lag == reader.lag > 0


def test_waits_for_room_are_counted_and_those_for_readers_are_not(ring):
    writer, _ = ring
    with pytest.raises(TimeoutError):
        writer.wait_readers(2, 0.001)
    assert writer.stats().waits == 0
    with pytest.raises(TimeoutError):
        while True:
            writer.send_bytes(bytes(1000), 0.001)
    stats = writer.stats()
    assert stats.waits == 1 and stats.waited_ns >= 1_000_000
    assert len(stats.histogram) == 16 and sum(stats.histogram) == 1


# ---- Taps ----------------------------------------------------------------------------------------


@pytest.fixture
def tapped(ring):
    writer, reader = ring
    with ringcast.Tap(writer.handle) as tap:
        yield writer, reader, tap


def test_a_tap_sees_what_is_sent_and_takes_no_slot():
    with ringcast.Writer(1 << 16, readers=1) as writer, ringcast.Tap(writer.handle) as tap:
        with ringcast.Reader(writer.handle) as reader:
            writer.send({"a": np.arange(3)}, 0, tag=5)
            writer.send_bytes(b"raw", 0)
            got, tag = tap.recv_tagged(0)
            assert got["a"].tolist() == [0, 1, 2] and tag == 5
            assert tap.recv(0) == b"raw" and tap.lost() == (0, 0)
            assert reader.recv(0)["a"].tolist() == [0, 1, 2]
            assert [peer.slot for peer in tap.peers()] == [0]
            with pytest.raises(TimeoutError):
                tap.recv(0)


def test_a_tap_shows_frames_as_they_stand_in_the_ring(tapped):
    writer, reader, tap = tapped
    writer.send_bytes(b"abc", 0)
    writer.send(7, 0)
    assert tap.next(0) == ringcast.TapFrame(0, ringcast.KIND_BYTES, b"abc")
    seen = tap.next(0)
    with reader.next(0), pytest.raises(ringcast.Error):
        reader.next(0)
    with reader.next(0) as frame:
        assert (seen.position, seen.kind, seen.data) == (
            frame.position,
            ringcast.KIND_TENSORS,
            bytes(frame),
        )


def test_a_tap_holds_nobody_back_and_counts_what_it_lost(tapped):
    writer, reader, tap = tapped
    for number in range(100):
        writer.send(np.full(10_000, number), 0)  # 80 kB: several rings in all
        reader.recv(0)
    with pytest.raises(TimeoutError):
        while True:
            tap.recv(0)
    lost = tap.lost()
    assert isinstance(lost, ringcast.TapLost) and lost.gaps >= 1 and lost.bytes > 1 << 20
    writer.send("goes on", 0)
    assert tap.recv(0) == "goes on"


def test_what_is_no_handle_is_refused_by_a_tap(tapped):
    writer, reader, tap = tapped
    for handle, error, text in [
        (writer, TypeError, "writer.handle"),
        (reader, TypeError, "reader.handle"),
        (tap, TypeError, "must be a str"),
        (7, TypeError, "must be a str"),
        ("nonsense", ValueError, "not a ringcast handle"),
        (writer.handle + " ", ValueError, "before or after"),
        (writer.handle + "\0", ValueError, "null"),
    ]:
        with pytest.raises(error, match=text):
            ringcast.Tap(handle)
    with pytest.raises(TypeError, match="can't go to another process"):
        pickle.dumps(tap)
    with pytest.raises(TypeError, match="timeout"):
        tap.recv("soon")
    with ringcast.Writer(1 << 16) as gone:
        handle = gone.handle
    with pytest.raises(ringcast.RingNotFound):
        ringcast.Tap(handle)
