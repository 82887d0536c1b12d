# SPDX-License-Identifier: Apache-2.0
"""What every drop-in promises, by each of its functions, on one machine and across machines. Ranks
that refuse to attach to each other's rings stand for machines."""

import os
import signal
from typing import Any, Dict, List, Tuple

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import meet, on_ranks, text_of
from dropins import APART, PAIRS, WAYS, Machines, Way, opened, payload, pids_of_all, values
from values import assert_same, scribble

import ringcast

pytestmark = pytest.mark.alike


every_way = pytest.mark.parametrize("name", WAYS)
near_and_far = pytest.mark.parametrize(
    "machines", [None, PAIRS], ids=["one machine", "two machines"]
)


@pytest.fixture(autouse=True)
def zmq_for_queues(request):
    """A queue's readers on other machines need pyzmq."""
    parameters = getattr(request.node, "callspec", None)
    if (
        parameters
        and parameters.params.get("name") == "queue"
        and parameters.params.get("machines")
    ):
        pytest.importorskip("zmq", reason="pyzmq is not installed here")


# ---- What arrives --------------------------------------------------------------------------------


@near_and_far
@pytest.mark.parametrize("name", [*WAYS, *APART])
@on_ranks(4)
def test_every_value_arrives_equal_in_order_and_writable_from_every_source(
    name: str, machines: Machines
) -> None:
    with opened(name, machines) as way:
        for src in range(dist.get_world_size()):
            for function in way.functions:
                for value in values():
                    got = way(function, value, src)
                    assert_same(got, value)
                    if dist.get_rank() != src:
                        scribble(got)


@pytest.mark.parametrize(
    "machines", [((0, 3), (1,), (2,)), ((0,), (1, 2, 3)), ((1,), (0,), (2,), (3,))]
)
@pytest.mark.parametrize("name", ["torch", "pairs", "share_once"])
@on_ranks(4)
def test_ranks_may_be_on_machines_in_any_order(name: str, machines: Machines) -> None:
    with opened(name, machines) as way:
        for src in range(dist.get_world_size()):
            way.check(src)


class Defaults(Dict[Any, Any]):
    """What no receiver could make."""

    def __reduce__(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["torch", "vllm", "sglang", "pairs", *APART])
@on_ranks(2)
def test_of_a_dict_of_a_class_its_items_are_sent(name: str) -> None:
    with opened(name) as way:
        for function in [function for function in way.functions if function.endswith("dict")] * 3:
            got = way(function, Defaults(payload()))
            assert type(got) is (Defaults if dist.get_rank() == 0 else dict)
            assert_same(dict(got), payload())
            dist.barrier()


@near_and_far
@every_way
@on_ranks(4)
def test_what_is_sent_through_a_full_ring_arrives_in_order_and_stays_as_it_is(
    name: str, machines: Machines
) -> None:
    """Of all sizes, in a small ring, of which none is touched by a later one."""
    os.environ["RINGCAST_CAPACITY"] = "65536"
    sizes = [(0, 10, 1000, 5000, 10, 200_000)[step % 6] for step in range(150)]
    with opened(name, machines) as way:
        functions = [way.functions[step % len(way.functions)] for step in range(len(sizes))]
        given = [{"step": step, "x": torch.full((size,), step)} for step, size in enumerate(sizes)]
        kept = [way(function, value) for function, value in zip(functions, given)]
        for got, value in zip(kept, given):
            assert_same(got, value)


@near_and_far
@every_way
@on_ranks(4)
def test_what_is_larger_than_the_ring_arrives(name: str, machines: Machines) -> None:
    os.environ["RINGCAST_CAPACITY"] = "65536"
    with opened(name, machines) as way:
        for step in range(3):  # spill memory is used again
            words = torch.arange(1 << 20) * (2 * step + 3)
            for function in way.functions:
                got = way(function, {"x": words, "nested": [words[: 1 << 10]], "step": step})
                assert got["step"] == step and torch.equal(got["x"], words)
                assert torch.equal(got["nested"][0], words[: 1 << 10])


@every_way
@on_ranks(3)
def test_the_source_goes_on_while_the_others_are_busy(name: str) -> None:
    with opened(name) as way:
        for _ in range(3):  # pairs change to their ring
            way.check()
            dist.barrier()
        if dist.get_rank() != 0:
            dist.barrier()
        assert [way(way.functions[-1], step) for step in range(8)] == list(range(8))
        if dist.get_rank() == 0:
            dist.barrier()
        dist.barrier()  # a queue goes with its writer


