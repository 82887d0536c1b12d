# SPDX-License-Identifier: Apache-2.0
"""
Frames that are too large for the ring: they go through spill memory, and nobody sees a difference.
"""

import pickle

import numpy as np
import pytest

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
    with (
        ringcast.Writer(1 << 16, spill_bytes=1 << 30) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        yield writer, reader


# ---- What goes through it ------------------------------------------------------------------------


def test_large_bytes_arrive(small):
    writer, reader = small
    writer.send_bytes(pattern(100, 4), 0)
    writer.send_bytes(pattern(2, 5).reshape(2, -1)[:, ::-1], 0)  # not contiguous
    assert is_pattern(reader.recv(0), 100, 4)
    assert np.array_equal(
        np.frombuffer(reader.recv(0), np.uint64), pattern(2, 5).reshape(2, -1)[:, ::-1].ravel()
    )


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


# ---- How much ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong, error, text", [
    (-1, ValueError, "spill_bytes"),
    ((1 << 40) + 1, ValueError, "spill_bytes"),
    (1 << 70, ValueError, "spill_bytes"),
    ("4G", TypeError, "spill_bytes"),
    (4e9, TypeError, "spill_bytes"),
])  # fmt: skip
def test_a_budget_that_is_none_is_refused(wrong, error, text):
    with pytest.raises(error, match=f"^{text}"):
        ringcast.Writer(1 << 16, spill_bytes=wrong)


def test_the_environment_says_how_much_where_the_program_does_not(monkeypatch):
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", str(6 * MIB))
    for asked, got in ((None, 6 * MIB), (0, 0), (2 * MIB, 2 * MIB)):
        with ringcast.Writer(1 << 16, spill_bytes=asked) as writer:
            assert writer.info().spill_bytes == got


@pytest.mark.parametrize(
    "size, wanted", [(4 * MIB - 16, 4 * MIB), (4 * MIB - 15, 6 * MIB), ((1 << 40) - 16, 1 << 40)]
)
def test_the_budget_that_the_error_names_is_the_least(size, wanted):
    with (
        ringcast.Writer(1 << 16, spill_bytes=2 * MIB) as writer,
        pytest.raises(ringcast.FrameTooLarge) as raised,
    ):
        writer.reserve(size, 0)
    assert raised.value.spill_bytes == wanted
    with ringcast.Writer(1 << 16, spill_bytes=wanted) as enough:
        most = enough.info().max_frame
        assert most - 2 * MIB < size <= most


def test_a_frame_that_is_too_large_can_be_pickled_with_what_it_tells():
    with (
        ringcast.Writer(1 << 16, spill_bytes=0) as writer,
        pytest.raises(ringcast.FrameTooLarge) as raised,
    ):
        writer.send_bytes(bytes(MIB))
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.errno, str(copy)) == (raised.value.errno, str(raised.value))
    assert (
        (copy.spill_bytes, copy.capacity)
        == (raised.value.spill_bytes, raised.value.capacity)
        == (2 * MIB, 4 * MIB)
    )
