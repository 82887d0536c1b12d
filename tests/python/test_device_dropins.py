# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA device through the drop-ins, among processes whose driver and torch are fakes.
What each rank does is in device_dropins.py."""

import tempfile

import device_peers
import pytest

pytestmark = pytest.mark.alike  # the drop-ins' tests on the host show the same waits and deaths


def job(state, name, *args):
    import device_dropins  # torch is the fake one there

    return device_dropins.run(getattr(device_dropins, name), *args)


def start(count, **names):
    return [device_peers.start(FAKE_CUDA_JITTER=str(3 + rank), **names) for rank in range(count)]


@pytest.fixture(scope="module")
def ranks(fake_driver):
    peers = start(4)
    yield peers
    for peer in peers:
        peer.stop()


@pytest.fixture
def mortals(fake_driver):
    """The last has no device that ringcast can use."""
    peers = start(3) + start(1, RINGCAST_DISABLE="cuda")
    yield peers
    for peer in peers:
        peer.stop()


def run(peers, name, device_group, *args, dying=None):
    """The function on each; the results, without that of one that dies."""
    results, errors = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank, peer in enumerate(peers):
            peer.start(job, name, folder, rank, len(peers), device_group, *args)
        for rank, peer in enumerate(peers):
            if rank == dying:
                continue
            try:
                results.append(peer.finish())
            except Exception as error:
                errors.append(error)
    if errors:
        raise min(errors, key=lambda error: "Connection closed" in str(error))  # that one follows
    return results


# ---- By the rings; the device group, which would fail, is asked for nothing ----------------------


@pytest.mark.parametrize(
    "name, world, args",
    [
        ("broadcasts", 2, [3]),
        ("broadcasts", 4, [1]),
        ("pairs", 2, [3]),
        ("queue", 3, [4]),
        ("sharing", 3, []),
    ],
)
def test_the_rings_carry_them(ranks, name, world, args):
    results = run(ranks[:world], name, "none", *args)
    assert name == "sharing" or all(made for made, _ in results)
    for peer in ranks[:world]:
        # A pool that others had open when its writer closed goes when the next one is opened.
        peer.call(device_peers.make_writer)
        peer.call(device_peers.send, "one")
        peer.call(device_peers.close)
        assert peer.call(device_peers.left) == (0, 0, 0)


# ---- By the device group, as without ringcast ----------------------------------------------------


@pytest.mark.parametrize("value, who", [("", (0, 1, 2)), ("0", (0, 1, 2)), ("", (1,))])
def test_unless_all_ranks_ask_for_a_pool_the_engine_keeps_them(ranks, value, who):
    """ringcast makes no call of the driver."""
    for (made, is_none), asked in run(ranks[:3], "without", "device", 2, value, who):
        assert (made, is_none) == (0, True) and set(asked) == {"broadcast"}


def test_unless_the_sender_asks_for_a_pool_the_engine_keeps_them_between_two(ranks):
    for made, asked in run(ranks[:2], "pairs", "device", 2, ""):
        assert made == 0 and set(asked) == {"send", "recv"}


def test_a_tensor_that_is_broadcast_in_a_capture_takes_the_device_group(ranks):
    assert run(ranks[:3], "capturing", "device") == [(None, ["broadcast"])] * 3


def test_one_rank_that_lacks_a_device_has_all_take_the_device_group(mortals):
    for _, asked in run(mortals, "broadcasts", "device", 1):
        assert asked


# ---- Errors and deaths ---------------------------------------------------------------------------


def test_a_driver_that_fails_at_the_source_is_an_error_on_all_ranks(ranks):
    errors = [error for error, _ in run(ranks[:3], "failing", "none")]
    assert errors == ["Error", "SendError", "SendError"]


@pytest.mark.parametrize("dying, source", [(0, 0), (1, 0), (2, 1)])
def test_a_death_is_told_by_name_to_those_who_wait(mortals, dying, source):
    told = [result for result, _ in run(mortals[:3], "dying", "none", dying, source, dying=dying)]
    assert told == [("WriterGone" if dying == source else "ReaderDied", True)] * 2
