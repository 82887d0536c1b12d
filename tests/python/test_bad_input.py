# SPDX-License-Identifier: Apache-2.0
"""Bad input: an error at once that says what is wrong, and a ring that goes on for the others."""

import copy
import errno
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hostile import nested
from peers import still_works

import ringcast


# ---- Handles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handle, error, word",
    [
        ("", ValueError, None),
        ("rc1:", ValueError, None),
        ("a" * 100_000, ValueError, "'aaa"),
        ("rc1:1:1:1:1:" + "g" * 32, ValueError, None),
        ("ré1", ValueError, None),
        ("rc1:%s:%n:1:1:" + "0" * 32, ValueError, None),
        ("hello", ValueError, r"'hello' .*ringcast\.find\(name\)"),
        (None, TypeError, None),
        (b"rc1", TypeError, "bytes"),
        (7, TypeError, "int"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_handle_is_refused_and_shown_shortened(handle, error, word):
    with pytest.raises(error, match=word) as raised:
        ringcast.Reader(handle)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "before, after", [("", "\n"), (" ", ""), ("\t", " "), ("'", "'"), ("", "\u2003"), ("", ",")]
)
def test_a_handle_with_something_around_it_is_shown(ring, before, after):
    handle = before + ring[0].handle + after
    with pytest.raises(ValueError, match="before or after") as raised:
        ringcast.Reader(handle)
    assert repr(handle) in str(raised.value)


def test_what_is_passed_in_place_of_a_handle_or_a_capacity_is_told_where_it_goes(ring):
    for given_, name in zip(ring, ("writer", "reader")):
        with pytest.raises(TypeError, match=f"{name}.handle"):
            ringcast.Reader(given_)
    with pytest.raises(TypeError, match="name="):
        ringcast.Writer("hello")


def test_a_writer_or_reader_can_not_be_copied_or_pickled(ring):
    for handle, name in zip(ring, ("writer", "reader")):
        for take in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"{name}.handle"):
                take(handle)
    with pytest.raises(TypeError, match=r"^value\['w'\]: a Writer"):
        ring[0].send({"w": ring[0]}, 0)


# ---- Values --------------------------------------------------------------------------------------


