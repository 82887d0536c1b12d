# SPDX-License-Identifier: Apache-2.0
"""Frames with tensors of devices, as they come to a reader that has none: what is in the frame
arrives on the CPU, if it is to, and what is not is refused by name. The frames come from outside,
and some are hostile."""

import errno

import numpy as np
import pytest
from needs import needs_torch, torch
from peers import send_frame, still_works
from read_frame import stored

import ringcast

pytestmark = pytest.mark.alike
STORED = stored()
NUMBERS = np.frombuffer(bytes(range(24)), np.float32).reshape(2, 3)


def vector(name):
    return bytes.fromhex(STORED[name]["frame"])


@pytest.fixture
def ring(monkeypatch):
    """Its reader has had a frame: the first one might have been under way when it attached."""
    monkeypatch.setenv("RINGCAST_DISABLE", "cuda")
    with ringcast.Writer(1 << 20) as writer:
        with ringcast.Reader(writer.handle, map_location="cpu") as reader:
            writer.send(0, 0)
            reader.recv(0)
            yield writer, reader


def view(reader):
    with reader.view(0) as value:
        return value


def looked(look):
    def receive(reader):
        with reader.next(0) as frame:
            return look(frame)

    return receive


PARTS = ["torch", "cupy", "jax", "bits", "hashed"]
LOOKS = [ringcast.unpack, lambda frame: ringcast.unpack(bytes(memoryview(frame)))]
LOOKS += [lambda frame, key=key: frame[key] for key in PARTS]


@pytest.mark.parametrize("receive", [ringcast.Reader.recv, view, *map(looked, LOOKS)])
def test_a_tensor_elsewhere_is_refused(ring, receive):
    writer, reader = ring
    send_frame(writer, vector("pool"))
    with pytest.raises(ringcast.Error, match="device memory") as raised:
        receive(reader)
    assert raised.value.errno == errno.ENODEV and reader.lag == 0
    assert still_works(writer, reader)


def test_what_is_beside_it_can_be_looked_at(ring):
    writer, reader = ring
    send_frame(writer, vector("pool"))
    with reader.next(0) as frame:
        assert frame.keys() == [*PARTS, "host"]
        assert "jax" in frame and "none" not in frame
        assert frame.hashes == {"hashed": 0x1D64ADD2A6388367}
        assert np.array_equal(frame["host"], NUMBERS)


@needs_torch
def test_a_tensor_of_a_device_that_is_in_the_frame_arrives_on_the_cpu(ring):
    writer, reader = ring
    send_frame(writer, vector("inline-cuda"))
    got = reader.recv(0)
    assert type(got["torch"]) is torch.Tensor and got["torch"].device.type == "cpu"
    assert np.array_equal(got["torch"].numpy(), NUMBERS)
    assert type(got["cupy"]) is np.ndarray and np.array_equal(got["cupy"], NUMBERS)
    assert got["empty"].shape == (0, 3)
