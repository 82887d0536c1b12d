# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a ring: its name, facts, counts, readers; and by a Tap, what it carries."""

import os
import subprocess
import sys

import numpy as np
import pytest
from peers import attach

import ringcast


@pytest.fixture
def name():
    return f"test.rings-{os.getpid()}"


def of_name(name):
    return [ring for ring in ringcast.rings() if ring.name == name]


@pytest.fixture
def tapped(ring):
    writer, reader = ring
    with ringcast.Tap(writer.handle) as tap:
        yield writer, reader, tap


# ---- Names ---------------------------------------------------------------------------------------


def test_a_ring_is_found_by_its_name(name):
    with pytest.raises(ringcast.RingNotFound, match="ringcast list"):
        ringcast.find(name)
    with ringcast.Writer(4096, name=name) as writer:
        assert of_name(name) == [ringcast.Ring(name, os.getpid(), writer.handle)]
        for text in (name, f"{name}@{os.getpid()}", writer.handle):
            assert ringcast.find(text) == writer.handle
        with ringcast.Reader(ringcast.find(name)) as reader, ringcast.Tap(writer.handle) as tap:
            assert {writer.name, *(each.info().name for each in (writer, reader, tap))} == {name}
        with ringcast.Writer(4096, name=name) as second:
            with pytest.raises(ValueError) as error:
                ringcast.find(name)
            assert writer.handle in str(error.value) and second.handle in str(error.value)
    assert of_name(name) == []
    with ringcast.Writer(4096) as writer:
        assert writer.name == "" and writer.handle in [ring.handle for ring in of_name("")]


def test_a_writer_with_another_boot_time_is_told_in_words():
    elsewhere = ["unshare", "--time", "--fork", "--boottime", "100000"]
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode != 0:
        pytest.skip("no time namespace can be made")
    attach = "import ringcast, sys; ringcast.Reader(sys.argv[1])"
    with ringcast.Writer(4096) as writer:
        reader = [*elsewhere, sys.executable, "-c", attach, writer.handle]
        told = subprocess.run(reader, capture_output=True, text=True).stderr
        assert "ProtocolError" in told and "time namespace" in told, told


def test_readers_are_known_by_name(peer):
    with ringcast.Writer(1 << 16) as writer:
        peer.call(attach, writer.handle, "rank 1")
        # More than fits, cut inside a character.
        with ringcast.Reader(writer.handle, name="é" * 20):
            told = [(status.pid, status.name) for status in writer.peers()]
        assert told == [(peer.pid, "rank 1"), (os.getpid(), "é" * 15)]


# ---- Facts and counts ----------------------------------------------------------------------------


def test_all_sides_tell_the_same_facts(tapped):
    writer, reader, tap = tapped
    writer.send_bytes(bytes(100), 0)
    for info in writer.info(), reader.info(), tap.info():
        assert isinstance(info, ringcast.Info) and info.page_size >= 4096
        assert (info.capacity, info.readers) == (writer.capacity, 64) == (1 << 20, 64)
        assert (info.memory, info.writer_pid) == (writer.memory, os.getpid())
        assert info.tail == 128  # 16 of header, 100, rounded up to lines
        assert info.numa in ("local", "none", "interleaved", "node") and info.numa_error <= 0
        assert info.spin_ns >= -1
        assert 0 < info.ring_frame < info.capacity < info.max_frame < info.spill_bytes
        assert (info.spill_used, info.spill_error) == (0, 0)
    assert reader.capacity == 1 << 20 and reader.memory == writer.memory
    assert writer.memory in ("hugetlb", "shmem-huge", "pages") and reader.writer_pid == os.getpid()
    for each in tapped:
        assert writer.handle in repr(each) and "open" in repr(each) and not each.closed


@pytest.mark.parametrize("mib, used", [(5, (6 << 20, 4 << 20, 0)), (0, (0, 0, 0))])
def test_the_use_of_spill_memory_is_seen_by_all_sides(mib, used):
    with (
        ringcast.Writer(1 << 16, spill_bytes=mib << 20) as writer,
        ringcast.Reader(writer.handle) as reader,
        ringcast.Tap(writer.handle) as tap,
    ):
        if mib:
            writer.send_bytes(bytes(3 << 20), 0)
        for info in (writer.info(), reader.info(), tap.info()):
            assert (info.spill_bytes, info.spill_used, info.spill_error) == used
            assert mib or 0 < info.max_frame == info.ring_frame


def test_the_spin_time_is_each_ones_own(ring):
    with ringcast.Reader(ring[0].handle, spin=0.001) as reader:
        assert reader.info().spin_ns == 1_000_000


@pytest.mark.parametrize("numa", ["local", "none", "interleaved", 0])
def test_the_nodes_can_be_chosen(numa):
    with ringcast.Writer(1 << 16, 1, numa=numa) as writer:
        # One node leaves nothing to choose, and where mbind is forbidden the kernel chooses.
        assert writer.info().numa in ("node" if numa == 0 else numa, "none")


def test_what_was_done_is_counted(tapped):
    writer, reader, tap = tapped
    for size in (10, 20, 30):
        writer.send_bytes(bytes(size), 0)
    reader.recv(0)
    mine, its = writer.stats(), reader.stats()
    assert isinstance(mine, ringcast.Stats)
    assert (mine.frames, mine.bytes, its.frames, its.bytes) == (3, 60, 1, 10)
    assert tap.stats()[:2] == (3, 60)
    (status,) = writer.peers()
    assert isinstance(status, ringcast.ReaderStatus)
    assert (status.pid, status.state, status.name) == (os.getpid(), "active", "")
    assert status.stats.frames == 1 and status.stalls == 0 and status.lag == reader.lag > 0
    with ringcast.Reader(writer.handle):
        writer.send_bytes(b"frame")
        assert [peer.lag_frames for peer in writer.peers()] == [3, 1]
        reader.recv(0)
        assert [peer.lag_frames for peer in writer.peers()] == [2, 1]


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


def test_a_tap_sees_what_is_sent_as_it_stands_in_the_ring_and_takes_no_slot():
    with ringcast.Writer(1 << 16, readers=1) as writer, ringcast.Tap(writer.handle) as tap:
        with ringcast.Reader(writer.handle, name="rank 1") as reader:
            writer.send({"a": np.arange(3)}, 0, tag=5)
            writer.send_bytes(b"raw", 0)
            writer.send(7, 0)
            got, tag = tap.recv_tagged(0)
            assert got["a"].tolist() == [0, 1, 2] and tag == 5
            seen, last = tap.next(0), tap.next(0)
            assert seen == ringcast.TapFrame(seen.position, ringcast.KIND_BYTES, b"raw")
            assert tap.lost() == (0, 0)
            assert reader.recv(0)["a"].tolist() == [0, 1, 2] and reader.recv(0) == b"raw"
            with reader.next(0) as frame:
                told = frame.position, ringcast.KIND_TENSORS, bytes(frame)
            assert (last.position, last.kind, last.data) == told
            for peers in tap.peers(), writer.peers():
                assert [(peer.slot, peer.name) for peer in peers] == [(0, "rank 1")]
            with pytest.raises(TimeoutError):
                tap.recv(0)


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
    assert tap.recv(0) == "goes on" and writer.check() is None
