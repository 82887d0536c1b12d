# SPDX-License-Identifier: Apache-2.0
"""A Reader starts at the newest frame, or at the newest of a tag; a Frame that is held is decoded
again in place."""

import errno
import fractions
import multiprocessing

import numpy as np
import pytest
from needs import needs_torch

import ringcast


def test_the_newest_frame_comes_at_once_and_then_every_later_one():
    with (
        ringcast.Writer(1 << 16) as writer,
        ringcast.Reader(writer.handle, start="latest") as early,
    ):
        for step in range(3):
            writer.send({"step": step})
        with ringcast.Reader(writer.handle, start="latest") as reader:
            writer.send({"step": 3})
            assert [reader.recv(0)["step"] for _ in range(2)] == [2, 3]
            with pytest.raises(TimeoutError):
                reader.recv(0)
        assert [early.recv(0)["step"] for _ in range(4)] == [0, 1, 2, 3]


def test_the_newest_of_a_tag_and_what_came_after_it():
    with ringcast.Writer(1 << 16) as writer:
        writer.send("old", tag=7)
        writer.send("settings", tag=7)
        writer.send_bytes(b"raw")
        writer.send("step", tag=8)
        with ringcast.Reader(writer.handle, start="latest", tag=7) as reader:
            assert [reader.recv_tagged(0) for _ in range(3)] == [
                ("settings", 7),
                (b"raw", 0),
                ("step", 8),
            ]
        writer.send(ringcast.pack("packed"), tag=7)
        writer.send_error("why not", tag=8)
        with ringcast.Reader(writer.handle, start="latest", tag=7) as reader:
            assert reader.recv(0) == "packed"
        with (
            ringcast.Reader(writer.handle, start="latest", tag=8) as reader,
            pytest.raises(ringcast.SendError),
        ):
            reader.recv(0)


def test_a_tag_that_the_ring_does_not_have_any_more_is_named():
    with ringcast.Writer(1 << 12) as writer:
        for sent in (0, 1):
            with pytest.raises(ringcast.Error, match="tag 7") as raised:
                ringcast.Reader(writer.handle, start="latest", tag=7)
            assert raised.value.errno == errno.ENODATA
            if sent == 0:
                writer.send("settings", tag=7)
                for _ in range(3):
                    writer.send_bytes(bytes(1000))


def work(handle, pipe):
    """A worker: needs the settings, then does each step."""
    with ringcast.Reader(handle, start="latest", tag=1, name="worker") as reader:
        for value in reader:
            pipe.send(value)


def test_a_worker_that_is_started_again_has_the_settings_at_once():
    spawn = multiprocessing.get_context("spawn")
    with ringcast.Writer(1 << 16, on_death="evict") as writer:
        writer.send({"scale": 2}, tag=1)
        for life in range(2):
            ours, theirs = spawn.Pipe()
            worker = spawn.Process(target=work, args=(writer.handle, theirs))
            worker.start()
            assert ours.recv() == {"scale": 2}
            for step in range(life):
                assert ours.recv() == step
            writer.send(life)
            assert ours.recv() == life
            worker.kill()
            worker.join()


def test_a_held_frame_is_decoded_again_and_no_array_is_copied():
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        writer.send({"step": [1], "x": np.arange(10_000), "y": np.ones(3)})
        with reader.next(0) as frame:
            place = np.asarray(frame)
            one, two = frame.view(), frame.view()
            for value in (one, two):
                assert np.shares_memory(value["x"], place) and not value["x"].flags.writeable
                assert value["x"].sum() == 49_995_000 and value["step"] == [1]
            assert one["step"] is not two["step"]
            assert not np.shares_memory(ringcast.unpack(frame)["x"], place)
            del place
        with pytest.raises(ValueError, match="released"):
            frame.view()
        writer.send("goes on")
        assert reader.recv(0) == "goes on"


@needs_torch
def test_tensors_of_a_frame_lie_in_the_ring_each_time():
    import torch

    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        writer.send({"x": torch.arange(1000)})
        with reader.next(0) as frame:
            assert (
                frame.view()["x"].data_ptr()
                == frame.view()["x"].data_ptr()
                != frame["x"].data_ptr()
            )


def test_a_pickle_in_a_frame_is_refused_as_by_recv():
    with (
        ringcast.Writer(1 << 12) as writer,
        ringcast.Reader(writer.handle, allow_pickle=False) as reader,
    ):
        writer.send(fractions.Fraction(1, 3))
        with reader.next(0) as frame, pytest.raises(ringcast.PickleRefused):
            frame.view()
