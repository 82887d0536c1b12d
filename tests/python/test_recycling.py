# SPDX-License-Identifier: Apache-2.0
"""Memory of large arrays is used again, and never while anything looks at it."""

import gc
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keeping import LOOKS, TENSOR_LOOKS, address, check_look
from needs import needs_torch, torch
from peers import in_a_fork
from recycling import DEFAULT, recycling

import ringcast

LEAST = 64 << 10


@pytest.fixture(autouse=True)
def pool():
    """Begins with nothing kept."""
    gc.collect()
    recycling(0)
    recycling(DEFAULT)
    yield
    recycling(DEFAULT)


@pytest.fixture
def large():
    with ringcast.Writer(1 << 24) as writer, ringcast.Reader(writer.handle) as reader:
        yield lambda value: (writer.send(value, 0), reader.recv(0))[1]


def lent():
    gc.collect()
    return recycling().lent


KINDS = [pytest.param(lambda size: np.full(size, 7, np.uint8), id="numpy")]
if torch:
    KINDS.append(pytest.param(lambda size: torch.full((size,), 7, dtype=torch.uint8), id="torch"))
NESTINGS = [
    pytest.param((lambda value: value, lambda got: got), id="value"),
    pytest.param((lambda value: {"x": value}, lambda got: got["x"]), id="item"),
    pytest.param((lambda value: ["in", {"x": value}], lambda got: got[1]["x"]), id="nested"),
]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("nest", NESTINGS)
def test_memory_is_used_again_once_nothing_refers_to_it(large, make, nest):
    wrap, unwrap = nest
    before = lent()
    value = wrap(make(1_000_000))
    first = unwrap(large(value))
    place = address(first)
    assert lent() > before and place % 64 == 0
    second = unwrap(large(value))
    assert address(second) != place
    del first
    gc.collect()
    third = unwrap(large(value))
    assert address(third) == place and int(third.sum()) == int(second.sum()) == 7_000_000
    third[:] = 1  # its own, and writable
    assert int(second.sum()) == 7_000_000
    del second, third
    assert lent() == before


@pytest.mark.parametrize("make", KINDS)
def test_small_arrays_are_none_of_its_business(large, make):
    before = recycling()
    held = [large({"x": make(LEAST - 1)}) for _ in range(10)]
    assert recycling() == before
    held.append(large({"x": make(LEAST)}))
    assert recycling().fresh == before.fresh + 1


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whatever_looks_at_an_array_keeps_its_memory(large, look):
    before = lent()
    check_look(large, look, np.full(1_000_000, 7, np.uint8), np.full(1_000_000, 9, np.uint8))
    assert lent() == before


@needs_torch
@pytest.mark.parametrize("look", TENSOR_LOOKS.values(), ids=TENSOR_LOOKS)
def test_whatever_looks_at_a_tensor_keeps_its_memory(large, look):
    before = lent()
    check_look(large, look, torch.full((1_000_000,), 7).byte(), torch.full((1_000_000,), 9).byte())
    assert lent() == before


# ---- Never two at once ---------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(("take", "take", "drop", "slice")), st.integers(0, 2**20)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_no_two_live_arrays_share_memory(steps):
    with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
        check_steps(writer, reader, steps)


def check_steps(writer, reader, steps):
    held = {}
    for number, (what, random_number) in enumerate(steps):
        if what == "take":
            size = (60_000, 65_536, 70_000, 300_000)[random_number % 4]
            value = np.full(size, number % 256, np.uint8)
            as_tensor = torch and random_number % 3 == 0
            writer.send({"x": torch.from_numpy(value) if as_tensor else value}, 0)
            got = reader.recv(0)["x"]
            got += 1
            held[number] = got
        elif held:
            key = list(held)[random_number % len(held)]
            if what == "drop":
                del held[key]
            else:
                held[key] = held[key][random_number % 1000 :]
        for key, array in held.items():
            assert int(array.min()) == int(array.max()) == (key + 1) % 256


def test_threads_that_receive_hold_and_drop_never_share(pool):
    failures = []

    def work(seed):
        try:
            order = random.Random(seed)
            with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
                for _ in range(6):
                    check_steps(
                        writer,
                        reader,
                        [
                            (
                                order.choice(("take", "take", "drop", "slice")),
                                order.randrange(2**20),
                            )
                            for _ in range(60)
                        ],
                    )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# ---- The bound -----------------------------------------------------------------------------------


def test_no_more_is_kept_than_may_be_and_the_oldest_goes_first(large):
    recycling(3 << 20)
    sizes = [1 << 20, 900_000, 800_000, 700_000]
    held = [large(np.zeros(size, np.uint8)) for size in sizes]
    places = [address(array) for array in held]
    while held:
        held.pop(0)
    state = recycling()
    assert 0 < state.idle <= state.limit == 3 << 20
    held = [large(np.zeros(size, np.uint8)) for size in sizes[1:]]
    assert [address(array) for array in held] == places[1:]
    assert recycling().reused == state.reused + 3
    recycling(0)
    assert recycling().idle == 0
    held.clear()
    assert recycling()[:3] == (0, 0, 0)


def test_what_is_larger_than_the_bound_is_not_taken_from_it(large):
    recycling(1 << 20)
    before = recycling()
    array = large(np.zeros(2 << 20, np.uint8))
    assert recycling() == before and array.flags.owndata


def test_packed_frames_use_it_too():
    before = lent()
    packed = ringcast.pack(np.zeros(1 << 20, np.uint8))
    assert lent() > before
    view = memoryview(packed)
    del packed
    assert lent() > before and view.nbytes > 1 << 20
    del view
    assert lent() == before


# ---- Fork and exit -------------------------------------------------------------------------------


def test_a_forked_child_has_memory_of_its_own(large):
    kept = large(np.full(1_000_000, 7, np.uint8))
    large(np.full(1_000_000, 8, np.uint8))  # idle by now
    idle = recycling().idle

    def child():
        same = int(kept.sum()) == 7_000_000 and recycling().idle == idle
        with ringcast.Writer(1 << 23) as writer, ringcast.Reader(writer.handle) as reader:
            writer.send(np.full(1_000_000, 9, np.uint8), 0)
            got = reader.recv(0)
        kept[:] = got
        return same, int(got.sum()), recycling().reused

    reused = recycling().reused
    assert in_a_fork(child) == (True, 9_000_000, reused + 1)
    assert int(kept.sum()) == 7_000_000 and recycling().idle == idle


def test_forks_while_another_thread_receives_do_not_hang(large):
    stop = threading.Event()

    def work():
        with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
            while not stop.is_set():
                writer.send(np.zeros(100_000, np.uint8), 0)
                reader.recv(0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(30):
            assert in_a_fork(lambda: recycling().limit) == DEFAULT
    finally:
        stop.set()
        thread.join()
