# SPDX-License-Identifier: Apache-2.0
"""Spans for OpenTelemetry, by its API: of the tracer "ringcast", a PRODUCER span for each send, a CONSUMER span for
each recv, and their phases as children."""

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ringcast._ringcast import __version__
from ringcast._spans import Span

Export = Callable[[List[Span], Dict[int, str]], None]


def exporter() -> Optional[Export]:
    """A function of spans and the names of rings. None: the package opentelemetry is missing."""
    try:
        from opentelemetry import trace
        from opentelemetry.context import Context
    except ImportError:
        return None
    tracer: Any = trace.get_tracer("ringcast", __version__)
    kinds = {"send": trace.SpanKind.PRODUCER, "recv": trace.SpanKind.CONSUMER}

    def export(spans: List[Span], rings: Dict[int, str]) -> None:
        wall = time.time_ns() - time.monotonic_ns()
        calls: Dict[int, List[Tuple[Span, Any]]] = {}  # of each thread: the calls around the present span
        for span in reversed(spans):  # a call comes before its phases
            around = calls.setdefault(span.thread, [])
            while around and not (around[-1][0].start_ns <= span.start_ns and span.end_ns <= around[-1][0].end_ns):
                around.pop()
            # An empty context: the program's span at the time of a flush is no parent.
            context = trace.set_span_in_context(around[-1][1], Context()) if around else Context()
            made = tracer.start_span(
                f"ringcast {span.kind}",
                context=context,
                kind=kinds.get(span.kind, trace.SpanKind.INTERNAL),
                start_time=span.start_ns + wall,
                attributes={
                    "messaging.system": "ringcast",
                    "messaging.destination.name": rings.get(span.ring, f"{span.ring:016x}"),
                    "messaging.message.body.size": span.bytes,
                    "ringcast.position": span.position,
                    "thread.id": span.thread,
                },
            )
            if span.kind in kinds:
                around.append((span, made))
            made.end(end_time=span.end_ns + wall)

    return export
