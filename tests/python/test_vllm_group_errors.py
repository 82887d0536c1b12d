# SPDX-License-Identifier: Apache-2.0
"""ringcast.vllm.group when something can't be sent, or a rank dies or leaves: what is sent from one
rank to another."""

import functools
import os
import signal
import threading
from concurrent import futures
from typing import Any, Dict, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import meet, on_ranks, text_of
from peers import names_of_rings
from sending import end_to, send_some

import ringcast
from ringcast._group import p2p, rings
from ringcast.vllm.group import Group

pytestmark = pytest.mark.alike


def test_without_a_group_it_says_what_to_call_first() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        Group()
    with pytest.raises(TypeError, match="device_group .* str"):
        Group(dist.ProcessGroup(0, 1), "cuda")


@on_ranks(2)
def test_a_group_of_the_device_with_other_ranks_is_refused() -> None:
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    assert "the same ranks" in text_of(ValueError, lambda: Group(None, alone))


@on_ranks(2)
def test_a_peer_out_of_range_is_refused() -> None:
    group = Group()
    me = group.rank_in_group
    sends = (group.send_object, 1), (group.isend_object, 1), (group.isend_tensor_dict, {})
    for peer, word in (me, "it is the rank that calls"), (2, "has 2 ranks"), (-1, "has 2 ranks"):
        for send, value in sends:
            assert word in text_of(AssertionError, functools.partial(send, value, peer))
        for receive in group.recv_object, group.recv_tensor_dict:
            assert word in text_of(AssertionError, functools.partial(receive, peer))


def ranks_too_large() -> str:
    os.environ.update(RINGCAST_CAPACITY="65536", RINGCAST_SPILL_BYTES="0")
    group = Group()
    text = ""
    send_some(group)
    if group.rank_in_group == 0:
        first = text_of(ringcast.FrameTooLarge, lambda: group.send_object(bytes(100_000), 1))
        handles = [group.isend_object(bytes(5000), 1) for _ in range(50)]
        handles.append(group.isend_object(bytes(100_000), 1))
        handles.append(group.isend_object("last", 1))
        dist.barrier()
        text = text_of(ringcast.FrameTooLarge, handles[-2].wait)
        assert text == first
        handles[-1].wait()
    else:
        text_of(ringcast.SendError, lambda: group.recv_object(0))
        dist.barrier()
        for _ in range(50):
            group.recv_object(0)
        text_of(ringcast.SendError, lambda: group.recv_object(0))
        assert group.recv_object(0) == "last"
    dist.barrier()
    return text


def test_what_does_not_fit_is_said_also_from_the_outbox(ranks):
    assert "RINGCAST_SPILL_BYTES" in ranks.run(2, ranks_too_large)[0]


@on_ranks(2)
def test_an_outbox_whose_ring_is_closed_ends() -> None:
    """The outbox's thread is the one that collects the group, and so closes the ring that it sends
    into."""
    os.environ.update(RINGCAST_CAPACITY="65536", RINGCAST_SPILL_BYTES="0")
    group = Group()
    send_some(group)
    if group.rank_in_group == 0:
        end = end_to(group, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                end, "_judge", lambda *its, judge=end._judge: (end.close(), judge(*its))[1]
            )
            handles = [group.isend_object(bytes(5000), 1) for _ in range(50)]
            handles.append(group.isend_object(bytes(100_000), 1))
            handles.append(group.isend_object("lost", 1))
            dist.barrier()
            for handle in handles[-2:]:
                assert "is not sent to any more" in text_of(ringcast.ReaderDied, handle.wait)
    else:
        dist.barrier()
        for _ in range(50):
            group.recv_object(0)
        text_of(ringcast.WriterGone, lambda: group.recv_object(0))


class Answered:
    """Stands for the receive of an answer, of which one byte is there until it is waited for."""

    def __init__(self, answer: Any) -> None:
        self.tensor = torch.tensor([abs(answer) & 0x7F or 1])
        self._answer = answer

    def wait(self) -> None:
        self.tensor[0] = self._answer


@on_ranks(1)
def test_an_answer_of_which_a_part_is_there_is_not_taken_for_another() -> None:
    answers = [Answered(-1234), Answered(-1234)]
    end = p2p.Sender(0, 1, 1)
    for each in answers:
        end.posted.append(p2p._Posted([], each.tensor, each, [], end))
    end._look_for_answers(None)
    assert not end._on_ring and end.ring.closed and end._peer_pid == 1234


def ranks_one_dies() -> Dict[str, List[str]]:
    """Rank 1 dies: with a ring in use each way; with a message on its way to it, and one from it
    received; and where nothing was ever sent."""
    os.environ["RINGCAST_CAPACITY"] = "65536"
    ring, begun, unused = Group(), Group(dist.new_group()), Group(dist.new_group())
    me, peer = ring.rank_in_group, 1 - ring.rank_in_group
    pid = None
    for step in range(4):
        ring.isend_object(os.getpid(), peer)
        pid = ring.recv_object(peer)
        dist.barrier()
    handle = begun.isend_object("begun", peer)
    if me == 0:
        assert begun.recv_object(1) == "begun"
        handles = [ring.isend_object(bytes(5000), 1) for _ in range(100)]
        assert end_to(ring, 1)._on_ring and isinstance(handles[-1], p2p._Queued)
    meet()
    if me == 1:
        ring.isend_object("last", 0)
        os.kill(os.getpid(), signal.SIGKILL)

    texts: Dict[str, List[str]] = {"pid": [str(pid)]}
    assert ring.recv_object(1) == "last"
    for name, group in ("ring", ring), ("begun", begun), ("unused", unused):
        receives = group.recv_object, group.recv_tensor_dict
        texts[f"received, {name}"] = [
            text_of(ringcast.WriterGone, functools.partial(receive, 1)) for receive in receives
        ]
        texts[f"sent, {name}"] = [
            text_of(ringcast.ReaderDied, functools.partial(group.isend_tensor_dict, {}, 1))
            if name == "ring"
            else text_of(ringcast.ReaderDied, functools.partial(group.send_object, 1, 1))
            for _ in range(2)
        ]
    texts["sent, begun"] += [text_of(ringcast.ReaderDied, handle.wait)]
    texts["sent, ring"] += [text_of(ringcast.ReaderDied, handle.wait) for handle in handles[-2:]]
    return texts


