# SPDX-License-Identifier: Apache-2.0
"""python -m ringcast.bench: each command measures each case and says so; the cases are what they are said to be. How
long anything takes is not looked at."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import pickle
import re
import shlex
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from keeping import KEEPS
from loops import uvloop
from needs import needs_torch, torch
from values import assert_same

import ringcast
from ringcast.bench import __main__ as command_line
from ringcast.bench import cases, codec, dropin, engine, frames, harness, report, ways

pytestmark = pytest.mark.alike

ROOT = pathlib.Path(__file__).parents[2]
OTHERS = ["msgspec", "ormsgpack", "pyfory"]
ENGINE = """
import dataclasses
@dataclasses.dataclass
class NewRequestData: req_id: str
class SchedulerOutput: pass
CachedRequestData = SamplingParams = RequestOutputKind = SchedulerOutput
MultiModalKwargsItem = MultiModalFieldElem = MultiModalBatchedField = SchedulerOutput
"""
NEEDS_TORCH = {"tensor-dict", "features"}
ALL = [pytest.param(name, marks=[needs_torch] if name in NEEDS_TORCH else []) for name in cases.CASES]


CPUS = os.sched_getaffinity(0)


@pytest.fixture(autouse=True)
def may_run_where_it_might_before():
    yield
    assert os.sched_getaffinity(0) == CPUS


def run(*arguments):
    """What a command prints in both formats, of one run."""
    options = command_line.parser().parse_args([str(argument) for argument in arguments])
    found = command_line.run(options)
    options.format = "json"
    data = json.loads(command_line.shown(options, found))
    options.format = "text"
    return data, command_line.shown(options, found)


def figures(found):
    for value in found.values():
        if isinstance(value, dict):
            yield from figures(value)
        else:
            yield value


# ---- The commands ----------------------------------------------------------------------------------------------------


def test_the_codec_is_measured_with_every_case(monkeypatch):
    monkeypatch.setattr(harness, "SLEEP", 1e-6)
    monkeypatch.setattr(harness, "block_bytes", lambda: 4096)
    found, text = run("codec", "--seconds", 0.001)
    others = {name for name in OTHERS if importlib.util.find_spec(name) is None}
    theirs = {name: why for name, why in found["left_out"].items() if name not in others}
    look_at({**found, "left_out": theirs}, "codec", text)
    assert others <= set(found["left_out"])
    assert set(found["calls"]) == {"hot", "asleep", "evicted"}
    for how, figures_of in found["calls"].items():
        assert set(figures_of) == {"empty_us", "send_bytes_us", "send_us"} and min(figures_of.values()) > 0
        assert f"calls, {how}, us: an empty one " in text
    for name, measured in found["cases"].items():
        assert all({"ringcast", "pickle", "ratio"} == set(measured[how]) for how in ("asleep", "evicted"))
        for way in ("ringcast", "pickle"):
            assert {"encode_us", "decode_us", "encode_decode_us", "bytes"} <= set(measured[way])
        assert measured.pop("classes") == ("stand-in" if name in cases.OF_ENGINE else "")
        assert all(value > 0 for value in figures(measured) if value is not None)
        assert re.search(rf"^{name} .*[-0-9]$", text, re.M)
    assert found["cases"]["multimodal"]["ringcast"]["recv_retained_us"] > 0
    assert all(found["cases"]["token-ids"][way] is None for way in ("msgspec", "ormsgpack"))
    if "msgspec" not in others:
        assert found["cases"]["scheduler-64"]["msgspec"]["bytes"] > 1000


def test_each_cold_round_follows_a_rest():
    seen = []
    value = Counted()
    Counted.dumped = Counted.loaded = 0
    assert codec.run("pickle", "encode_decode_us", value, 3, lambda: seen.append(Counted.loaded)) > 0
    assert seen == [0, 1, 2] and Counted.loaded == 3


def test_the_classes_of_an_engine_are_taken_from_its_source(tmp_path, monkeypatch, capsys):
    """A package with other classes, one of which has fewer fields."""
    for name in ("v1/core/sched/output", "sampling_params", "multimodal/inputs"):
        path = tmp_path / f"vllm/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ENGINE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = engine.find(str(tmp_path))
    assert found.name == tmp_path.name and found.output.__module__ == "vllm.v1.core.sched.output"
    assert dataclasses.asdict(engine.made(found.new, req_id="a", replay_start=1)) == {"req_id": "a"}
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.path.remove(str(tmp_path))
    assert engine.find(str(tmp_path / "no")) is engine.STAND_IN
    assert "stand-ins are measured" in capsys.readouterr().err


def test_every_case_is_measured_between_two_processes(monkeypatch):
    with dropin.all_ranks(2, harness.Plan(), "object") as pair:  # for both: that a process imports torch takes seconds
        monkeypatch.setattr(dropin, "all_ranks", lambda *_: contextlib.nullcontext(pair))
        for command in ("object", "tensors"):
            found, text = run(command, "--seconds", 0.001)
            found["cases"] = {case["name"]: case for case in found["cases"]}
            look_at(found, command, text)
            for name, case in found["cases"].items():
                assert list(case["ways"]) == ["ringcast", "pickle"]
                wanted = {"objects_per_s", "gb_per_s"} if name in cases.WITH_TENSORS else {"objects_per_s"}
                for way, measured in case["ways"].items():
                    assert wanted == set(measured) - {"p50_us", "p99_us", "cpu_us", "messages"}
                    assert all(measured[key] > 0 for key in wanted) and 0 < measured["p50_us"] <= measured["p99_us"]
                    assert re.search(rf"^{name}, 2 ranks: {way} .*[0-9]$", text, re.M)
                p50 = {way: measured["p50_us"] for way, measured in case["ways"].items()}
                assert case["ratios"] == {"pickle": p50["ringcast"] / p50["pickle"]}


def look_at(found, command, text):
    wanted = set({"tensors": cases.WITH_TENSORS, "object": cases.ON_RINGS}.get(command, cases.CASES))
    left_out = set() if torch else wanted & NEEDS_TORCH
    assert (set(found["cases"]), set(found["left_out"])) == (wanted - left_out, left_out)
    assert {"cpu", "cores", "python", "numpy", "torch", "ringcast"} <= set(found["machine"])
    assert (found["command"], found["machine"]["ringcast"]) == (command, ringcast.__version__)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("how", ["65536", "sleep"])
def test_objects_are_measured_cold(how):
    found, text = run("object", "--case", "metadata", "--seconds", 0.001, "--cold", how, "--gap", "2")
    assert (found["gap_ms"], found["cold"]) == (2, how)
    (measured,) = found["cases"]
    assert measured["ways"]["ringcast"]["p50_us"] > 0 and "objects_per_s" not in measured["ways"]["ringcast"]
    assert "a gap of 2 ms before each, " in text
    assert {"65536": "caches cold", "sleep": "all asleep in it"}[how] in text


def test_a_gap_that_a_walk_fills_is_refused():
    with pytest.raises(harness.Failed, match=r"a walk over 16384 KiB takes .* ms with 2 .* --gap is 0.001 ms"):
        harness.plan(str(16 << 20), 1e-6, 2)
    plan = harness.plan(str(1 << 20), 0, 2)
    assert plan.walk == 1 << 20 and plan.gap > 0


def test_a_rest_of_the_source_lasts_for_the_gap():
    slept = []
    plan = harness.Plan(1000.0, sleep=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.time, "sleep", slept.append)
        harness.rest_of(plan, source=True)()
        harness.rest_of(plan, source=False)()
    assert 500 < slept[0] <= 1000 and slept[1] == 500
    assert harness.rest_of(harness.Plan(10.0), source=False) is None is harness.rest_of(harness.Plan(), source=True)


def test_the_command_line_runs_as_a_module():
    command = [sys.executable, "-m", "ringcast.bench", "object", "--case", "metadata", "--seconds", "0.001"]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert [case["name"] for case in json.loads(done.stdout)["cases"]] == ["metadata"]


def documented():
    """Every command line that the pages and the help show."""
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("benchmarks.md", "python.md")]
    for line in "\n".join([*texts, command_line.EXAMPLES]).splitlines():
        if re.match(r" *(build/venv/bin/)?python -m ringcast\.bench ", line):
            yield re.sub(r"^.*? -m ringcast\.bench | *[#>].*$", "", line)


@pytest.mark.parametrize("line", sorted(documented()))
def test_what_is_documented_is_understood(line):
    assert command_line.parser().parse_args(shlex.split(line)).command in command_line.COMMANDS


@pytest.mark.parametrize("retains", [False, True])
def test_composed_frames_are_measured_and_their_copies_counted(monkeypatch, retains):
    monkeypatch.setattr(frames, "SIZES", (1 << 20, 20 << 20))
    if not retains:
        monkeypatch.setenv("RINGCAST_DISABLE", "retain", prepend=",")
    found, text = run("compose", "--rounds", 1)
    kernels = ["numpy"] + ["torch"] * (torch is not None)
    assert list(found["cases"]) == [
        f"{kernel}, {size} MiB: {way}" for kernel in kernels for size in (1, 20) for way in frames.WAYS
    ]
    for name, figures in found["cases"].items():
        keeps = retains and KEEPS and "20 MiB" in name and name.endswith("retained")
        assert figures["copies_in"] == ("send" in name) and figures["copies_out"] == (not keeps)
        assert name in text and figures["total_us"] >= figures["source_us"] > 0


def test_frames_that_are_packed_once_are_measured():
    found, text = run("packed", "--rounds", 1)
    measured = set(frames.PACKED) - set(found["left_out"])
    assert len(found["cases"]) == len(measured) * len(frames.RINGS) and "metadata" in measured
    for name, figures in found["cases"].items():
        assert name in text and figures["ratio"] == pytest.approx(figures["pack_us"] / figures["send_us"])


def test_each_command_is_documented():
    assert {line.split()[0] for line in documented()} == set(command_line.COMMANDS)


@pytest.mark.parametrize(
    "bad, why",
    [
        (["codec", "--case", "metadat"], "'metadat'.*metadata.*features-numpy"),
        (["tensors", "--case", "metadata"], "'metadata'.*tensor-dict"),
        (["object", "--seconds", "0"], "takes seconds, more than 0, and not '0'"),
        (["object", "--seconds", "nan"], "takes seconds, more than 0, and not 'nan'"),
        (["object", "--seconds", "long"], "takes seconds, more than 0, and not 'long'"),
        (["object", "--cold", "warm"], "takes evict, sleep or a number of bytes from 64 on, and not 'warm'"),
        (["dropin", "--cold", "63"], "takes evict, sleep or a number of bytes from 64 on, and not '63'"),
        (["codec", "--cold"], "unrecognized arguments: --cold"),
        (["asyncio", "--rounds", "0"], "takes a whole number from 1 on, and not '0'"),
        (["dropin", "--case", "features-numpy"], "'features-numpy'.*scheduler-256"),
        (["dropin", "--ranks", "1"], "takes a number of ranks, 2 to 64, and not '1'"),
        (["dropin", "--ranks", "two"], "takes a number of ranks, 2 to 64, and not 'two'"),
        (["dropin", "--gap", "-1"], "takes milliseconds, 0 to 1000, and not '-1'"),
        (["dropin", "--gap", "some"], "takes milliseconds, 0 to 1000, and not 'some'"),
        ([], "COMMAND"),
    ],
)
def test_bad_arguments_are_refused(capsys, bad, why):
    with pytest.raises(SystemExit) as left:
        command_line.main(bad)
    assert left.value.code == 2
    assert re.search(why, capsys.readouterr().err.splitlines()[-1])


def test_without_torch_its_cases_are_left_out_and_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    found, text = run("codec", "--seconds", 0.001, "--case", "tensor-dict", "--case", "tensor-dict-numpy")
    assert list(found["cases"]) == ["tensor-dict-numpy"]
    assert "needs torch" in found["left_out"]["tensor-dict"]
    assert "\ntensor-dict left out: needs torch" in text
    with pytest.raises(SystemExit, match="nothing was measured: features needs torch"):
        command_line.main(["codec", "--case", "features"])


def test_asyncio_prints_what_a_wake_up_costs():
    pytest.importorskip("ringcast.bench.wakeup")
    found, text = run("asyncio", "--rounds", 3)
    assert list(found["cases"]) == ["recv", "arecv_asyncio", *(["arecv_uvloop"] if uvloop else [])]
    assert list(found["left_out"]) == ([] if uvloop else ["arecv_uvloop"])
    assert 0 <= found["cases"]["recv"]["slept"] <= 1
    for way, measured in found["cases"].items():
        assert measured["p50_us"] > 0
        assert re.search(rf"^{way} +{re.escape(report.number(measured['p50_us']))}", text, re.M)


def test_batches_are_measured_beside_single_calls():
    found, text = run("batch", "--seconds", 0.001)
    assert set(found["cases"]) == {"bytes-16", "bytes-256", "str-16", "int"}
    for name, measured in found["cases"].items():
        assert ("send_bytes_per_s" in measured) == name.startswith("bytes")
        single = measured["send_bytes_per_s" if name.startswith("bytes") else "send_per_s"]
        assert measured["ratio"] == measured["send_many_per_s"] / single
        assert re.search(rf"^{name} .* {re.escape(report.number(measured['ratio']))}$", text, re.M)


# ---- The other processes ---------------------------------------------------------------------------------------------


def test_each_process_has_a_cpu_of_its_own_and_its_death_is_told():
    with (
        pytest.raises(harness.Failed, match="rank 1 has ended"),
        dropin.all_ranks(2, harness.Plan(), "object") as ranks,
    ):
        theirs = [os.sched_getaffinity(process.pid) for process, _ in ranks.workers]
        assert theirs == [{cpu} for cpu in sorted(CPUS)[:2]] if len(CPUS) > 1 else [CPUS] * 2
        process, _ = ranks.workers[1]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        ranks.ask(("take", "metadata", ["ringcast"]))


KILLS = """
from ringcast.bench import __main__, death
death.WAYS = {name: death.WAYS[name] for name in ("MessageQueue", "send_object")}
__main__.main(["death", "--rounds", "1", "--format", "%s"])
"""


@needs_torch
def test_the_others_errors_after_a_kill_are_measured_and_name_the_dead():
    told = [
        subprocess.run([sys.executable, "-c", KILLS % form], capture_output=True, text=True, timeout=300)
        for form in ("json", "text")
    ]
    assert [done.returncode for done in told] == [0, 0], [done.stderr for done in told]
    cases = json.loads(told[0].stdout)["cases"]
    assert set(cases) == {
        f"{way}, {whom}" for way in ("MessageQueue", "send_object") for whom in ("a receiver", "the source")
    }
    for name, found in cases.items():
        assert found["all_named"] and found["kills"] == 1 and found["p50_ms"] == found["max_ms"] > 0
        assert ("WriterGone" if name.endswith("source") else "ReaderDied") in found["error"], name
        assert re.search(rf"^{re.escape(name)} .*{re.escape(found['error'])}", told[1].stdout, re.M)


# ---- What is in the figures ------------------------------------------------------------------------------------------


class Counted:
    """Goes by pickle, whoever sends it."""

    dumped = loaded = 0

    def __reduce__(self):
        Counted.dumped += 1
        return made, ()


def made():
    Counted.loaded += 1
    return Counted()


@pytest.fixture
def counted():
    Counted.dumped = Counted.loaded = 0
    return Counted()


@pytest.mark.parametrize("name", ["ringcast", "pickle"])
@pytest.mark.parametrize("what, dumped, loaded", [("encode_us", 5, 0), ("decode_us", 1, 5), ("encode_decode_us", 5, 5)])
def test_each_round_of_the_codec_does_its_work(counted, name, what, dumped, loaded):
    assert codec.run(name, what, counted, 5) > 0
    assert (Counted.dumped, Counted.loaded) == (dumped, loaded)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("make", [ways.ring, ways.ring_of_pickles])
def test_each_round_between_two_does_its_work(counted, make, streamed):
    rests, results = [], []
    with ringcast.Writer(1 << 16) as there, ringcast.Writer(1 << 16) as back:
        with ringcast.Reader(there.handle) as arrives, ringcast.Reader(back.handle) as returns:
            send, receive = make(ways.Member(0, 2, None, ring=there)), make(ways.Member(1, 2, None, ring=arrives))
            reads, writes = (dropin.drain, receive, 5), (dropin.pour, send, counted, 5)
            if not streamed:
                reads = dropin.receive_all, receive, None, back.send, 5, lambda: rests.append("reader")
                writes = dropin.send_all, send, [returns.recv], counted, 5, lambda: rests.append("writer")
            other = threading.Thread(target=lambda loop, *rest: results.append(loop(*rest)), args=reads)
            other.start()
            sent = writes[0](*writes[1:])
            other.join()
    assert (Counted.dumped, Counted.loaded) == (5, 5)
    assert results[0] > 0 if streamed else len(results[0]) == len(sent) == 5
    assert sorted(rests) == ([] if streamed else ["reader"] * 5 + ["writer"] * 5)


def test_the_ways_take_turns():
    order = []
    found = harness.in_turns({name: lambda rounds, name=name: order.append(name) or rounds for name in "ab"}, 1e-9)
    assert order == list("abbaab")
    assert {name: len(results) for name, results in found.items()} == {"a": 1, "b": 1}
    assert min(found["a"] + found["b"]) >= harness.LEAST


@pytest.mark.parametrize("share, wanted", [(0.5, 51), (0.99, 100), (0.01, 2)])
def test_a_percentile_is_one_of_the_values(share, wanted):
    assert harness.percentile(list(range(100, 0, -1)), share) == wanted


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""),
        (True, "yes"),
        (False, "NO"),
        ("words", "words"),
        (7, "7"),
        (1234567, "1,234,567"),
        (0.0123, "0.012"),
        (0.1234, "0.12"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
    ],
)
def test_numbers_are_short(value, text):
    assert report.number(value) == text


# ---- The cases -------------------------------------------------------------------------------------------------------


def parts(value):
    """What assert_same looks into: dataclasses as their class and fields, sets in order."""
    if dataclasses.is_dataclass(value):
        return type(value), {field.name: parts(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, engine.KwargsItem):
        return type(value), parts(value.data)
    if isinstance(value, dict):
        return {key: parts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(parts(item) for item in value)
    return (set, sorted(value)) if isinstance(value, set) else value


@pytest.mark.parametrize("name", ALL)
def test_a_case_arrives_as_it_was_sent_and_is_the_same_each_time(ring, name):
    writer, reader = ring
    sent = cases.CASES[name]()
    writer.send(sent, 10)
    for got in (reader.recv(10), ringcast.unpack(ringcast.pack(sent)), cases.CASES[name]()):
        assert_same(parts(got), parts(sent))


def test_the_small_cases_have_the_sizes_that_engines_send():
    assert len(pickle.dumps(cases.metadata(), 5)) == 725
    assert 12_000 <= len(pickle.dumps(cases.decode_step(256), 5)) <= 12_500


@pytest.mark.parametrize("requests, new", [(1, 0), (64, 1), (256, 4)])
def test_a_decode_step_has_one_new_request_in_64(requests, new):
    step = cases.decode_step(requests)
    cached = step.scheduled_cached_reqs
    assert (len(step.scheduled_new_reqs), len(cached.req_ids)) == (new, requests - new)
    assert len(step.num_scheduled_tokens) == requests
    assert step.total_num_scheduled_tokens == new * cases.NEW_PROMPT + len(cached.req_ids)
    for each in (cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens):
        assert len(each) == len(cached.req_ids)


@pytest.mark.parametrize("name", [case for case in ALL if case.values[0] in cases.WITH_TENSORS])
def test_a_case_with_tensors_has_as_many_bytes_of_them_as_is_said(name):
    value = cases.CASES[name]()
    kind = torch.Tensor if name in NEEDS_TORCH else np.ndarray
    tensors = [item for item in value.values() if isinstance(item, kind)]
    assert len(tensors) == (1 if "features" in name else 6)
    assert cases.tensor_bytes(value) == sum(item.nbytes for item in tensors)
    assert cases.tensor_bytes(value) == 10 << 20 or "features" not in name
