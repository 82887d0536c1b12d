# SPDX-License-Identifier: Apache-2.0
"""ringcast.torch when ranks don't agree, or something can't be sent, received or made: an error on
every rank that is concerned, at once, and afterwards all goes on."""

import os
import signal
from typing import Any

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import check_usable, on_ranks, text_of

import ringcast
import ringcast.torch as rt
from ringcast._group import rings


# ---- Ranks that don't agree ----------------------------------------------------------------------


def ranks_that_differ(which: str) -> str:
    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 2 and which == "version":
            patch.setattr(ringcast, "__version__", "0.0.0-old")
        src = 1 if rank == 2 and which == "source" else 0
        text = text_of(RuntimeError, lambda: rt.broadcast_object(1, src))
    assert rt.rings() == {} and not _dist.memory_of_rings()
    check_usable()
    return text


@pytest.mark.parametrize("which, told", [("source", "but 1 on rank 2"), ("version", "on rank 2")])
def test_a_rank_that_differs_is_named_on_all_ranks(ranks, which, told):
    texts = ranks.run(4, ranks_that_differ, which)
    assert len(set(texts)) == 1 and told in texts[0]


@on_ranks(2)
def test_a_call_that_a_rank_has_missed_is_noticed() -> None:
    check_usable()
    rt.broadcast_object("one")
    if dist.get_rank() == 1:
        rt.rings()[0].recv()  # behind the back of ringcast.torch
    else:
        rt.broadcast_object("two")
    if dist.get_rank() == 1:
        text = text_of(RuntimeError, rt.broadcast_object)
        assert "call 3 of the source" in text and "call 2 is" in text, text
    else:
        rt.broadcast_object("three")
    check_usable()


@on_ranks(2)
def test_the_number_of_the_call_wraps_around() -> None:
    check_usable()
    rings._rings[dist.group.WORLD]["broadcast", 0]._call = 2**24 - 2
    for step in range(4):
        assert rt.broadcast_object(step) == step


@on_ranks(2)
def test_a_list_of_another_length_is_refused_and_left_as_it_was() -> None:
    if dist.get_rank() == 0:
        assert rt.broadcast_object_list([1, 2, 3]) == [1, 2, 3]
        rt.broadcast_object_list([4])
    else:
        mine = ["a", "b"]
        text = text_of(ValueError, lambda: rt.broadcast_object_list(mine))
        assert "list of 3" in text and "has 2" in text and mine == ["a", "b"]
        text_of(TypeError, lambda: rt.broadcast_object_list(("a",)))
    check_usable()


# ---- What can't be sent --------------------------------------------------------------------------


LARGE = torch.zeros(6 << 20, dtype=torch.uint8)
TOO_MUCH = torch.zeros(1, dtype=torch.uint8).expand((1 << 40) - (4 << 20))
# The bytes of spill memory; what is sent; the error; and the words that name the thing.
UNSENDABLE: Any = {
    "unpicklable": ("0", lambda: {"f": lambda: 0}, None, "value['f']"),
    "too large": ("0", lambda: {"x": torch.zeros(100_000)}, ringcast.FrameTooLarge, "2097152"),
    "larger": (str(4 << 20), lambda: {"x": LARGE}, ringcast.FrameTooLarge, "8388608"),
    "too much": (str(1 << 40), lambda: {"x": TOO_MUCH}, ringcast.Error, "spill memory"),
}


def ranks_failing_send(name: str) -> str:
    spill_bytes, make, error, _ = UNSENDABLE[name]
    os.environ["RINGCAST_CAPACITY"] = "4096"
    os.environ["RINGCAST_SPILL_BYTES"] = spill_bytes
    if dist.get_rank() != 1:
        text = text_of(ringcast.SendError, lambda: rt.broadcast_tensor_dict(src=1))
    else:
        with pytest.raises(error or Exception) as raised:
            rt.broadcast_tensor_dict(make(), src=1)
        text = str(raised.value)
    check_usable(1)
    return text


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_the_source_cannot_send_is_an_error_on_all_ranks_and_the_next_call_works(ranks, name):
    other, source, third = ranks.run(3, ranks_failing_send, name)
    *_, error, word = UNSENDABLE[name]
    assert other == third and "rank 1: " in other and word in source and word in other
    if error is ringcast.FrameTooLarge:
        assert "RINGCAST_SPILL_BYTES on rank 1" in other


class InterruptError(Exception):
    pass


@on_ranks(2)
def test_an_interrupted_wait_loses_nothing() -> None:
    check_usable()
    if dist.get_rank() == 0:
        dist.barrier()
    else:

        def interrupt(*_: Any) -> None:
            raise InterruptError

        saved = signal.signal(signal.SIGALRM, interrupt)

        def wait_and_be_interrupted() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            rt.broadcast_object()

        text_of(InterruptError, wait_and_be_interrupted)
        signal.signal(signal.SIGALRM, saved)
        dist.barrier()
    check_usable()


# ---- Rings that can't be made --------------------------------------------------------------------


def ranks_no_ring(variable: str, value: str) -> str:
    if dist.get_rank() == 0:
        os.environ[variable] = value
    error = ValueError if dist.get_rank() == 0 else RuntimeError
    text = text_of(error, lambda: rt.broadcast_object(1))
    os.environ.pop(variable, None)
    check_usable()
    return text


VARIABLES = ["RINGCAST_CAPACITY", "RINGCAST_SPILL_BYTES", "RINGCAST_SGLANG", "RINGCAST_AHEAD"]


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("value", ["banana", "-1"])
def test_a_source_that_cannot_make_the_ring_tells_all_ranks(ranks, variable, value):
    source, other = ranks.run(2, ranks_no_ring, variable, value)
    assert variable in source and repr(value) in source
    assert "rank 0" in other and source in other


def ranks_cannot_attach() -> str:
    rank = dist.get_rank()

    def no_reader(*args: Any, **keywords: Any) -> Any:
        raise PermissionError("not here")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 2:
            patch.setattr(ringcast, "Reader", no_reader)
        text = text_of(
            PermissionError if rank == 2 else RuntimeError, lambda: rt.broadcast_object(1)
        )
    check_usable()
    return text


def test_a_rank_that_cannot_attach_is_named_on_all_ranks(ranks):
    first, second, failed, _ = ranks.run(4, ranks_cannot_attach)
    assert first == second and "rank 2" in first and failed in first and failed == "not here"