@near_and_far
@every_way
@pytest.mark.parametrize(("environment", "mode"), [("", "latency"), ("power", "balanced")])
@on_ranks(4)
def test_rings_wait_for_latency_unless_the_environment_says_otherwise(
    name: str, machines: Machines, environment: str, mode: str
) -> None:
    # "balanced" has the library read RINGCAST_WAIT.
    os.environ["RINGCAST_WAIT"] = environment
    modes = []

    def recorded(make: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            # Not a probe of which ranks share a machine, nor a hub, which retains nothing: its
            # thread waits otherwise.
            is_hub = "leases" in options and "retain" not in options
            if "numa" not in options and not is_hub and len(arguments) + len(options) > 1:
                modes.append(options.get("wait", "unless told otherwise"))
            return make(*arguments, **options)

        return made

    with opened(name, machines) as way, pytest.MonkeyPatch.context() as patch:
        for kind in "Writer", "Reader":
            patch.setattr(ringcast, kind, recorded(getattr(ringcast, kind)))
        way.check()
    assert set(modes) == {mode}


# ---- What can't be sent or received --------------------------------------------------------------


class Fails:
    """Its pickling fails with an error like this one, which itself keeps nothing alive."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        raise type(self._error)(*self._error.args)


class Untellable(Exception):
    def __str__(self) -> str:
        raise LookupError


FAILURES: List[Tuple[BaseException, str]] = [
    (OverflowError("no " * 5000), "no no no"),
    (TimeoutError("of the value's own"), "of the value's own"),
    (FileNotFoundError("\udcff.jpg"), "\\udcff.jpg"),
    (Untellable(), "(the error has no readable text)"),
]


@near_and_far
@every_way
@on_ranks(4)
def test_what_the_source_cannot_send_is_an_error_on_all_ranks_and_the_next_call_works(
    name: str, machines: Machines
) -> None:
    src = 1
    with opened(name, machines) as way:
        for function in way.functions:
            for error, told in FAILURES:
                value = {"x": ["place", Fails(error)]}
                if dist.get_rank() == src:
                    with pytest.raises(type(error)):
                        way(function, value, src)
                elif name != "queue":  # in which nothing is sent then
                    text = text_of(ringcast.SendError, lambda: way(function, value, src))  # noqa: B023
                    assert text.startswith(
                        f"{function} failed at the source, rank 1: {type(error).__name__}: "
                    ), text
                    assert told in text and len(text) <= 400, text
                way.check(src)
                dist.barrier()  # pairs change to their ring in between
            if function.endswith("dict"):
                if dist.get_rank() == src:
                    with pytest.raises(AssertionError if name == "vllm" else TypeError):
                        way.call(function, [("a", 1)], src)
                else:
                    text = text_of(ringcast.SendError, lambda: way(function, {}, src))  # noqa: B023
                    assert text.startswith(
                        f"{function} failed at the source, rank 1: TypeError: "
                    ), text
                way.check(src)


def of_meta() -> Any:
    return torch.empty(2, 3, device="meta")


@every_way
@on_ranks(2)
def test_a_tensor_on_another_device_goes_by_pickle_or_is_refused(name: str) -> None:
    with opened(name) as way:
        for function in way.functions:
            value = {"x": of_meta()}
            if function.endswith("dict") and name in ("vllm", "pairs"):
                error = TypeError if dist.get_rank() == 0 else ringcast.SendError
                assert "meta" in text_of(error, lambda: way(function, value))  # noqa: B023
            got = way(function, {"inside": {"x": [of_meta()]}, "n": 1})
            assert got["inside"]["x"][0].device.type == "meta" and got["n"] == 1
            assert got["inside"]["x"][0].shape == (2, 3)
        way.check()


class Explosive:
    """Its unpickling fails."""

    def __init__(self, error: type = LookupError) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        return explode, (self._error,)


def explode(error: type) -> None:
    raise error("boom")


def receive_failing(way: Way, error: type) -> None:
    for function in way.functions:
        value = {"x": Explosive(error)}
        if dist.get_rank() == 0:
            way(function, value)
        else:
            assert text_of(error, lambda: way(function, value)) == "boom"  # noqa: B023
        way.check()


@near_and_far
@every_way
@on_ranks(4)
def test_what_cannot_be_unpickled_is_an_error_there_and_the_next_call_works(
    name: str, machines: Machines
) -> None:
    with opened(name, machines) as way:
        for error in LookupError, TimeoutError:
            receive_failing(way, error)


def ranks_without_pickles(name: str, where: str) -> List[str]:
    is_source, texts = dist.get_rank() == 0, []
    if is_source == (where == "source"):
        os.environ["RINGCAST_ALLOW_PICKLE"] = "0"
    with opened(name) as way:
        way.check()
        for function in way.functions:
            for value in [{"x": Explosive()}] + [of_meta()] * (
                where == "source" and not function.endswith("dict")
            ):
                if is_source and where == "others":
                    way(function, value)
                elif is_source or name != "queue" or where == "others":
                    error = (
                        ringcast.PickleRefused
                        if is_source or where == "others"
                        else ringcast.SendError
                    )
                    texts.append(text_of(error, lambda: way(function, value)))  # noqa: B023
                way.check()
    return texts


@every_way
def test_where_pickles_are_turned_off_they_are_refused_and_the_next_call_works(ranks, name):
    refused, told = ranks.run(2, ranks_without_pickles, name, "source")
    assert all("which only pickle can send, and pickles are turned off" in text for text in refused)
    assert "value['x'] is of type test_all_dropins.Explosive (" in refused[0]
    assert all(": PickleRefused: " in text for text in told)
    _, texts = ranks.run(2, ranks_without_pickles, name, "others")
    for text in texts:
        which = "test_all_dropins.explode and builtins.LookupError"
        assert text.startswith("the frame holds a pickle") and f"which asks for {which}; " in text


@near_and_far
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if len(way.functions) > 1])
@on_ranks(4)
def test_a_rank_that_calls_another_function_than_the_source_is_told_both(
    name: str, machines: Machines
) -> None:
    with opened(name, machines) as way:
        way.check()
        there = way.functions[:2]
        here = [there[(dist.get_rank() != 0) ^ step] for step in range(2)]
        for theirs, mine in zip(there, here):
            if theirs == mine:
                way(mine, {"a": 1})
                continue
            text = text_of(RuntimeError, lambda: way(mine, {"a": 1}))  # noqa: B023
            assert f"was {theirs}; here, on rank {dist.get_rank()}, call" in text, text
            assert f"is {mine.replace('send', 'recv')}: " in text, text
        way.check()


# ---- Ends ----------------------------------------------------------------------------------------


@every_way
@on_ranks(2)
def test_closing_frees_the_rings_and_the_next_use_makes_new_ones(name: str) -> None:
    with opened(name) as way:
        for _ in range(3):
            for src in range(dist.get_world_size()):
                way.check(src)
            assert _dist.memory_of_rings()
            dist.barrier()
            way.close()
            way.close()
            dist.barrier()
            assert not _dist.memory_of_rings(), _dist.memory_of_rings()


@pytest.mark.parametrize(
    ("name", "machines"),
    [*((name, None) for name in WAYS), ("torch", PAIRS), ("queue", PAIRS), ("share_once", PAIRS)],
)
@on_ranks(4)
def test_when_the_source_closes_the_others_receive_the_rest_and_are_told(
    name: str, machines: Machines
) -> None:
    with opened(name, machines) as way:
        for _ in range(3):  # pairs change to their ring
            way.check()
            dist.barrier()
        got = way(way.functions[-1], "last")
        if dist.get_rank() == 0:
            way.close()
        else:
            assert got == "last"
            text_of(ringcast.WriterGone, lambda: way(way.functions[-1], None))
        dist.barrier()
        if name in ("pairs", "queue"):
            way.close()
            dist.barrier()
        if name != "share_once":  # of which the others have made one call more than the source
            way.check()


def ranks_dying(name: str, machines: Machines, dying: int) -> str:
    with opened(name, machines) as way:
        pids, rank = pids_of_all(), dist.get_rank()
        way.check()
        meet()  # what a source has sent that is killed may not have crossed yet
        if rank == dying:
            os.kill(os.getpid(), signal.SIGKILL)
        while rank == 0 and way.lost() is None:
            os.sched_yield()
        lost_source = dying == 0 or machines is not None and rank == 3 and dying == 2
        with pytest.raises(ringcast.WriterGone if lost_source else ringcast.ReaderDied) as raised:
            way(way.functions[-1], 1)
        who = (
            f"pid {pids[0]}"
            if name == "queue" and dying == 0
            else f"rank {dying} (pid {pids[dying]}"
        )
        assert who in str(raised.value), raised.value
        if not lost_source:  # else the next call makes a new ring
            assert text_of(ringcast.ReaderDied, lambda: way(way.functions[-1], 1)) == str(
                raised.value
            )
        return str(raised.value)


@pytest.mark.parametrize("name", ["torch", "queue", "share_once"])
@pytest.mark.parametrize("dying", [3, 0])
def test_a_rank_that_dies_is_named_on_all_others(mortals, name, dying):
    texts = mortals.run(4, ranks_dying, name, None, dying, dying=dying)
    assert len({text for rank, text in enumerate(texts) if rank != dying}) == 1


@pytest.mark.parametrize(
    ("name", "dying"),
    [("torch", 1), ("torch", 2), ("torch", 3), ("torch", 0), ("share_once", 3), ("share_once", 0)],
)
def test_a_rank_that_dies_on_any_machine_is_named_on_all(mortals, name, dying):
    texts = mortals.run(4, ranks_dying, name, PAIRS, dying, dying=dying)
    if dying in (1, 3):
        assert len({text for rank, text in enumerate(texts) if rank != dying}) == 1
