# SPDX-License-Identifier: Apache-2.0
"""python -m ringcast.bench dropin: every way of every case brings what was sent to all ranks and is measured, from the
source's call to the last rank that has it. How long anything takes is not looked at."""

import contextlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
from needs import needs_torch, torch

import ringcast
from ringcast.bench import __main__ as command_line
from ringcast.bench import cadence, cases, dropin, harness, report, ways

pytestmark = pytest.mark.alike

ROOT = pathlib.Path(__file__).parents[2]

# In place of vLLM, which is not installed here, at the path where its own is.
STUB = """
import types

import ringcast

print("noise")


class MessageQueue:
    def __init__(self, readers, local_readers, ranks, chunk_bytes, chunks):
        assert (readers, local_readers) == (len(ranks), len(ranks)) and chunk_bytes > chunks
        self.readers, self.writer = readers, ringcast.Writer()
        self.enqueue = self.writer.send

    def export_handle(self):
        return self.writer.handle

    @staticmethod
    def create_from_handle(handle, rank):
        made = MessageQueue.__new__(MessageQueue)
        made.readers, made.reader = 0, ringcast.Reader(handle)
        made._spin_condition = types.SimpleNamespace(busy_loop_s=1)
        return made

    def dequeue(self):
        return self.reader.recv()

    def wait_until_ready(self):
        if self.readers:
            self.writer.wait_readers(self.readers, 60)
"""


@pytest.fixture
def stub(tmp_path):
    module = tmp_path.joinpath(*ways.VLLM_QUEUE.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    for folder in module.relative_to(tmp_path).parents[:-1]:
        (tmp_path / folder / "__init__.py").touch()
    module.write_text(STUB)
    return str(tmp_path)


def as_text(data, *arguments):
    return command_line.shown(command_line.parser().parse_args(["dropin", *arguments]), data)


@needs_torch
def test_every_case_is_measured_with_each_number_of_ranks(stub):
    command = [sys.executable, "-m", "ringcast.bench", "dropin", "--seconds", "0.001", "--vllm", stub]
    done = subprocess.run(
        [*command, "--ranks", "2", "--ranks", "3", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # and nothing else is printed there
    assert "noise" in done.stderr
    assert [(case["name"], case["ranks"]) for case in found["cases"]] == [(n, r) for n in dropin.CASES for r in (2, 3)]
    assert (found["left_out"], found["gap_ms"]) == ({}, 0)
    text = as_text(found)
    assert max(map(len, text.splitlines())) <= 100
    for case in found["cases"]:
        wanted = dropin.CASES[case["name"]]
        assert set(case["ways"]) == set(wanted.ways)
        for way, measured in case["ways"].items():
            assert 0 < measured["p50_us"] <= measured["p99_us"]
            assert len(measured["cpu_us"]) == case["ranks"] and min(measured["cpu_us"]) > 0
            assert f"\n{case['name']}, {case['ranks']} ranks: {way} " in text
        p50 = {way: measured["p50_us"] for way, measured in case["ways"].items()}
        assert case["ratios"] == {other: p50[ours] / p50[other] for other, ours in wanted.ratios.items()}


@needs_torch
@pytest.mark.skipif(bool(importlib.util.find_spec("vllm")), reason="vLLM is installed here")
def test_without_vllm_its_queue_is_left_out_and_a_rank_that_has_died_is_named(monkeypatch):
    arguments = ("--case", "metadata", "--ranks", "2", "--seconds", "0.001", "--gap", "0.001", "--cold", "sleep")
    with (
        pytest.raises(dropin.Failed, match="^rank 1 has ended"),
        dropin.all_ranks(2, harness.Plan(0.001, sleep=True), "dropin") as ranks,
    ):
        monkeypatch.setattr(dropin, "all_ranks", lambda *_: contextlib.nullcontext(ranks))
        data = command_line.run(command_line.parser().parse_args(["dropin", *arguments]))
        (case,) = data["cases"]
        assert list(case["ways"]) == ["ringcast", "ringcast-object", "gloo", "ring"]
        assert case["ratios"]["vllm"] is None and case["ratios"]["gloo"] > 0
        assert "vllm left out: needs vllm, which can't be imported here" in as_text(data)
        assert "a gap of 0.001 ms before each, all asleep in it" in as_text(data)
        process = ranks.workers[1][0]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        ranks.ask(("look", []))


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="dropin needs torch.*pip install torch"):
        command_line.main(["dropin"])


@needs_torch
def test_a_folder_without_vllm_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=f"folder of an unpacked vLLM, with vllm/ in it, and '{tmp_path}' is none"):
        command_line.main(["dropin", "--vllm", str(tmp_path)])


def test_a_queue_that_is_not_vllms_own_is_not_measured_as_such(monkeypatch):
    module = type(sys)(ways.VLLM_QUEUE)
    module.MessageQueue = ringcast.Writer
    for name in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    monkeypatch.setitem(sys.modules, ways.VLLM_QUEUE, module)
    with pytest.raises(cases.LeftOut, match="not its own here, but that of ringcast"):
        ways.vllm_class(None)


# ---- At a cadence ----------------------------------------------------------------------------------------------------


@needs_torch
def test_at_a_cadence_every_way_is_measured_with_each_gap(stub):
    arguments = ["cadence", "--vllm", stub, "--gap", "0.5", "--gap", "0.1", "--ranks", "2", "--seconds", "0.001"]
    options = command_line.parser().parse_args(arguments)
    command = [sys.executable, "-m", "ringcast.bench", *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["name"], row["ranks"]) for row in found["cases"]] == [("0.1 ms", 2), ("0.5 ms", 2)]
    text = command_line.shown(options, found)
    assert max(map(len, text.splitlines())) <= 110
    for row in found["cases"]:
        others = {"vllm", "vllm-2ms", "pipes"}
        assert set(row["ways"]) == {"ringcast", *others} and set(row["ratios"]) == others
        for way, figures in row["ways"].items():
            assert 0 < figures["p50_us"] <= figures["p99_us"] and 0 < figures["cpu_percent"] <= 400
            assert f"\n{row['name']}, 2 ranks: {way} " in text


