# SPDX-License-Identifier: Apache-2.0
"""The split model gives the results of one rank, notices when it does not, and ends when a rank dies."""

import contextlib
import csv
import importlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import subprocess
import sys
import time

import needs
import pytest
from peers import WATCHDOG

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist

pytestmark = pytest.mark.alike

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
tp_model, tp_model_compare, tp_model_run, tp_model_net = (
    importlib.import_module(name) for name in ("tp_model", "tp_model_compare", "tp_model_run", "tp_model_net")
)
sys.path.remove(str(EXAMPLES))
ranks_of_examples = sys.modules["ranks"]
Call, Links = tp_model_net.Call, tp_model_net.Links

TINY = "--layers 2 --hidden 32 --heads 4 --vocab 64 --batch 2 --seq 128 --tokens 4 --steps 6 --warmup 1".split()
WAYS = ["ringcast", "gloo"]


def options_of(*arguments):
    options = tp_model.parser_of_options().parse_args([*TINY, *arguments])
    assert tp_model.refuse(options) is None
    options.check = True
    options.parts = tp_model.parts_of(options, 2 if options.compare else options.pp)
    return options


# ---- The results -----------------------------------------------------------------------------------------------------


def ranks_that_run(options, ways):
    return tp_model_run.run_group(options, ways)


def run_here(ranks, options, ways=WAYS):
    return ranks.run(options.tp * options.pp, ranks_that_run, options, ways)[0]


