# SPDX-License-Identifier: Apache-2.0
"""`wait` of Writer and Reader, and RINGCAST_WAIT."""

import re

import pytest

import ringcast

NAMED = "wait is 'fast': it must be 'balanced', 'latency' or 'power'"


@pytest.mark.parametrize("mode", ["balanced", "latency", "power"])
@pytest.mark.parametrize("by_environment", [False, True])
def test_each_mode_is_taken_and_frames_arrive(monkeypatch, mode, by_environment):
    if by_environment:
        monkeypatch.setenv("RINGCAST_WAIT", mode)
    options = {} if by_environment else {"wait": mode}
    with ringcast.Writer(1 << 16, **options) as writer, ringcast.Reader(writer.handle, **options) as reader:
        writer.send_bytes(b"frame", 0)
        assert reader.recv(0) == b"frame"


def test_another_mode_is_an_error_that_names_it_and_the_right_ones(ring):
    writer, _ = ring
    for make in [lambda: ringcast.Writer(wait="fast"), lambda: ringcast.Reader(writer.handle, wait="fast")]:
        with pytest.raises(ValueError, match=f"^{re.escape(NAMED)}$"):
            make()


def test_what_is_no_text_is_refused(ring):
    for mode in [None, 1, b"power"]:
        with pytest.raises(TypeError):
            ringcast.Writer(wait=mode)
        with pytest.raises(TypeError):
            ringcast.Reader(ring[0].handle, wait=mode)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("RINGCAST_WAIT", "RINGCAST_WAIT is 'fast': it must be balanced, latency or power"),
        ("RINGCAST_SPIN_US", "RINGCAST_SPIN_US is 'fast': it must be a whole number"),
        ("RINGCAST_DISABLE", "RINGCAST_DISABLE has 'fast'"),
    ],
)
def test_the_environment_is_named_where_it_is_wrong(monkeypatch, ring, variable, words):
    writer, _ = ring
    monkeypatch.setenv(variable, "fast")
    for make in [ringcast.Writer, lambda: ringcast.Reader(writer.handle)]:
        with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
            make()


def test_who_asks_for_a_mode_needs_none_of_the_environment(monkeypatch):
    monkeypatch.setenv("RINGCAST_WAIT", "fast")
    for mode in ["latency", "power"]:
        with ringcast.Writer(1 << 16, wait=mode) as writer, ringcast.Reader(writer.handle, wait=mode):
            pass
