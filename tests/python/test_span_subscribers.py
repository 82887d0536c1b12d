# SPDX-License-Identifier: Apache-2.0
"""Subscribers of spans: when they get them, and that none harms a call, another subscriber, or a
forked child."""

import contextlib
import os
import signal
import sys
import threading

import pytest
from peers import WATCHDOG, in_a_fork
from recording import RECEIVED, SENT

import ringcast
from ringcast import _spans

pytestmark = pytest.mark.alike


def test_several_subscribers_get_all_and_one_that_fails_harms_none(ring, monkeypatch):
    writer, reader = ring
    told, one, other = [], [], []

    def fails(spans):
        raise RuntimeError("of a subscriber")

    monkeypatch.setattr(sys, "unraisablehook", told.append)
    _spans.subscribe(one.extend)
    _spans.subscribe(fails)
    _spans.subscribe(other.extend)
    with pytest.raises(ValueError, match="already"):
        _spans.subscribe(fails)
    writer.send(1)
    assert reader.recv() == 1
    _spans.flush()
    assert one == other and len(one) == 9
    assert [str(each.exc_value) for each in told] == ["of a subscriber"] and told[0].object is fails
    told.clear()
    _spans.unsubscribe(fails)
    _spans.unsubscribe(one.extend)
    writer.send(2)
    _spans.unsubscribe(other.extend)
    assert len(one) == 9 and len(other) == 15
    with pytest.raises(ValueError, match="not subscribed"):
        _spans.unsubscribe(other.extend)


def test_a_full_buffer_is_delivered_in_a_call_which_keeps_its_own_exception(ring):
    writer, reader = ring
    lists = []
    _spans.subscribe(lists.append)
    try:
        while max(map(len, lists), default=0) < _spans.CAPACITY // 4:  # fewer come after a second
            with pytest.raises(TimeoutError):
                reader.recv(1e-9)
    finally:
        _spans.unsubscribe(lists.append)
    assert max(map(len, lists)) < _spans.CAPACITY and _spans.dropped() == 0


def test_a_span_of_a_second_ago_is_delivered_before_a_wait(ring):
    writer, reader = ring
    lists = []
    _spans.subscribe(lists.append)
    try:
        writer.send(1)
        reader.recv()
        with pytest.raises(TimeoutError):
            reader.recv(1.5)
        # The call that waits is not over.
        assert [span.kind for spans in lists for span in spans] == SENT + RECEIVED
    finally:
        _spans.unsubscribe(lists.append)


def test_a_subscriber_that_sends_does_not_call_itself(ring):
    writer, reader = ring
    calls, kinds = [], []

    def echo(spans):
        calls.append(len(calls))
        assert len(calls) < 50
        kinds.extend(span.kind for span in spans)
        writer.send("from the subscriber")
        reader.recv()
        _spans.flush()

    _spans.subscribe(echo)
    writer.send(1)
    reader.recv()
    _spans.flush()
    assert calls == [0] and kinds == SENT + RECEIVED
    _spans.flush()
    assert calls == [0, 1] and kinds == 2 * (SENT + RECEIVED)
    _spans.unsubscribe(echo)
    assert calls == [0, 1, 2]


def test_the_buffer_is_bounded(ring):
    """A subscriber that takes long does not let the others' spans grow without end."""
    writer, reader = ring
    begun, go, got = threading.Event(), threading.Event(), []

    def slow(spans):
        got.append(len(spans))
        begun.set()
        go.wait(WATCHDOG)

    def fill(count):
        with ringcast.Writer(1 << 20) as mine, ringcast.Reader(mine.handle) as its:
            for _ in range(count):
                mine.send_bytes(b"x")
                its.recv(0)

    _spans.subscribe(slow)
    try:
        thread = threading.Thread(target=fill, args=(_spans.CAPACITY // 4 // 7 + 1,))
        thread.start()
        assert begun.wait(WATCHDOG)
        fill(_spans.CAPACITY // 4)  # 7 spans each: more than there is room for
        assert _spans.dropped() > 0
    finally:
        go.set()
        thread.join()
        _spans.unsubscribe(slow)
    assert max(got) <= _spans.CAPACITY


def test_ctrl_c_in_a_subscriber_is_not_lost(ring):
    writer, _ = ring

    def interrupted(spans):
        raise KeyboardInterrupt

    _spans.subscribe(interrupted)
    try:
        writer.send(1)
        with pytest.raises(KeyboardInterrupt):
            _spans.flush()
            for _ in range(1000):
                pass
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            _spans.unsubscribe(interrupted)
            for _ in range(1000):
                pass


@pytest.fixture
def handler():
    """Sets the handler of a signal, until the test ends."""
    before = {}

    def install(number, function):
        before[number] = signal.signal(number, function)

    yield install
    for number, function in before.items():
        signal.signal(number, function)


def test_the_exception_of_a_signals_handler_is_the_programs(ring, handler, monkeypatch):
    """And is raised after the other subscribers have got their spans, and once."""
    writer, _ = ring
    told, got, interrupts = [], [], []

    def killed(spans):
        for number in (signal.SIGTERM, signal.SIGINT)[: 2 - len(interrupts)]:
            os.kill(os.getpid(), number)

    def interrupt(*_):
        interrupts.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", told.append)
    handler(signal.SIGTERM, lambda *_: sys.exit(3))
    handler(signal.SIGINT, interrupt)
    _spans.subscribe(killed)
    _spans.subscribe(got.extend)
    try:
        writer.send(1)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            _spans.flush()
            for _ in range(1000):
                pass
        assert len(got) == len(SENT) and len(interrupts) <= 1
    finally:
        _spans.unsubscribe(killed)
        _spans.unsubscribe(got.extend)


def test_it_ends_a_wait(ring):
    writer, reader = ring

    def ends(spans):
        sys.exit(3)

    _spans.subscribe(ends)
    try:
        writer.send(1)
        reader.recv()
        with pytest.raises(SystemExit):
            reader.recv(WATCHDOG)  # the spans come when they are a second old
    finally:
        with pytest.raises(SystemExit):
            _spans.unsubscribe(ends)
            for _ in range(1000):
                pass


def test_a_forked_child_begins_with_no_spans_and_records_its_own(ring):
    writer, _ = ring
    got = []
    _spans.subscribe(got.extend)
    try:
        writer.send(1)

        def child():
            before = len(got)
            with ringcast.Writer(1 << 16) as mine, ringcast.Reader(mine.handle) as its:
                mine.send(2)
                its.recv()
            _spans.flush()
            return before, [tuple(span) for span in got], os.getpid()

        before, spans, pid = in_a_fork(child)
        assert before == 0 and [span[0] for span in spans] == SENT + RECEIVED
        assert {span[3] for span in spans} == {pid}
    finally:
        _spans.unsubscribe(got.extend)
    assert [span.kind for span in got] == SENT