LAYOUTS = ["--tp 1", "--tp 2", "--tp 4", "--pp 2", "--pp 2 --micro-batches 1", "--tp 2 --pp 2"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_the_results_of_one_rank(ranks, layout):
    options = options_of(*layout.split())
    ways = WAYS if options.tp * options.pp > 1 else WAYS[:1]
    for figures, way in zip(run_here(ranks, options, ways), ways, strict=True):
        assert figures["difference"] < 1e-4
        assert figures["metadata"] == (way if figures["ranks"] > 1 else None)
        assert [len(times) for times in figures["seconds"].values()] == [2, 4]  # batches of 4 steps and of 2
        shares = figures["shares"]
        split = {"all_reduce": options.tp > 1, "gather": options.tp > 1, "send_recv": options.pp > 1}
        assert {kind: shares[kind] > 0 for kind in split} == split
        assert 0 <= shares.pop("waiting") <= sum(shares.values())


def another_token(links, way, inputs):
    inputs = links.by_the_book(way, inputs)
    if links.place.rank == 1:
        inputs["input_ids"] = (inputs["input_ids"] + 1) % 64
    return inputs


def another_position(links, way, inputs):
    inputs = links.by_the_book(way, inputs)
    if links.place.rank == 1:
        inputs["positions"] = inputs["positions"] + torch.arange(inputs["positions"].shape[1])
    return inputs


def the_last_steps_inputs(links, way, inputs):
    got = links.by_the_book(way, inputs)
    stale, links.kept = getattr(links, "kept", got), got
    same = links.place.rank == 0 or stale["input_ids"].shape != got["input_ids"].shape
    return got if same else {**got, "input_ids": stale["input_ids"]}


def a_sum_without_others(links, summand):
    return summand


FAULTS = {
    "another token": ("metadata", another_token),
    "another position": ("metadata", another_position),
    "the last step's tokens": ("metadata", the_last_steps_inputs),
    "a sum without the others": ("all_reduce", a_sum_without_others),
}


def ranks_with(fault, options):
    name, function = FAULTS[fault]
    Links.by_the_book = getattr(Links, name)
    setattr(Links, name, function)
    try:
        tp_model_run.run_group(options, ["ringcast"])
        return None
    except SystemExit as error:
        return str(error)
    finally:
        setattr(Links, name, Links.by_the_book)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_computes_something_else_is_found(ranks, fault):
    text, _ = ranks.run(2, ranks_with, fault, options_of("--tp", "2"))
    assert text.startswith("not the results of TP 1: TP 2, PP 1, metadata by ringcast: batch 0, step ")
    assert "the logits of sequence" in text


def test_other_tokens_are_found_though_the_logits_are_equal():
    logits, tokens = torch.tensor([[0.0, 1.0, 0.9999]]), torch.tensor([0])
    with pytest.raises(SystemExit, match="here: other tokens"):
        tp_model_run.difference(logits, logits, tokens, "here")
    assert tp_model_run.difference(logits, logits, tokens + 2, "here") == 0  # as good as the greatest


# ---- The figures -----------------------------------------------------------------------------------------------------


def test_waiting_is_told_from_working():
    pair = (0, 1)
    first = [Call("all_reduce", pair, 0, 90), Call("metadata", pair, 100, 130), Call("send", pair, 200, 210)]
    first += [Call("metadata", pair, 300, 330), Call("send", pair, 400, 410)]
    second = [Call("all_reduce", pair, 70, 80), Call("metadata", pair, 90, 150), Call("recv", pair, 150, 260)]
    second += [Call("metadata", pair, 320, 325), Call("recv", pair, 405, 420)]  # later than their sources
    waits, costs = tp_model_run.waits_of([{"calls": first}, {"calls": second}])
    assert waits == [[70, 0, 0, 0, 0], [0, 10, 50, 0, 0]]
    assert costs == {1: 0.05, 3: 0.03}


def test_both_ways_get_the_same_batches_in_turns():
    turns = list(tp_model_run.schedule(options_of("--tp", "2"), WAYS))
    warm_up = [(way, False, 0, 0) for way in WAYS]
    batches = [(WAYS[0], 0, 4), (WAYS[1], 0, 4), (WAYS[1], 1, 2), (WAYS[0], 1, 2)]
    assert turns == [*warm_up, *((way, True, batch, index) for way, batch, steps in batches for index in range(steps))]


@pytest.mark.parametrize(
    "pp, efficiency, rating",
    [
        (1, 0.76, "excellent"),
        (1, 0.75, "good"),
        (1, 0.50, "good"),
        (1, 0.49, "to be improved"),
        (2, 0.61, "excellent"),
        (2, 0.60, "good"),
        (2, 0.40, "good"),
        (2, 0.39, "to be improved"),
    ],
)
def test_the_rating_goes_by_the_efficiency(pp, efficiency, rating):
    row = {"tokens_per_s": 2 * efficiency * 100, "ranks": 2, "pp": pp}
    tp_model_compare.rate(row, {"tokens_per_s": 100})
    assert (row["rating"], row["speedup"]) == (rating, 2 * efficiency)


def ranks_that_burn(options):
    tp_model_compare.STEP_MS, tp_model_compare.SHARE_STEPS, tp_model_compare.SHARE_WARMUP = (1,), 2, 1
    place = tp_model_net.Place(dist.get_world_size(), 1, dist.get_rank())
    return tp_model_compare.burn_group(options, Links(place))


@pytest.fixture(scope="module")
def comparison(ranks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tp_model_compare, "STEP_MS", (1,))
        patch.setattr(tp_model_compare, "cpus", lambda: 2)
        patch.setattr(tp_model_compare, "run", lambda options, ways: run_here(ranks, options, ways))
        burn = lambda body, given, deadline: ranks.run(len(given), ranks_that_burn, given[0][0])  # noqa: E731
        patch.setattr(tp_model_compare, "run_ranks", burn)
        return tp_model_compare.compare(options_of("--compare", "--rounds", "2"))


def shown(summary, format):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        tp_model_compare.show(summary, format)
    return text.getvalue()


def test_a_comparison_has_all_layouts_and_both_ways(comparison):
    summary = json.loads(shown(comparison, "json"))
    rows = [(row["tp"], row["pp"], row["metadata"]) for row in summary["rows"]]
    split = [(tp, pp, way) for tp, pp in ((2, 1), (4, 1), (1, 2)) for way in WAYS]
    assert rows == [(1, 1, None), *split]
    for row in summary["rows"]:
        assert row["tokens_per_s"] > 0 and row["rss_bytes"] > row["model_bytes"] > 0
        assert row["efficiency"] * row["ranks"] == pytest.approx(row["speedup"])
        assert row["difference"] < 1e-4
        assert row["note"] == ("4 ranks on 2 CPUs" if row["ranks"] == 4 else "")
    assert summary["rows"][0]["speedup"] == 1 and summary["rows"][0]["rating"] is None
    assert summary["threads_per_rank"] == 1 and summary["model"]["parts"] == 2
    assert [(row["ranks"], row["metadata"]) for row in summary["metadata_share"]] == [
        (ranks, way) for ranks in (2, 4) for way in WAYS
    ]
    for row in summary["metadata_share"]:
        assert row["share"] == pytest.approx(row["metadata_us"] / (row["metadata_us"] + 1000))


def test_a_split_model_takes_less_memory_on_each_rank(comparison):
    sizes = {(row["tp"], row["pp"]): row["model_bytes"] for row in comparison["rows"]}
    assert sizes[1, 1] > sizes[2, 1] > sizes[4, 1] and sizes[1, 1] > sizes[1, 2]


def test_the_tables_are_for_people_and_for_programs(comparison):
    text, page = shown(comparison, "text"), shown(comparison, "markdown")
    assert text.count("4 ranks on 2 CPUs") == page.count("4 ranks on 2 CPUs") == 3  # two layouts, and one share
    assert "a thread for each rank" in text and "the logits and tokens of TP 1 in all layouts" in text
    lines = [line for line in page.splitlines() if line.startswith("|")]
    tables = [line.count("|") for line in lines]
    assert tables == [10] * 9 + [12] * 9 + [8] * 4
    layouts, shares = shown(comparison, "csv").split("\n\n")
    assert [row["metadata"] for row in csv.DictReader(io.StringIO(layouts))] == ["", *WAYS * 3]
    assert [row["ranks"] for row in csv.DictReader(io.StringIO(shares))] == ["2", "2", "4", "4"]


# ---- The options -----------------------------------------------------------------------------------------------------

REFUSED = {
    "--tp 3": "invalid choice: 3",
    "--seq 127": "--seq takes a whole number from 128 to 8192, not 127",
    "--steps 0": "--steps takes a whole number from 1 to 1000000, not 0",
    "--hidden 20": "--hidden 20 must be a multiple of twice the 4 heads",
    "--tp 4 --heads 2": "--heads 2 must be a multiple of the 4 ranks",
    "--vocab 63": "--vocab 63 must be a multiple of the 4 heads",
    "--pp 2 --layers 1": "--layers 1 can't be shared by 2 ranks: give at least 2",
    "--pp 2 --micro-batches 3": "--batch 2 can't be divided into 3 equal micro-batches",
    "--micro-batches 2": "--micro-batches goes with --pp 2 or --compare",
    "--compare --tp 2": "--compare chooses --tp and --pp itself",
    "--compare --profile here": "--compare chooses --tp and --pp itself, and can't be profiled",
    "--deadline 0": "--rounds and --deadline take more than 0",
}


@pytest.mark.parametrize("given", REFUSED)
def test_options_that_do_not_fit_are_refused(given, capsys):
    with pytest.raises(SystemExit) as ended:
        tp_model.main([*TINY, *given.split()])
    assert ended.value.code == 2 and REFUSED[given] in capsys.readouterr().err


def test_torchrun_must_start_as_many_ranks(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for given, text in (["--tp", "2"], "started 3 ranks, but --tp 2 --pp 1 are 2"), (["--compare"], "without torchrun"):
        with pytest.raises(SystemExit):
            tp_model.main([*TINY, *given])
        assert text in capsys.readouterr().err


def test_a_profile_needs_the_module(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ringcast.profile", None)
    with pytest.raises(SystemExit) as ended:
        tp_model.main([*TINY, "--profile", "here"])
    assert ended.value.code == 2 and "--profile needs ringcast.profile, which is not in" in capsys.readouterr().err


def test_ranks_that_have_to_take_turns_are_told(monkeypatch, capsys):
    monkeypatch.setattr(tp_model_run, "cpus", lambda: 2)
    tp_model_run.warn_of_few_cpus(2)
    assert capsys.readouterr().err == ""
    tp_model_run.warn_of_few_cpus(4)
    assert capsys.readouterr().err.startswith("note: 4 ranks on 2 CPUs: ")


# ---- The program -----------------------------------------------------------------------------------------------------


def run_model(*arguments, program=EXAMPLES / "tp_model.py", launcher=(), **environment):
    command = [sys.executable, *launcher, str(program), *TINY, *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WATCHDOG, check=False)


# The ranks import the program that they were started by.
DYING = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import ranks, tp_model, tp_model_run
ranks.LAST_WORDS = 100.0
step = tp_model_run.Runner.step
def dying(runner, number, turn, tokens):
    if (runner.place.rank, number) == (1, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(runner, number, turn, tokens)
tp_model_run.Runner.step = dying
if __name__ == "__main__":
    tp_model.main()
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_dies_ends_the_run_and_is_named(tmp_path, way):
    program = tmp_path / "dying.py"
    program.write_text(DYING.format(folder=str(EXAMPLES)))
    done = run_model("--tp", "2", "--metadata", way, program=program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rank 1: the process died (SIGKILL)\n"), done.stderr


class Killed:
    exitcode = -9

    def join(self, timeout):
        pass


def test_a_death_is_told_before_the_errors_that_it_causes(monkeypatch):
    """Even if the other rank's error comes first."""
    (other, sends), (killed, end) = multiprocessing.Pipe(), multiprocessing.Pipe()
    sends.send((False, (0.0, "gloo's error")))
    end.close()
    wait = multiprocessing.connection.wait
    monkeypatch.setattr(multiprocessing.connection, "wait", lambda answers, _: wait(answers, 0)[:1])
    with pytest.raises(SystemExit, match=r"^rank 1: the process died \(SIGKILL\)\nrank 0: gloo's error$"):
        ranks_of_examples._collect([other, killed], [None, Killed()], time.monotonic() + WATCHDOG)
    for connection in other, killed, sends:
        connection.close()


LEAVING = """
import atexit, pathlib
def leave(rank, file, store):
    atexit.register(lambda: pathlib.Path(file).write_text(str(sum(range(3_000_000)))))
"""


def test_the_ranks_have_time_to_write_what_is_written_at_exit(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text(LEAVING)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), str(tmp_path), *sys.path])
    file = tmp_path / "file"
    ranks_of_examples.run_ranks(importlib.import_module("leaving").leave, [(str(file),)], WATCHDOG)
    assert file.read_text() == str(sum(range(3_000_000)))


def test_torchrun_starts_the_ranks_too():
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = run_model("--pp", "2", "--format", "json", launcher=launcher, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["pp"], row["metadata"]) == (2, "ringcast") and 0 < row["difference"] < 1e-4


FILES = "detailed_timings.csv comm_analysis.json analysis_report.json comprehensive_report.json performance_report.md"


def test_a_run_can_be_profiled(tmp_path):
    done = run_model("--tp", "2", "--profile", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "the logits and tokens of TP 1" in done.stdout
    assert set(FILES.split()) <= {file.name for file in tmp_path.rglob("*")}


def test_it_says_what_it_lacks(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = run_model(PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tp_model.py needs torch") and done.stderr.endswith("-m pip install torch\n")
