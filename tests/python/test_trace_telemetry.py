# SPDX-License-Identifier: Apache-2.0
"""Spans for OpenTelemetry, whose API is a stub of the test's own."""

import json
import os
import sys
import textwrap
import threading
import types

import pytest
from traces import TO_ITSELF, Events, run

from ringcast import _spans, trace

pytestmark = pytest.mark.alike


@pytest.fixture
def file(tmp_path):
    return tmp_path / "trace.json"


STUB = """
    import enum, json, os

    class SpanKind(enum.Enum):
        INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = range(5)

    class Span:
        def __init__(self, **facts):
            self.facts = facts

        def end(self, end_time):
            with open(os.environ["STUB"], "a") as file:
                file.write(json.dumps({**self.facts, "end": end_time}) + "\\n")

    class Tracer:
        def start_span(self, name, context, kind, start_time, attributes):
            if os.environ["STUB"].endswith("broken"):
                raise TypeError("not so")
            parent = context.get("span")
            return Span(name=name, kind=kind.name, start=start_time, parent=parent and parent.facts["name"],
                        attributes=attributes)

    def get_tracer(name, version):
        assert name == "ringcast" and version
        return Tracer()

    def set_span_in_context(span, context):
        return {**context, "span": span}
"""


@pytest.fixture
def telemetry(tmp_path):
    package = tmp_path / "packages" / "opentelemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "trace.py").write_text(textwrap.dedent(STUB))
    (package / "context.py").write_text("Context = dict\n")
    return os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])


def test_spans_go_to_opentelemetry_too(file, tmp_path, telemetry):
    run(
        file,
        TO_ITSELF + "    import time; print(time.time_ns())",
        PYTHONPATH=telemetry,
        STUB=str(tmp_path / "told"),
    )
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert len(told) == 27 == len(Events(file).slices())
    kinds = {one["name"]: (one["kind"], one["parent"]) for one in told}
    assert kinds.pop("ringcast send") == ("PRODUCER", None) and kinds.pop("ringcast recv") == (
        "CONSUMER",
        None,
    )
    receiving = "ringcast wait_frame", "ringcast decode"
    assert {kinds.pop(name) for name in receiving} == {("INTERNAL", "ringcast recv")}
    assert set(kinds.values()) == {("INTERNAL", "ringcast send")} and len(kinds) == 4
    # Of the wall clock, not of the time since the boot.
    changed = file.stat().st_mtime_ns
    assert all(0 <= one["start"] <= one["end"] and abs(one["end"] - changed) < 60e9 for one in told)
    assert len({one["attributes"]["ringcast.position"] for one in told}) == 3


def test_a_failing_opentelemetry_ends_only_its_part(file, tmp_path, telemetry):
    result = run(file, TO_ITSELF, PYTHONPATH=telemetry, STUB=str(tmp_path / "broken"))
    assert result.stderr.count("no more spans go to OpenTelemetry: TypeError('not so')") == 1
    assert len(Events(file).slices("send")) == 3


def test_without_opentelemetry_there_is_only_the_file(file, tmp_path):
    missing = tmp_path / "opentelemetry.py"
    missing.write_text("raise ImportError('forced')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert run(file, TO_ITSELF, PYTHONPATH=paths).stderr == ""
    assert len(Events(file).slices("send")) == 3


def test_two_threads_may_give_spans_to_opentelemetry_at_the_same_time(monkeypatch):
    made = []

    def start_span(name, context, **_):
        made.append((name, context.get("parent")))
        if len(made) == 1:
            other = threading.Thread(target=export, args=(spans(2), {}))
            other.start()
            other.join()
        return types.SimpleNamespace(name=name, end=lambda end_time: None)

    api = types.SimpleNamespace(
        SpanKind=types.SimpleNamespace(PRODUCER=0, CONSUMER=1, INTERNAL=2),
        get_tracer=lambda *_: types.SimpleNamespace(start_span=start_span),
        set_span_in_context=lambda span, context: {"parent": span.name},
    )
    monkeypatch.setitem(sys.modules, "opentelemetry", types.SimpleNamespace(trace=api))
    monkeypatch.setitem(sys.modules, "opentelemetry.context", types.SimpleNamespace(Context=dict))
    export = trace.exporter()

    def spans(thread):
        times = ("publish", 2, 3), ("send", 1, 4)
        return [_spans.Span(kind, start, end, thread, 0, 0, 0) for kind, start, end in times]

    export(spans(1), {})
    assert sorted(made, key=str) == 2 * [("ringcast publish", "ringcast send")] + 2 * [
        ("ringcast send", None)
    ]