def test_what_is_larger_than_ring_and_spill_memory_is_refused_at_once():
    with (
        ringcast.Writer(1 << 20, spill_bytes=0) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        large = np.zeros(writer.capacity, np.uint8)
        for send in (
            lambda: writer.send({"a": large}),
            lambda: writer.send([large]),
            lambda: writer.send(bytes(large)),
            lambda: writer.send_bytes(large),
            lambda: writer.send_error("x" * writer.capacity),
            lambda: writer.send(ringcast.pack(large)),
            lambda: writer.reserve(writer.capacity),
            lambda: writer.reserve(2**62),
            lambda: writer.send({"a": np.broadcast_to(np.zeros(1), (2**30, 2**20))}),
        ):
            with pytest.raises(ringcast.FrameTooLarge) as raised:
                send()
            assert raised.value.errno == errno.EMSGSIZE
        assert still_works(writer, reader)


SENDS_3_MIB = (
    lambda writer: writer.send({"a": np.zeros(3 << 20, np.uint8)}, 0),
    lambda writer: writer.send_bytes(bytes(3 << 20), 0),
    lambda writer: writer.send_error("x" * (3 << 20), 0),
    lambda writer: writer.send(ringcast.pack(bytes(3 << 20)), 0),
    lambda writer: writer.reserve(3 << 20),
    lambda writer: writer.reserve((4 << 20) - 144),
)


@pytest.mark.parametrize("budget", [0, 2 << 20])
@pytest.mark.parametrize("send", SENDS_3_MIB)
def test_a_frame_that_is_too_large_tells_how_much_spill_memory_it_needs(send, budget):
    with ringcast.Writer(1 << 16, spill_bytes=budget) as writer:
        with pytest.raises(ringcast.FrameTooLarge, match="spill memory") as raised:
            send(writer)
    assert raised.value.spill_bytes == 4 << 20
    with ringcast.Writer(1 << 16, spill_bytes=raised.value.spill_bytes) as larger:
        send(larger)
    # Without spill memory a larger ring would do, too.
    assert raised.value.capacity == (None if budget else 8 << 20)
    if raised.value.capacity:
        with ringcast.Writer(raised.value.capacity, memory="pages", spill_bytes=0) as larger:
            send(larger)


@pytest.mark.parametrize("budget", [0, 2 << 20])
@pytest.mark.parametrize("size", [2**60, 2**62, (1 << 40) - 15])
def test_what_no_ring_can_hold_is_told_no_number(size, budget):
    with ringcast.Writer(1 << 16, spill_bytes=budget) as writer:
        with pytest.raises(ringcast.FrameTooLarge) as raised:
            writer.reserve(size)
        assert (raised.value.spill_bytes, raised.value.capacity) == (None, None)


def test_the_largest_frame_arrives(ring):
    writer, reader = ring
    most = writer.info().ring_frame
    writer.send_bytes(bytes(most), 0)
    assert writer.info().spill_used == 0
    writer.send_bytes(bytes(most + 1), 0)
    assert writer.info().spill_used > 0
    assert [len(reader.recv(0)) - most for _ in range(2)] == [0, 1]
    with (
        ringcast.Writer(1 << 16, spill_bytes=3 << 20) as other,
        ringcast.Reader(other.handle) as end,
    ):
        most = other.info().max_frame
        assert (other.info().spill_bytes, most) == (4 << 20, (4 << 20) - 16)
        other.send_bytes(bytes(most), 0)
        assert len(end.recv(0)) == most
        with pytest.raises(ringcast.FrameTooLarge):
            other.send_bytes(bytes(most + 1), 0)


def test_an_error_that_was_sent_is_raised(ring):
    writer, reader = ring
    for text in ("no space left on the moon", "\udcff"):
        writer.send_error(text, 0)
        with pytest.raises(ringcast.SendError, match="moon|udcff"):
            reader.recv(0)
    assert still_works(writer, reader)


# ---- Arguments -----------------------------------------------------------------------------------


def test_timeouts_are_seconds(ring):
    writer, reader = ring
    calls = [
        reader.recv,
        reader.recv_tagged,
        reader.next,
        lambda timeout: writer.send(1, timeout),
        lambda timeout: writer.send_bytes(b"", timeout),
        lambda timeout: writer.send_error("", timeout),
        lambda timeout: writer.reserve(1, timeout),
        lambda timeout: writer.wait_readers(1, timeout),
    ]
    for call in calls:
        for bad in (-1, -1e-9, float("nan"), -float("inf"), 10**400):
            with pytest.raises(ValueError, match="timeout"):
                call(bad)
        for bad in ("1", b"", [], object()):
            with pytest.raises(TypeError, match="timeout"):
                call(bad)
    for wait in (None, float("inf"), 1e300, 5, True):
        writer.send(1, wait)
        assert reader.recv(wait) == 1


def test_wrong_arguments_are_refused(ring):
    writer, reader = ring
    for call in (
        lambda: ringcast.Writer("64k"),
        lambda: ringcast.Writer(1.5),
        lambda: ringcast.Writer(readers=None),
        lambda: ringcast.Writer(memory=3),
        lambda: ringcast.Writer(1, 2, "pages"),
        lambda: ringcast.Writer(spin="x"),
        lambda: ringcast.Writer(wait=1),
        lambda: ringcast.Reader(writer.handle, wait=b"power"),
        lambda: ringcast.Reader(),
        lambda: ringcast.Reader(writer.handle, "name"),
        lambda: ringcast.Reader(writer.handle, name=7),
        lambda: writer.send(),
        lambda: writer.send(1, 0, 0),
        lambda: writer.send(1, tag="x"),
        lambda: writer.send(1, obj=1),
        lambda: writer.send(1, colour=1),
        lambda: writer.send_bytes("text", 0),
        lambda: writer.send_bytes(7, 0),
        lambda: writer.send_error(b"bytes", 0),
        lambda: writer.reserve("n"),
        lambda: writer.reserve(1.0),
        lambda: writer.wait_readers("n", 0),
        lambda: ringcast.Span(),
        lambda: ringcast.Frame(),
        lambda: copy.copy(writer),
        lambda: pickle.dumps(reader),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: ringcast.Writer(wait="fast"),
        lambda: ringcast.Reader(writer.handle, wait="fast"),
        lambda: ringcast.Writer(0),
        lambda: ringcast.Writer(-1),
        lambda: ringcast.Writer(2**63),
        lambda: ringcast.Writer(readers=0),
        lambda: ringcast.Writer(readers=10**6),
        lambda: ringcast.Writer(memory="gold"),
        lambda: ringcast.Writer(spin=-1),
        lambda: ringcast.Writer(spin=float("nan")),
        lambda: ringcast.Writer(spin=float("inf")),
        lambda: ringcast.Reader(writer.handle, name="a\0b"),
        lambda: writer.send(1, tag=-1),
        lambda: writer.send(1, tag=2**32),
        lambda: writer.reserve(-1),
        lambda: writer.commit(-1),
        lambda: writer.commit(kind=2**16),
        lambda: writer.wait_readers(-1, 0),
        lambda: writer.wait_readers(2**40, 0),
    ):
        with pytest.raises(ValueError):
            call()
    assert still_works(writer, reader)


def test_an_error_names_the_arguments_of_python(ring):
    writer, reader = ring
    for kind, most in ("readers", 1024), ("capacity", 1 << 40):
        for wrong in 0, most + 1:
            with pytest.raises(ValueError, match=f"{kind} .* {most}, not {wrong}"):
                ringcast.Writer(**{kind: wrong})
    with ringcast.Writer(1 << 16, spill_bytes=0) as small:
        with pytest.raises(ringcast.FrameTooLarge, match="spill_bytes"):
            small.send_bytes(bytes(1 << 20))
    with pytest.raises(ValueError, match="wait .*'fast'.*'latency'"):
        ringcast.Writer(wait="fast")
    writer.send(1, 0)
    with reader.next(0), pytest.raises(ringcast.Error, match="leases"):
        reader.next(0)
    assert still_works(writer, reader)


# ---- The others ----------------------------------------------------------------------------------


@pytest.mark.alike
@pytest.mark.parametrize(
    "module, needed",
    [(f"ringcast.{module}", name) for module in ("torch", "sglang") for name in ("torch", "numpy")],
)
def test_without_what_a_module_needs_it_is_said_what_to_install(module, needed):
    script = f"import sys; sys.modules['{needed}'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"pip install {needed}" in done.stderr.splitlines()[-1]


# ---- Errors that are not the frame's -------------------------------------------------------------


class Key:
    raises = None

    def __hash__(self):
        if Key.raises:
            raise Key.raises
        return 1


@pytest.mark.parametrize(
    "error",
    [
        RecursionError("deep"),
        NotImplementedError("not yet"),
        MemoryError("all gone"),
        ValueError("of its own"),
    ],
)
def test_what_is_no_matter_of_the_frame_is_raised_as_it_is(error, monkeypatch):
    packed = ringcast.pack([{Key(): 1}])
    monkeypatch.setattr(Key, "raises", error)
    with pytest.raises(type(error)) as told:
        ringcast.unpack(packed)
    assert told.value is error


def test_the_cause_of_a_protocol_error_is_kept():
    with pytest.raises(ringcast.ProtocolError, match="a key of a dict: .*unhashable") as told:
        ringcast.unpack(nested("DICT 1 LIST 0 NONE"))
    assert isinstance(told.value.__cause__, TypeError)