def test_one_that_dies_is_named_to_who_sends_to_it_and_who_receives_from_it(mortals):
    texts = mortals.run(2, ranks_one_dies, dying=1)[0]
    who = f"rank 1 (pid {texts.pop('pid')[0]})"
    # What is told of the rank: its pid as far as it is known, and how it is known.
    told = {
        "received, begun": (who, "can't be reached"),
        "received, unused": ("rank 1 (its pid is not known", ""),
        "sent, ring": (who, "has died"),
        "sent, begun": ("rank 1 (its pid was never known)", "can't be reached"),
        "sent, unused": ("rank 1 (its pid was never known)", "can't be reached"),
    }
    ended, gone = texts.pop("received, ring")
    assert ended.startswith(who + " has died") and "lost" in ended
    assert gone.startswith(who) and "can't be reached" in gone
    for name, (start, word) in told.items():
        for text in texts[name]:
            assert text.startswith(start) and word in text, (name, text)


@on_ranks(2)
def test_a_sender_looks_at_most_every_50_ms() -> str:
    """Nobody waits, and yet a death is found, by looking now and then."""
    group = Group()
    send_some(group)
    if group.rank_in_group == 1:
        for _ in range(30):
            group.recv_object(0)
        return ""
    end = end_to(group, 1)
    looks, now = [], 100.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end, "_look", lambda look=end._look: (looks.append(1), look()))
        end._next_look = now
        for step in range(30):
            patch.setattr(p2p.time, "monotonic", lambda step=step: now + 0.01 * step)
            group.send_object(step, 1)
    assert len(looks) == 6, looks
    return ""


def ranks_leaving() -> str:
    """The receiver lives, but its group is gone."""
    group = Group(dist.new_group())
    send_some(group)
    if group.rank_in_group == 1:
        group.close()
        dist.barrier()
        return ""
    dist.barrier()
    end_to(group, 1)._next_look = 0.0
    return text_of(ringcast.ReaderDied, lambda: group.send_object(1, 1))


def test_a_sender_hears_that_the_receiver_left(ranks):
    assert "has left" in ranks.run(2, ranks_leaving)[0]


# ---- Threads, and an exit with frames under way --------------------------------------------------


@on_ranks(2)
def test_threads_whose_first_send_coincides_send_all() -> None:
    group, count = Group(), 8
    if group.rank_in_group == 1:
        assert sorted(group.recv_object(0) for _ in range(count)) == list(range(count))
        return
    together, make = threading.Barrier(count), p2p.config.make_writer

    def send(number: int) -> None:
        together.wait()
        group.send_object(number, 1)

    def make_slowly(*args: Any, **options: Any) -> Any:
        for _ in range(1000):
            os.sched_yield()  # to the other threads
        return make(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(p2p.config, "make_writer", make_slowly)
        with futures.ThreadPoolExecutor(count) as threads:
            list(threads.map(send, range(count)))
    assert len(names_of_rings()) == 1


@on_ranks(2)
def test_a_second_thread_is_refused_while_a_ring_is_made() -> None:
    group = Group()
    if group.rank_in_group == 1:
        meet()
        assert group.broadcast_object() == "sent"
        return
    with futures.ThreadPoolExecutor(1) as threads:
        first = threads.submit(group.broadcast_object, "sent")
        while not rings._making:
            os.sched_yield()
        assert "thread" in text_of(RuntimeError, lambda: group.broadcast_object("another"))
        meet()
        first.result()


@on_ranks(2)
def test_a_second_thread_that_receives_before_the_ring_is_there_is_refused() -> None:
    group = Group()
    if group.rank_in_group == 1:
        with futures.ThreadPoolExecutor(1) as threads:
            first = threads.submit(group.recv_object, 0)
            end = p2p.receiver(group.cpu_group, group.ranks, 1, 0)
            while not end._turn.locked():
                os.sched_yield()
            assert "thread" in text_of(RuntimeError, lambda: group.recv_object(0))
            meet()
            assert first.result() == "sent"
    else:
        meet()
        group.send_object("sent", 1)


@on_ranks(2)
def test_frames_that_a_close_loses_are_counted_for_the_receiver() -> None:
    os.environ.update(RINGCAST_CAPACITY="65536", RINGCAST_SPILL_BYTES="0")
    group, count = Group(), 50
    send_some(group)
    if group.rank_in_group == 0:
        for number in range(count):
            group.isend_object((number, bytes(5000)), 1)
        group.close()
        meet()
        return
    meet()
    received = 0
    try:
        while True:
            assert group.recv_object(0)[0] == received
            received += 1
    except ringcast.SendError as error:
        assert f"{count - received} " in str(error)
    text_of(ringcast.WriterGone, lambda: group.recv_object(0))
