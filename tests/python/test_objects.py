# SPDX-License-Identifier: Apache-2.0
"""What arrives is equal, writable and the receiver's own."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import values
from hypothesis import HealthCheck, given, settings
from needs import needs_torch, torch
from peers import attach, call_all, detach

import ringcast

NO_DEADLINE = settings(deadline=None, suppress_health_check=list(HealthCheck))


def check_twice(state, recipe):
    """
    Receives the same value two times, and writes all over the first before it looks at the second.
    """
    for _ in range(2):
        got = state["reader"].recv(60)
        values.assert_same(got, values.cook(recipe))
        values.scribble(got)
    return os.getpid()


@settings(NO_DEADLINE, max_examples=int(os.environ.get("RINGCAST_TEST_EXAMPLES", 150)))
@given(recipe=values.dicts)
def test_nested_dicts_arrive_in_three_processes(crew, recipe):
    with ringcast.Writer(8 << 20) as writer:
        call_all(crew, attach, writer.handle)
        writer.wait_readers(3, 60)
        sent = values.cook(recipe)
        writer.send(sent, 60)
        writer.send(sent, 60)
        assert call_all(crew, check_twice, recipe) == [peer.pid for peer in crew]
        call_all(crew, detach)


@needs_torch
@pytest.mark.parametrize("dtype", values.TORCH_DTYPES)
def test_a_tensor_of_any_known_dtype_stays_out_of_the_pickle(ring, dtype):
    writer, reader = ring
    writer.send({"t": values.cook_tensor(dtype, (5,), "plain", "plain", 1)}, 0)
    with reader.next(0) as frame:
        assert b"_rebuild" not in bytes(frame)
    writer.send([values.cook_tensor(dtype, (5,), "plain", "plain", 1)], 0)
    with reader.next(0) as frame:
        assert b"torch.storage" not in bytes(frame)


@needs_torch
def test_one_tensor_twice_in_a_value_arrives_as_one_and_within_a_pickle_as_another(ring):
    writer, reader = ring
    tensor = torch.arange(3)
    holder = values.Holder(tensor)
    writer.send([tensor, {"x": tensor}, holder, values.Holder(tensor), holder], 0)
    first, second, *holders = reader.recv(0)
    assert first is second["x"]
    first[:] = 7
    assert holders[0].tensor.tolist() == [0, 1, 2]
    assert holders[0] is holders[2] and holders[0].tensor is holders[1].tensor


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, [("a", "i1"), ("b", "f8")])["b"],
        np.frombuffer(b"x" * 17, "u1")[1:].view("f8"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", None], object),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.arange(3).view(np.recarray),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=["packed-struct-field", "misaligned", "fortran", "object", "struct", "subclass", "masked"],
)
def test_odd_arrays_arrive(ring, array):
    writer, reader = ring
    for value in (array, {"a": array}):
        writer.send(value, 0)
        got = reader.recv(0)
        got = got["a"] if type(got) is dict else got
        assert type(got) is type(array) and got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_readonly_buffers_of_a_pickle_stay_readonly_and_others_are_writable(ring):
    writer, reader = ring
    writable, readonly = np.arange(3), np.arange(3)
    readonly.flags.writeable = False
    writer.send([writable, readonly, values.Holder(writable), values.Holder(readonly)], 0)
    got = reader.recv(0)
    assert [array.flags.writeable for array in got[:2]] == [True, True]
    assert [holder.tensor.flags.writeable for holder in got[2:]] == [True, False]
    writer.send({"readonly": readonly}, 0)
    reader.recv(0)["readonly"][:] = 0


def test_what_arrived_does_not_follow_its_source_nor_the_ring(ring):
    writer, reader = ring
    sent = {
        "a": np.arange(5000),
        "in": [np.arange(5000), bytearray(b"x" * 5000)],
        "b": b"y" * 5000,
        "s": "z" * 5000,
    }
    if torch:
        sent.update(t=torch.arange(5000), deep={"t": torch.arange(5000)})
    writer.send(sent, 0)
    got = reader.recv(0)
    values.scribble(sent)
    for _ in range(2 * (1 << 20) // 100_000):  # overwrites the whole ring
        writer.send_bytes(b"\xaa" * 100_000, 0)
        reader.recv(0)
    assert got["a"].tolist() == got["in"][0].tolist() == list(range(5000))
    assert (got["in"][1], got["b"], got["s"]) == (b"x" * 5000, b"y" * 5000, "z" * 5000)
    if torch:
        assert got["t"].tolist() == got["deep"]["t"].tolist() == list(range(5000))


def test_arrays_arrive_in_their_order_and_writable(ring):
    writer, reader = ring
    fortran, fixed = np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3)
    dates = np.asfortranarray(np.zeros((2, 3), "M8[s]"))
    fixed.flags.writeable = False
    writer.send({"f": fortran, "fixed": fixed, "in": [fortran, {"x": fixed}, b"bytes", dates]}, 0)
    got = reader.recv(0)
    nested_f, nested_fixed, data, nested_dates = got["in"]
    for array in (got["f"], got["fixed"], nested_f, nested_fixed["x"]):
        assert array.flags.forc and array.flags.writeable
    assert got["f"].flags.f_contiguous and nested_f.flags.f_contiguous
    assert nested_dates.flags.f_contiguous and data == b"bytes"
    for value in (fortran, fixed):
        writer.send(value, 0)
        got = reader.recv(0)
        assert got.strides == value.strides and got.flags.writeable


@needs_torch
def test_what_tensors_share_and_carry_does_not_arrive(ring):
    writer, reader = ring
    tensor = torch.arange(3.0, requires_grad=True)
    tensor.sum().backward()
    tensor.note = "mine"
    base = torch.arange(6).reshape(2, 3)
    writer.send(
        {"a": tensor, "b": tensor, "in": [tensor, tensor], "views": [base, base[0]], "t": [base.T]},
        0,
    )
    got = reader.recv(0)
    assert got["a"] is got["b"] is got["in"][0] is got["in"][1]
    assert got["a"].requires_grad and got["a"].grad is None and not hasattr(got["a"], "note")
    got["views"][0][:] = 9
    assert got["views"][1].tolist() == [0, 1, 2] and got["t"][0].T.is_contiguous()


def test_tags_arrive(ring):
    writer, reader = ring
    writer.send({"a": 1}, 0, tag=2**32 - 1)
    writer.send("b", 0)
    writer.send_bytes(b"c", 0)
    assert [reader.recv_tagged(0) for _ in range(3)] == [({"a": 1}, 2**32 - 1), ("b", 0), (b"c", 0)]


def test_nothing_that_was_sent_is_kept():
    with (
        ringcast.Writer(1 << 20, spill_bytes=0) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        nothing_is_kept(writer, reader)


def nothing_is_kept(writer, reader):
    kept = [
        np.arange(5),
        "a key nobody else has",
        b"bytes" * 100,
        [1, 2],
        *([torch.arange(4)] if torch else []),
    ]
    counts = [sys.getrefcount(item) for item in kept]
    for _ in range(50):
        writer.send({kept[1]: kept, "a": kept[0], "b": kept[2], "t": kept[-1]}, 0)
        reader.recv(0)
        for bad in (
            {"x": kept, "y": lambda: None},
            {"x": kept[0], "y": np.zeros(1 << 20), kept[1]: kept[-1]},
        ):
            with pytest.raises(Exception, match="local object|larger"):
                writer.send(bad, 0)
    del bad
    assert [sys.getrefcount(item) for item in kept] == counts


def ran_meanwhile(action):
    """
    Whether another thread came to run while `action` did, with the GIL never taken away from it.
    """
    gate, ran = threading.Lock(), []
    gate.acquire()
    thread = threading.Thread(target=lambda: (gate.acquire(), ran.append(True)))
    interval = sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(1000)
    try:
        gate.release()
        action()
        return bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_large_copies_are_made_without_the_gil():
    array = np.ones(32 << 20, np.uint8)
    with ringcast.Writer(128 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        for value in ({"a": array}, [array]):
            sends, receives = [], []
            while not (any(sends) and any(receives)) and len(sends) < 200:  # up to the scheduler
                sends.append(ran_meanwhile(lambda value=value: writer.send(value, 0)))
                receives.append(ran_meanwhile(lambda: reader.recv(0)))
            assert any(sends) and any(receives)


@needs_torch
def test_a_reader_without_torch_says_so_and_goes_on():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import ringcast\n"
        "reader = ringcast.Reader(sys.argv[1]); print('attached', flush=True)\n"
        "for _ in range(2):\n"
        "    try: print(reader.recv(60))\n"
        "    except ImportError as error: print(error)\n"
        "print(reader.recv(60))\n"
    )
    with ringcast.Writer(1 << 20) as writer:
        command = [sys.executable, "-c", program, writer.handle]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "attached\n"
            writer.send({"t": torch.arange(3)}, 60)
            writer.send([torch.arange(3)], 60)
            writer.send({"n": 7}, 60)
            first, second, third = process.communicate(timeout=120)[0].splitlines()
    assert "torch can't be imported here" in first
    assert "torch" in second
    assert third == "{'n': 7}"
