# SPDX-License-Identifier: Apache-2.0
"""ringcast.torch when ranks don't agree, or something can't be sent, received or made: an error on
every rank that is concerned, at once, and afterwards all goes on."""

import os
import signal
import sys
from typing import Any, List

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


def ranks_other_source() -> str:
    rank = dist.get_rank()
    text = text_of(RuntimeError, lambda: rt.broadcast_object(1, src=1 if rank == 2 else 0))
    assert rt.rings() == {} and not _dist.memory_of_rings()
    check_usable()
    return text


def test_a_rank_with_another_source_is_named_on_all_ranks(ranks):
    texts = ranks.run(4, ranks_other_source)
    assert len(set(texts)) == 1
    assert (
        "mismatched ranks: src is 0 on ranks 0 (pid" in texts[0]
        and "but 1 on rank 2 (pid" in texts[0]
    )


def ranks_other_version() -> str:
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(ringcast, "__version__", "0.0.0-old")
        return text_of(RuntimeError, lambda: rt.broadcast_object(1))


def test_a_rank_with_another_version_is_named_on_all_ranks(ranks):
    texts = ranks.run(2, ranks_other_version)
    assert texts[0] == texts[1] and "0.0.0-old on rank 1" in texts[0]


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


def refused(name: str) -> Any:
    return {
        "unpicklable": (
            AttributeError if sys.version_info < (3, 14) else Exception,
            {"f": lambda: 0},
        ),
        "too large": (ringcast.FrameTooLarge, {"x": torch.zeros(100_000)}),
        "larger": (ringcast.FrameTooLarge, {"x": torch.zeros(6 << 20, dtype=torch.uint8)}),
        "too much": (
            ringcast.Error,
            {"x": torch.zeros(1, dtype=torch.uint8).expand((1 << 40) - (4 << 20))},
        ),
    }[name]


def ranks_failing_send(names: List[str], spill_bytes: str) -> List[str]:
    os.environ["RINGCAST_CAPACITY"] = "4096"
    os.environ["RINGCAST_SPILL_BYTES"] = spill_bytes
    texts = []
    for name in names:
        error, value = refused(name)
        if dist.get_rank() == 1:
            texts.append(text_of(error, lambda value=value: rt.broadcast_tensor_dict(value, src=1)))
        else:
            texts.append(text_of(ringcast.SendError, lambda: rt.broadcast_tensor_dict(src=1)))
        check_usable(1)
    return texts


def test_what_the_source_cannot_send_is_an_error_on_all_ranks_and_the_next_call_works(ranks):
    names = ["unpicklable", "too large"]
    other, source, third = ranks.run(3, ranks_failing_send, names, "0")
    assert other == third
    for name, mine, theirs in zip(names, source, other):
        start = f"broadcast_tensor_dict failed at the source, rank 1: {refused(name)[0].__name__}: "
        assert theirs.startswith(start) and theirs[len(start) :].rstrip(".")[:200] in mine, (
            name,
            mine,
            theirs,
        )
    assert source[0].startswith("value['f']: ")
    spill = ": set RINGCAST_SPILL_BYTES on rank 1 to at least "
    knobs = spill + "2097152, or RINGCAST_CAPACITY to at least 1048576, before the ring is made"
    assert source[1].endswith(knobs) and other[1].endswith(knobs)


def test_what_is_larger_than_spill_memory_or_the_machine_is_an_error_on_all_ranks(ranks):
    other, source, _ = ranks.run(3, ranks_failing_send, ["larger"], str(4 << 20))
    knob = ": set RINGCAST_SPILL_BYTES on rank 1 to at least 8388608 before the ring is made"
    assert source[0].endswith(knob) and other[0].endswith(knob)
    other, source, _ = ranks.run(3, ranks_failing_send, ["too much"], str(1 << 40))
    assert "spill memory" in source[0] and other[0].endswith(source[0])


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
    source, *others = ranks.run(2, ranks_no_ring, variable, value)
    assert variable in source and repr(value) in source
    for text in others:
        assert text == f"rank 0 could not take part in making the ring: ValueError: {source}"


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
    assert first == second
    assert first == "rank 2 could not take part in making the ring: PermissionError: not here"
    assert failed == "not here"
