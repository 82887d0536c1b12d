# SPDX-License-Identifier: Apache-2.0
"""Frames with tensors of devices, as they come to a reader that has none: what is in the frame arrives on the CPU, if
it is to, and what is not is refused by name."""

import errno
import pathlib

import numpy as np
import pytest
from needs import needs_torch, torch
from peers import send_frame, still_works

import ringcast
from ringcast import _device

pytestmark = pytest.mark.alike
VECTORS = pathlib.Path(__file__).parents[1] / "vectors"
OF_DEVICES = ("device", "extern", "generation", "libra", "placement", "pool", "slot", "words")
DAMAGED = sorted(path.stem for of in OF_DEVICES for path in VECTORS.glob(f"bad-{of}*.bin"))
NUMBERS = np.frombuffer(bytes(range(24)), np.float32).reshape(2, 3)


def send_vector(writer, name):
    send_frame(writer, (VECTORS / f"{name}.bin").read_bytes())


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setenv("RINGCAST_DISABLE", "cuda")


@pytest.fixture
def ring():
    """Its reader has had a frame: the first one might have been under way when it attached."""
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle, map_location="cpu") as reader:
        writer.send(0, 0)
        reader.recv(0)
        yield writer, reader


def view(reader):
    with reader.view(0) as value:
        return value


def test_a_tensor_elsewhere_is_refused_by_name(ring):
    writer, reader = ring
    for receive in (lambda reader: reader.recv(0), view):
        send_vector(writer, "pool")
        with pytest.raises(ringcast.Error, match="in the writer's device memory") as raised:
            receive(reader)
        assert raised.value.errno == errno.ENODEV and reader.lag == 0
    data = (VECTORS / "pool.bin").read_bytes()
    with pytest.raises(ringcast.Error, match="in the writer's device memory"):
        ringcast.unpack(data)
    assert still_works(writer, reader)


def test_what_is_beside_it_can_be_looked_at(ring):
    writer, reader = ring
    send_vector(writer, "pool")
    with reader.next(0) as frame:
        assert frame.keys() == ["torch", "cupy", "jax", "bits", "hashed", "host"]
        assert "jax" in frame and "none" not in frame
        assert frame.hashes == {"hashed": 0x1D64ADD2A6388367}
        assert np.array_equal(frame["host"], NUMBERS)
        for key in frame.keys()[:-1]:
            with pytest.raises(ringcast.Error) as raised:
                frame[key]
            assert raised.value.errno == errno.ENODEV
    assert still_works(writer, reader)


@needs_torch
def test_a_tensor_of_a_device_that_is_in_the_frame_arrives_on_the_cpu(ring):
    writer, reader = ring
    send_vector(writer, "inline-cuda")
    got = reader.recv(0)
    assert type(got["torch"]) is torch.Tensor and got["torch"].device.type == "cpu"
    assert np.array_equal(got["torch"].numpy(), NUMBERS)
    assert type(got["cupy"]) is np.ndarray and np.array_equal(got["cupy"], NUMBERS)
    assert got["empty"].shape == (0, 3)


@needs_torch
def test_torch_packs_tensors_of_every_dtype_in_bytes():
    """The packing of a device's small tensors, with torch on the CPU."""
    kinds = "bool uint8 int16 float16 bfloat16 float32 complex64 float64 float8_e4m3fn".split()
    tensors = [torch.arange(i + 1).to(getattr(torch, kind)) for i, kind in enumerate(kinds) if hasattr(torch, kind)]
    tensors += [torch.tensor(5.0), torch.ones(2, 3, requires_grad=True), torch.arange(9)[3:]]
    starts = [256 * i for i in range(len(tensors))]
    packed = _device.pack(tensors, starts)
    assert packed.dtype is torch.uint8 and not packed.requires_grad
    for tensor, start in zip(tensors, starts):
        flat = tensor.detach().reshape(-1)
        there = packed[start : start + flat.numel() * flat.element_size()].view(tensor.dtype)
        assert there.tolist() == flat.tolist()


@pytest.mark.parametrize("name", DAMAGED)
def test_each_damaged_one_is_refused(ring, name):
    writer, reader = ring
    send_vector(writer, name)
    kinds = errno.EPROTO, errno.ENODEV  # the latter: a tensor before what is damaged is elsewhere
    with pytest.raises(ringcast.Error) as raised:
        reader.recv(0)
    assert raised.value.errno in kinds[: 1 + name.endswith("-kind")]
    assert reader.lag == 0 and still_works(writer, reader)
