# SPDX-License-Identifier: Apache-2.0
"""Rings by name, and the lags of their readers."""

import os
import subprocess
import sys

import pytest
import ringcast


@pytest.fixture
def name():
    return f"test.rings-{os.getpid()}"


def of_name(name):
    return [ring for ring in ringcast.rings() if ring.name == name]


def test_a_ring_is_found_by_its_name(name):
    with pytest.raises(ringcast.RingNotFound, match="ringcast list"):
        ringcast.find(name)
    with ringcast.Writer(4096, name=name) as writer:
        assert of_name(name) == [ringcast.Ring(name, os.getpid(), writer.handle)]
        for text in (name, f"{name}@{os.getpid()}", writer.handle):
            assert ringcast.find(text) == writer.handle
        assert writer.name == writer.info().name == name
        with ringcast.Reader(ringcast.find(name)) as reader, ringcast.Tap(writer.handle) as tap:
            assert reader.info().name == tap.info().name == name
    assert of_name(name) == []


def test_a_name_of_several_rings_is_refused_and_they_are_listed(name):
    with ringcast.Writer(4096, name=name) as first, ringcast.Writer(4096, name=name) as second:
        with pytest.raises(ValueError, match="stands for 2 rings") as error:
            ringcast.find(name)
        assert first.handle in str(error.value) and second.handle in str(error.value)
        assert len(of_name(name)) == 2


def test_a_writer_with_another_boot_time_is_told_in_words():
    elsewhere = ["unshare", "--time", "--fork", "--boottime", "100000"]
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode != 0:
        pytest.skip("no time namespace can be made")
    attach = "import ringcast, sys; ringcast.Reader(sys.argv[1])"
    with ringcast.Writer(4096) as writer:
        reader = [*elsewhere, sys.executable, "-c", attach, writer.handle]
        outcome = subprocess.run(reader, capture_output=True, text=True)
        assert "ProtocolError" in outcome.stderr and "time namespace" in outcome.stderr, (
            outcome.stderr
        )


def test_a_ring_without_a_name_has_an_empty_one():
    with ringcast.Writer(4096) as writer:
        assert writer.name == ""
        assert writer.handle in [ring.handle for ring in of_name("")]


@pytest.mark.parametrize("bad", ["", "a b", "a@1", "x" * 48, "ä", "a/b"])
def test_names_that_will_not_do_are_refused(bad):
    with pytest.raises(ValueError, match="can't be a ring's name"):
        ringcast.Writer(4096, name=bad)


def test_types_are_checked():
    with pytest.raises(TypeError, match="name must be a str or None, not int"):
        ringcast.Writer(4096, name=1)
    with pytest.raises(TypeError, match="ring must be a str, not int"):
        ringcast.find(1)
    with pytest.raises(ValueError):
        ringcast.Writer(4096, name="a\0b")


def test_a_tap_is_not_counted_and_loses_what_it_was_too_slow_for():
    with (
        ringcast.Writer(8192, 1) as writer,
        ringcast.Reader(writer.handle, name="rank 1") as reader,
    ):
        with ringcast.Tap(writer.handle) as tap:
            writer.send({"step": 1})
            assert tap.recv(timeout=10) == reader.recv(timeout=10) == {"step": 1}
            assert (
                [peer.name for peer in writer.peers()]
                == [peer.name for peer in tap.peers()]
                == ["rank 1"]
            )
            for _ in range(20):  # more than the ring holds
                writer.send_bytes(bytes(1000), timeout=0)
                reader.recv(timeout=0)
            with pytest.raises(TimeoutError):
                tap.recv(timeout=0)
            assert tap.lost().gaps == 1
            assert writer.check() is None


def test_lags_are_in_frames_too():
    with (
        ringcast.Writer(8192, 2) as writer,
        ringcast.Reader(writer.handle) as slow,
        ringcast.Reader(writer.handle) as quick,
    ):
        for _ in range(3):
            writer.send_bytes(b"frame")
            quick.recv(timeout=10)
        assert [peer.lag_frames for peer in writer.peers()] == [3, 0]
        slow.recv(timeout=10)
        assert [peer.lag_frames for peer in writer.peers()] == [2, 0]
