# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA device through the drop-ins, among processes whose driver and torch are fakes. What each rank does
is in device_dropins.py."""

import tempfile
import types

import device_peers
import pytest

import ringcast
from ringcast._group import devices

pytestmark = pytest.mark.alike  # test_torch_* and test_vllm_queue_deaths show the same waits and deaths of a host


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
    peers = start(3)
    yield peers
    for peer in peers:
        peer.stop()


def run(peers, name, *args, dying=None):
    """The function on each; the results. Of one that dies None."""
    results = [None] * len(peers)
    with tempfile.TemporaryDirectory() as folder:
        for rank, peer in enumerate(peers):
            peer.start(job, name, folder, rank, len(peers), *args)
        errors = []
        for rank, peer in enumerate(peers):
            if rank == dying:
                continue
            try:
                results[rank] = peer.finish()
            except Exception as error:
                errors.append(error)
    if errors:
        raise min(errors, key=lambda error: "Connection closed" in str(error))  # that one follows from another
    return results


# ---- By the rings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world, steps", [(2, 3), (4, 1)])
def test_each_function_carries_them_and_nobody_asks_the_device_group(ranks, world, steps):
    run(ranks[:world], "ranks_all", steps)
    for peer in ranks[:world]:
        # A pool that others had open when its writer closed goes when the next one is opened, or closed.
        peer.call(device_peers.make_writer)
        peer.call(device_peers.send, ("cuda", [1]))
        peer.call(device_peers.close)
        assert peer.call(device_peers.left) == (0, 0, 0)


def test_a_message_queue_carries_them(ranks):
    (way, sent, _), *others = run(ranks[:3], "ranks_queue", 4)
    # All but the first, by which both readers open it before any rank goes on.
    assert (way, sent) == ("pool", 3)
    assert [(came, opens) for _, came, opens in others] == [(3, 1)] * 2


# ---- By the device group, as without ringcast ------------------------------------------------------------------------


# Each step and source: three of vLLM's dict, four of torch's and of SGLang's, which look deeper but not into lists, and
# a tensor. All else is pickled.
APART = 3 + 4 + 4 + 1


@pytest.mark.parametrize("value, who", [("", (0, 1, 2)), ("0", (0, 1, 2)), ("", (1,))])
def test_unless_all_ranks_ask_for_a_pool_ringcast_does_nothing_with_a_device(ranks, value, who):
    assert run(ranks[:3], "ranks_without", value, who) == [3 * 3 * APART] * 3


def test_unless_the_sender_asks_for_a_pool_ringcast_does_nothing_with_a_device(ranks):
    assert run(ranks[:2], "ranks_pairs_without") == [12] * 2


def test_a_tensor_that_is_broadcast_in_a_capture_takes_the_device_group_alone(ranks):
    assert run(ranks[:3], "ranks_capturing") == [(["broadcast"], 0)] * 3


def test_one_rank_that_lacks_a_device_has_all_take_the_device_group(ranks, fake_driver):
    (lacking,) = start(1, RINGCAST_DISABLE="cuda")
    try:
        assert run([*ranks[:2], lacking], "ranks_lacking") == [["broadcast"] * 2] * 3
    finally:
        lacking.stop()


# ---- Errors and deaths -----------------------------------------------------------------------------------------------


def test_a_driver_that_fails_at_the_source_is_an_error_on_all_ranks(ranks):
    source, *others = run(ranks[:3], "ranks_failing")
    assert len(source) == 1 and "SendError" not in source[0]
    for texts in others:
        assert len(texts) == 1 and texts[0].startswith("SendError: ") and "broadcast_object failed" in texts[0]


@pytest.mark.parametrize("dying, source", [(0, 0), (1, 0), (2, 1)])
def test_a_death_is_told_by_name_to_those_who_wait(mortals, dying, source):
    results = run(mortals, "ranks_dying", dying, source, dying=dying)
    for rank, told in enumerate(results):
        if rank != dying:
            name, names_it, text = told
            assert name == ("WriterGone" if dying == source else "ReaderDied") and names_it, text


# ---- Which tensors go by the rings -----------------------------------------------------------------------------------


class Plain:
    is_cuda, is_nested, layout = True, False, "strided"

    def numel(self):
        return 10

    def element_size(self):
        return 4


class Sub(Plain):
    pass


class Sparse(Plain):
    pass


@pytest.mark.parametrize("capturing", [False, True])
def test_the_rings_carry_what_has_a_form_there_while_no_graph_is_captured(monkeypatch, capturing):
    cuda = types.SimpleNamespace(is_current_stream_capturing=lambda: capturing)
    nn = types.SimpleNamespace(Parameter=Sparse)
    torch = types.SimpleNamespace(Tensor=Plain, nn=nn, strided="strided", cuda=cuda)
    monkeypatch.setitem(devices.sys.modules, "torch", torch)
    monkeypatch.setattr(ringcast, "gpu_status", lambda: types.SimpleNamespace(ready=True))
    end, sparse = types.SimpleNamespace(carries_cuda=True), Sparse()
    sparse.layout = "sparse"
    tensors = [Plain(), Sparse(), Sub(), sparse]
    assert [devices.carries(end, tensor) for tensor in tensors] == [not capturing, not capturing, False, False]
    end.carries_cuda = False
    assert not any(devices.carries(end, tensor) for tensor in tensors)
