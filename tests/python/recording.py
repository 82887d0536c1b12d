# SPDX-License-Identifier: Apache-2.0
"""For the tests of spans: what was recorded, and the order in which it has to be."""

import contextlib
import threading

from ringcast import _spans

SENT = ["encode", "wait_room", "encode", "copy", "publish", "send"]
BYTES_SENT = ["wait_room", "copy", "publish", "send"]
RECEIVED = ["wait_frame", "decode", "recv"]


class Recorded(list):
    """The spans of the block."""

    def kinds(self):
        return [span.kind for span in self]

    def of(self, *kinds):
        return [span for span in self if span.kind in kinds]


@contextlib.contextmanager
def recorded():
    spans = Recorded()
    take = spans.extend
    _spans.subscribe(take)
    try:
        yield spans
    finally:
        _spans.unsubscribe(take)


def check(spans):
    """Phases come in order, in their call, which follows; and no phase is longer than its call."""
    phases = []
    for span in spans:
        assert type(span) is _spans.Span and span.start_ns <= span.end_ns
        assert span.thread == threading.get_native_id()
        if span.kind not in ("send", "recv"):
            phases.append(span)
            continue
        for phase in phases:
            assert span.start_ns <= phase.start_ns and phase.end_ns <= span.end_ns
            assert phase.ring == span.ring
        for one, next_one in zip(phases, phases[1:]):
            assert one.end_ns <= next_one.start_ns
        phases = []
    assert phases == []
