# SPDX-License-Identifier: Apache-2.0
"""
Several frames held at once, and what ends a wait from outside: cancel() and a descriptor to poll.
"""

import errno
import threading

import pytest
from peers import WATCHDOG

import ringcast

# ---- Leases --------------------------------------------------------------------------------------


@pytest.fixture
def four():
    """A ring, and a reader that may hold four frames."""
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, leases=4) as reader:
        yield writer, reader


def test_frames_are_released_in_any_order(four):
    writer, reader = four
    for number in range(5):
        writer.send_bytes(b"%d" % number, 0)
    frames = [reader.next(0) for _ in range(4)]
    with pytest.raises(ringcast.Error, match="4 frames are held") as raised:
        reader.next(0)
    assert raised.value.errno == errno.EBUSY
    lag = reader.lag
    frames[2].release()
    frames[1].release()
    assert reader.lag == lag  # the oldest is held still
    assert [bytes(frames[0]), bytes(frames[3])] == [b"0", b"3"]
    frames[0].release()
    assert reader.lag < lag
    frames[0].release()
    with pytest.raises(ValueError, match="released already"):
        bytes(frames[1])
    frames[3].release()
    assert reader.recv(0) == b"4" and reader.lag == 0


def test_receiving_goes_on_while_frames_are_held(four):
    writer, reader = four
    for number in range(4):
        writer.send({"n": number}, 0)
    held = [reader.next(0), reader.next(0)]
    assert [reader.recv(0)["n"], reader.recv(0)["n"]] == [2, 3] and reader.lag > 0
    held.clear()
    assert reader.lag == 0


def test_after_an_exception_each_frame_goes_with_its_own_last_view(four):
    writer, reader = four
    writer.send_bytes(b"1", 0)
    writer.send_bytes(b"2", 0)
    with pytest.raises(KeyError), reader.next(0) as first:
        view = memoryview(first)
        raise KeyError
    with reader.next(0) as second:
        assert (bytes(second), bytes(view)) == (b"2", b"1")
    assert reader.lag > 0
    view.release()
    assert reader.lag == 0


def wait_for_turn(reader, thread):
    """Until another call is at work on the reader."""
    with pytest.raises(RuntimeError, match="in use"):
        while thread.is_alive():
            assert reader.lag


@pytest.mark.parametrize("drops", [True, False])
def test_a_frame_that_is_given_up_while_another_thread_waits_makes_room(four, drops):
    writer, reader = four
    large, held, got = bytes(writer.info().ring_frame), [], []
    with pytest.raises(TimeoutError):  # what is held is in the way
        for _ in range(4):
            writer.send_bytes(large, 0)
            held.append(reader.next(0))
    thread = threading.Thread(target=lambda: got.append(reader.recv(WATCHDOG)))
    thread.start()
    wait_for_turn(reader, thread)
    if not drops:
        for frame in held:
            frame.release()
        with pytest.raises(ValueError, match="released already"):
            bytes(held[0])
    held.clear()
    writer.send_bytes(large, WATCHDOG / 4)
    thread.join()
    assert got == [large] and reader.lag == 0
    for number in range(8):  # none of the four places is lost
        writer.send_bytes(b"%d" % number, 0)
    assert len([reader.next(0) for _ in range(4)]) == 4


HELD = []


class DropsWhatIsHeld:
    def __reduce__(self):
        return drop_what_is_held, ()


def drop_what_is_held():
    HELD.clear()
    return "dropped"


def test_a_frame_dropped_by_what_is_unpickled_is_released(four):
    writer, reader = four
    writer.send_bytes(b"1", 0)
    writer.send(DropsWhatIsHeld(), 0)
    HELD.append(reader.next(0))
    assert reader.recv(0) == "dropped" and reader.lag == 0
