# SPDX-License-Identifier: Apache-2.0
"""
examples/tp_model: the split model gives the results of one rank, notices when it does not, and ends
when a rank dies.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import needs
import pytest
from peers import WATCHDOG

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

pytestmark = pytest.mark.alike

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "tp_model"
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
tp_model = importlib.import_module("tp_model")
del sys.path[:2]
Links = tp_model.Links

TINY = "--layers 2 --hidden 32 --heads 4 --vocab 64 --batch 2 --seq 128 --tokens 4 --steps 6 --warmup 1".split()
WAYS = ["ringcast", "gloo"]


def options_of(arguments):
    options = tp_model.parser_of_options().parse_args([*TINY, *arguments.split()])
    assert tp_model.refuse(options) is None
    options.check = True
    return options


# ---- The results ---------------------------------------------------------------------------------


def ranks_that_run(options, ways):
    return tp_model.run_group(options, ways)


LAYOUTS = ["--tp 1", "--tp 2", "--tp 4", "--pp 2", "--pp 2 --micro-batches 1", "--tp 2 --pp 2"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_the_results_of_one_rank(ranks, layout):
    options = options_of(layout)
    ways = WAYS if options.tp * options.pp > 1 else WAYS[:1]
    found = ranks.run(options.tp * options.pp, ranks_that_run, options, ways)[0]
    for figures, way in zip(found, ways, strict=True):
        assert figures["difference"] < 1e-4
        assert figures["metadata"] == (way if figures["ranks"] > 1 else None)
        # Batches of 4 steps and of 2.
        assert [len(times) for times in figures["seconds"].values()] == [2, 4]
        shares, parallel, staged = figures["shares"], options.tp > 1, options.pp > 1
        split = {"all_reduce": parallel, "gather": parallel, "send_recv": staged}
        assert {kind: shares[kind] > 0 for kind in split} == split


def another_token(links, way, inputs):
    inputs = links.by_the_book(way, inputs)
    if links.place.rank == 1:
        inputs["input_ids"] = (inputs["input_ids"] + 1) % 64
    return inputs


FAULTS = {"metadata": another_token, "all_reduce": lambda links, summand: summand}


def ranks_with(name, options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Links, "by_the_book", getattr(Links, name), raising=False)
        patch.setattr(Links, name, FAULTS[name])
        try:
            tp_model.run_group(options, ["ringcast"])
        except SystemExit as error:
            return str(error)
    return None


@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_that_computes_something_else_is_found(ranks, name):
    text, *_ = ranks.run(2, ranks_with, name, options_of("--tp 2"))
    assert "batch 0, step " in text and "logits" in text


# ---- The program ---------------------------------------------------------------------------------


def run(*arguments, program=FOLDER / "tp_model.py", launcher=()):
    command = [sys.executable, *launcher, str(program), *TINY, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WATCHDOG, check=False
    )


def test_a_comparison_has_all_layouts_both_ways_and_figures_that_add_up():
    done = run("--compare", "--rounds", "1", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    split = [(tp, pp, way) for tp, pp in ((2, 1), (4, 1), (1, 2)) for way in WAYS]
    assert [(row["tp"], row["pp"], row["metadata"]) for row in rows] == [(1, 1, None), *split]
    for row in rows:
        assert row["rss_bytes"] > row["model_bytes"] > 0 and row["difference"] < 1e-4
        assert row["efficiency"] * row["ranks"] == pytest.approx(row["speedup"])
        assert row["speedup"] * rows[0]["tokens_per_s"] == pytest.approx(row["tokens_per_s"])
        assert (row["rating"] is None) == (row["ranks"] == 1)
    sizes = {(row["tp"], row["pp"]): row["model_bytes"] for row in rows}
    assert sizes[1, 1] > sizes[2, 1] > sizes[4, 1] and sizes[1, 1] > sizes[1, 2]


def test_the_text_has_both_tables_and_a_run_can_be_profiled(tmp_path):
    done = run("--tp", "2", "--profile", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| TP 2, ringcast") == 2
    assert {"performance_report.md", "comm_analysis.json"} <= set(os.listdir(tmp_path))


REFUSED = "--tp 3;--seq 127;--steps 0;--hidden 20;--vocab 63;--deadline 0;--micro-batches 2;".split(
    ";"
)
REFUSED[-1:] = ["--layers 1 --pp 2", "--batch 2 --pp 2 --micro-batches 3", "--compare --tp 2"]


@pytest.mark.parametrize("given", REFUSED)
def test_options_that_do_not_fit_are_refused(given, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tp_model.py", *TINY, *given.split()])
    with pytest.raises(SystemExit) as ended:
        tp_model.main()
    assert ended.value.code == 2 and given.split()[0] in capsys.readouterr().err


# The ranks import the program that they were started by.
DYING = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import tp_model, ranks
ranks.LAST_WORDS = 100.0
step = tp_model.Runner.step
def dying(runner, number, turn, tokens):
    if (runner.place.rank, number) == (1, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(runner, number, turn, tokens)
tp_model.Runner.step = dying
if __name__ == "__main__":
    tp_model.main()
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_dies_ends_the_run_and_is_named(tmp_path, way):
    program = tmp_path / "dying.py"
    program.write_text(DYING.format(folder=str(FOLDER)))
    done = run("--tp", "2", "--metadata", way, program=program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rank 1: the process died (SIGKILL)\n"), done.stderr


def test_torchrun_starts_the_ranks_too():
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = run("--pp", "2", "--format", "json", launcher=launcher)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["pp"], row["metadata"]) == (2, "ringcast") and row["difference"] < 1e-4