@needs_torch
def test_a_way_that_this_vllm_lacks_is_left_out_with_the_reason(stub):
    module = pathlib.Path(stub).joinpath(*ways.VLLM_QUEUE.split(".")).with_suffix(".py")
    module.write_text(STUB.replace("busy_loop_s=1", "other=1"))
    options = ["cadence", "--vllm", stub, "--gap", "0.1", "--ranks", "3", "--seconds", "0.001", "--format", "json"]
    command = [sys.executable, "-m", "ringcast.bench", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["left_out"] == {"vllm-2ms": "the readers of this vLLM's queue have no busy_loop_s to change"}
    assert [list(row["ways"]) for row in found["cases"]] == [["ringcast", "vllm", "pipes"]]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_readers_of_vllms_queue_spin_for_2_ms(monkeypatch, rank):
    class Queue:
        def __init__(self, condition):
            self._spin_condition = condition

        def call(self):
            pass

    queue = Queue(types.SimpleNamespace(busy_loop_s=1))
    monkeypatch.setattr(ways, "vllm_queue", lambda me: queue.call)
    assert ways.vllm_queue_of_2_ms(ways.Member(rank, 2, None)) == queue.call
    assert queue._spin_condition.busy_loop_s == (0.002 if rank else 1)
    monkeypatch.setattr(ways, "vllm_queue", lambda me: Queue(None).call)
    with pytest.raises(cases.LeftOut, match="no busy_loop_s") if rank else contextlib.nullcontext():
        ways.vllm_queue_of_2_ms(ways.Member(rank, 2, None))


def test_cpu_is_that_of_all_ranks_over_the_time_of_all_messages():
    ours = [dropin.Turn([1000, 1000, 1000], [10.0, 20.0], 100.0), dropin.Turn([3000], [30.0, 0.0], 300.0)]
    found = cadence.of_row({"ringcast": ours, "vllm": [dropin.Turn([4000], [500.0, 500.0], 1000.0)]})
    assert found["ways"]["ringcast"]["cpu_percent"] == pytest.approx(100 * (3 * 30 + 30) / (3 * 100 + 300))
    assert found["ratios"] == {"vllm": pytest.approx({"p50_us": 0.25, "p99_us": 0.75, "cpu_percent": 0.2})}


def test_the_rows_at_a_cadence_share_the_time_and_no_row_has_fewer_than_600_messages():
    times = {gap: cadence.seconds_of(gap, cadence.GAPS, 3, cadence.SECONDS) for gap in cadence.GAPS}
    assert sum(times.values()) * 3 == pytest.approx(cadence.SECONDS)
    messages = [seconds / len(dropin.CADENCE["metadata"].ways) / gap * 1e3 for gap, seconds in times.items()]
    assert messages == sorted(messages, reverse=True) and messages[-1] > 600


# ---- What is in the figures ------------------------------------------------------------------------------------------


def test_a_span_ends_when_the_last_reader_has_it():
    assert dropin.spans([([10, 20], 0.0), ([15, 30], 0.0), ([12, 45], 0.0)]) == [5, 25]


def test_figures_are_medians_of_all_turns():
    gloo = [dropin.Turn([8000, 4000], [1.0, 9.0], 0.0), dropin.Turn([6000], [3.0, 5.0], 0.0)]
    turns = {"gloo": gloo, "ours": [dropin.Turn([3000], [1.0, 1.0], 0.0)]}
    found = dropin.figures(turns, {"gloo": "ours", "vllm": "ours"})
    assert found["ways"]["gloo"] == {"p50_us": 6, "p99_us": 8, "cpu_us": [2, 7], "messages": 3}
    assert found["ratios"] == {"gloo": 0.5, "vllm": None}
    (row, _) = dropin.rows([{"name": "case", "ranks": 2, **found}]).values()
    assert (row["ratio"], row["cpu_source_us"], row["cpu_reader_us"]) == (0.5, 2, 7)
    table = report.table({"case": row}, report.COLUMNS["dropin"])
    assert table[-1].split() == ["case", "6.00", "8.00", "2.00", "7.00", "0.50"]


def test_the_next_message_goes_when_all_have_answered_and_after_the_gap():
    done = []
    answers = [lambda: done.append("one"), lambda: done.append("two")]
    begun = dropin.send_all(done.append, answers, "sent", 2, lambda: done.append(0.5))
    assert done == ["one", "two", *[0.5, "sent", "one", "two"] * 2]
    assert len(begun) == 2


def test_a_receiver_has_dropped_what_it_got_before_it_answers():
    class Got:
        here = 0

        def __init__(self):
            Got.here += 1

        def __del__(self):
            Got.here -= 1

    seen = []
    had = dropin.receive_all(Got, None, lambda _: seen.append(Got.here), 3)
    assert seen == [0, 0, 0, 0] and had == sorted(had) and len(had) == 3


def test_what_a_receiver_does_with_what_it_got_is_in_the_span():
    begun = []

    def use(got):
        begun.append((got, time.monotonic_ns()))

    had = dropin.receive_all(lambda: "got", use, lambda _: None, 3)
    assert [got for got, _ in begun] == ["got"] * 3
    assert all(start <= end for (_, start), end in zip(begun, had)) and len(had) == 3


def test_what_begins_is_before_what_arrives():
    with ringcast.Writer(1 << 16) as there, ringcast.Writer(1 << 16) as back:
        with ringcast.Reader(there.handle) as arrives, ringcast.Reader(back.handle) as answered:
            had = []
            other = threading.Thread(target=lambda: had.extend(dropin.receive_all(arrives.recv, None, back.send, 5)))
            other.start()
            begun = dropin.send_all(there.send, [answered.recv], {"a": 1}, 5)
            other.join()
    assert len(begun) == len(had) == 5
    assert [time for pair in zip(begun, had) for time in pair] == sorted(begun + had)


def differing():
    yield {"a": 1}, {"a": 2}
    yield {"a": 1, "b": 2}, {"b": 2, "a": 1}  # the order of keys is part of the contracts
    yield [1], (1,)
    if torch:
        yield {"a": torch.arange(3)}, {"a": torch.arange(3).int()}
        yield {"a": torch.arange(3)}, {"a": torch.arange(2)}
        yield {"a": torch.arange(3)}, {"a": torch.tensor([0, 1, 3])}


def test_what_has_changed_on_its_way_is_noticed():
    for one, other in differing():
        assert not cases.same(one, other), (one, other)
        assert cases.same(one, one) and cases.same(other, other)
