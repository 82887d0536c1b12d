# SPDX-License-Identifier: Apache-2.0
"""The pages and pictures of `make peers`, the claims, what two runs differ in, and runs of single ways. The rows are
made up."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest
from peers_rows import CALL, FAR, FOLDER, IN_C, LINES, META, NEAR, OBJECTS, ROOT, headline, loaded, pair, row

import report_claims
import report_pictures
import report_tables
import report_wins

pytestmark = pytest.mark.alike

spec = importlib.util.spec_from_file_location("peers_report", FOLDER / "report.py")
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)

# ---- Claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times, holds", [((100, 103), True), ((100, 120), False)])
def test_a_claim_holds_or_not(times, holds):
    rows = [
        row(peer, "records-10000", **{**CALL, "read_us": time})
        for peer, time in zip(("zmq-push", "mpi4py-bcast"), times)
    ]
    assert report_claims.judged(loaded(rows), "within-5")[0] is holds
    assert report_claims.block(loaded(rows), "within-5").startswith("**Holds.**" if holds else "**Does not hold.**")


@pytest.mark.parametrize("share, holds", [(1.1, True), (0.8, False)])
def test_a_claim_over_several_cells_is_of_the_worst(share, holds):
    rows = [row("mpi4py-bcast", name, **OBJECTS, p50_us=10) for name in ("records-10", "records-100")]
    rows += [row("mpi4py-pkl5", "records-10", **OBJECTS, p50_us=11)]
    rows += [row("mpi4py-pkl5", "records-100", **OBJECTS, p50_us=10 * share)]
    assert report_claims.judged(loaded(rows), "pkl5-dict")[0] is holds


@pytest.mark.parametrize("time, holds", [(9000, True), (700, False)])
def test_a_claim_of_dear_processes_holds_where_they_are_dear(time, holds):
    rows = [row("ringcast", "features", reading="typed", p50_us=time)]
    assert report_claims.judged(loaded(rows), "ipc-cost")[0] is holds


@pytest.mark.parametrize("name", list(report_claims.CLAIMS))
def test_a_claim_without_rows_is_not_tested_and_says_why(name):
    assert report_claims.block([], name).startswith("**Not tested.** ")


def test_a_claim_that_is_not_tested_has_the_reason_of_the_row():
    rows = [row("nccl-object", "all", scenario="all", status="there is no GPU here")]
    assert report_claims.block(rows, "nccl-400") == "**Not tested.** `nccl-object`: there is no GPU here."


# ---- Pages -----------------------------------------------------------------------------------------------------------

PAGES = ["docs/peers.md", "docs/claims.md", "README.md"]


def filled(tmp_path, rows, meta):
    (tmp_path / "docs").mkdir(exist_ok=True)
    for name in PAGES:
        if not (tmp_path / name).exists():
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    report.write_pages({"meta": meta, "rows": rows}, tmp_path)
    return {name: (tmp_path / name).read_text(encoding="utf-8") for name in PAGES}


def without_blocks(text):
    return re.sub(r"<!-- measured: [\w -]+ -->.*?<!-- end -->", "", text, flags=re.S)


def block(text, name):
    return re.search(rf"<!-- measured: {name} -->\n(.*?)\n<!-- end -->", text, re.S)[1]


def some_rows():
    rows = headline("c-ringcast", [50]) + headline("c-other", [60])
    rows += pair(2, 3, "bytes-64Ki", **IN_C) + pair(3, 9, "metadata", **OBJECTS)
    rows += pair(9, 30, "scheduler-64", **OBJECTS) + pair(1, 2, "records-10", "write_us", **CALL)
    return rows


def test_blocks_are_filled_and_nothing_else_changes(tmp_path):
    pages = filled(tmp_path, some_rows(), META)
    for name, text in pages.items():
        assert without_blocks(text) == without_blocks((ROOT / name).read_text(encoding="utf-8"))
    assert "2 CPUs of A CPU" in block(pages["docs/peers.md"], "machine")
    assert "| 64 B one way, C | 50.0 ns (`c-ringcast`) | 60.0 ns (`c-other`) | 0.83 |" in block(
        pages["docs/peers.md"], "short"
    )
    assert "| yes |" in block(pages["docs/peers.md"], "goals")
    assert block(pages["docs/peers.md"], "gpu") == report.NONE  # a part without rows in a measured page
    again = filled(tmp_path, some_rows(), META)
    assert again == pages


def test_the_readme_has_the_first_picture_and_five_rows(tmp_path):
    text = block(filled(tmp_path, some_rows(), META)["README.md"], "peers")
    assert "(docs/peers-bytes.svg)" in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2 + 4
    assert "| metadata dict one way, Python | 3.00 us (`ringcast`) | 9.00 us (`zmq-push`) | 0.33 |" in text
    assert "medians" in text and "](docs/peers.md#the-ways)" in text
    assert "vLLM's own queue" not in text and text.splitlines()[-1].startswith("Measured: ")


def test_the_readme_says_what_vllms_queue_takes_for_the_same_objects(tmp_path):
    rows = some_rows() + [row("vllm-queue", "metadata", p50_us=15.4, **OBJECTS)]
    text = block(filled(tmp_path, rows, META)["README.md"], "peers")
    assert "vLLM's own queue takes 15.4 us for the metadata dict.\n" in text


def test_without_rows_the_pages_say_so(tmp_path):
    pages = filled(tmp_path, [], {})
    for name in PAGES[0], PAGES[2]:
        for text in re.findall(r"<!-- measured: [\w-]+ -->\n(.*?)\n<!-- end -->", pages[name], re.S):
            assert text == report.NOT
    assert "not measured" in report.text([])


def test_a_table_has_the_chosen_messages_and_says_where_the_others_are():
    rows = pair(1, 2, "bytes-64") + pair(3, 4, "bytes-16")
    text = report.detail_blocks(loaded(rows))["bytes-python"]
    assert text.startswith("| way | 64 B |\n") and text.endswith(
        "\n\nFurther messages are in `build/peers/results.csv`."
    )
    assert "results.csv" not in report.detail_blocks(loaded(rows[:2]))["bytes-python"]


def test_objects_pickled_beforehand_are_marked_and_stand_apart():
    rows = pair(1, 2, "metadata") + pair(3, 9, "metadata", **OBJECTS)
    blocks = report.detail_blocks(loaded(rows))
    assert "| `zmq-push`, pickled beforehand | 2.00 us |" in blocks["beforehand"]
    assert "beforehand" not in blocks["objects"] and "| `zmq-push` | 9.00 us |" in blocks["objects"]
    assert blocks["bytes-python"].startswith("Further")  # no column of bytes


def test_pauses_of_5_and_25_ms_stand_side_by_side():
    cell = {"seconds": 10.0, "cpu_reader_s": 0.0, "cpu_writer_s": 0.1, **OBJECTS}
    rows = pair(10, 20, "metadata", scenario="every5", **cell) + pair(30, 40, "metadata", scenario="every25", **cell)
    text = report_tables.pauses(loaded(rows), "python")
    assert text.splitlines()[0] == "| way | every 5 ms: p50 | every 5 ms: CPU | every 25 ms: p50 | every 25 ms: CPU |"
    assert "| `zmq-push` | 20.0 us | 1.00 % | 40.0 us | 1.00 % |" in text and not report_tables.pauses(rows, "c")


def test_after_pauses_a_time_below_the_bare_line_is_no_win():
    cell = {**IN_C, "scenario": "every25"}
    rows = pair(9, 2, "bytes-64", peer="c-a", **cell) + [row("c-b", "bytes-64", **cell, p50_us=4)]
    rows += [row("c-cache-line", "bytes-64", **cell, floor=True, p50_us=3)]
    assert [win.row["peer"] for win in report_wins.wins(loaded(rows))] == ["c-b"]
    assert "Below the bare line of the same scenario: `c-a`." in report_tables.pauses(loaded(rows), "c")


def test_the_summary_has_every_claim_of_the_page_and_counts_them(tmp_path):
    page = filled(tmp_path, some_rows(), META)["docs/claims.md"]
    counted, _, _, _, *lines = block(page, "claims").splitlines()
    assert len(lines) == page.count("\n### ") >= 30
    verdicts = [re.search(r"\| (holds|holds in part|does not hold|not tested) \|", line)[1] for line in lines]
    assert counted.startswith(f"Of {len(lines)} claims: ")
    counts = re.findall(r"(holds in part|does not hold|not tested|holds): (\d+)", counted)
    assert counts and all(verdicts.count(name) == int(number) for name, number in counts)
    assert sum(int(number) for _, number in counts) == len(lines)
    assert any(line.endswith("| not tested |  |") for line in lines)
    rows = [row("gloo-object", "metadata", **OBJECTS, p50_us=3320)]
    page = filled(tmp_path, rows, META)["docs/claims.md"]
    assert "(#300-us-by-gloo) | does not hold | `gloo-object` 3.32 ms |" in block(page, "claims")


def test_the_claims_that_rows_test_are_printed():
    rows = [row(way, "records-10000", **CALL, read_us=time) for way, time in (("zmq-push", 9), ("lmdb", 3))]
    text = report.text(loaded(rows))
    assert "zmq-first: does not hold: `lmdb` 3.00 us, `zmq-push` 9.00 us" in text
    assert re.search("^not tested: .*ray", text, re.M)


@pytest.mark.parametrize("reading, holds", [("objects", True), ("bytes", None)])
def test_bytes_made_beforehand_do_not_stand_for_the_broadcast_of_an_object(reading, holds):
    rows = [row("mpi4py-bcast", "records-10000", reading=reading, p50_us=100)]
    rows += [row("mpi4py-Bcast", "records-10000-array", **OBJECTS, p50_us=10)]
    assert report_claims.judged(loaded(rows), "upper-bcast")[0] is holds


def test_a_block_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="0 places for the block 'machine'"):
        report.fill("a page", {"machine": "figures"})


# ---- Pictures, as data -----------------------------------------------------------------------------------------------


def test_the_picture_of_bytes_has_the_best_way_of_each_family():
    rows = pair(2, 30, "bytes-64", family="pyzmq") + pair(9, 50, "bytes-4Mi", family="pyzmq")
    rows += [row("zmq-pub", name, family="pyzmq", p50_us=90) for name in ("bytes-64", "bytes-4Mi")]
    rows += [
        row("memcpy", "bytes-64", p50_us=1, floor=True, lossless=False),
        row("slot", "bytes-64", p50_us=5, lossless=False),
    ]
    rows += [row("ringcast", "bytes-64", reading="in-place", p50_us=1)]
    lines = report_pictures.bytes_lines(loaded(rows), "python")
    assert lines["ringcast"] == ([(64, 2), (4 << 20, 9)], "ours")
    assert lines["zmq-push"] == ([(64, 30), (4 << 20, 50)], "peer") and "zmq-pub" not in lines
    assert lines["memcpy"][1] == "floor" and lines["ringcast, in place"][1] == "in-place" and "slot (lossy)" in lines


def test_the_picture_has_rows_of_the_state_that_most_rows_have():
    rows = pair(2, 3, "bytes-64", **IN_C, **NEAR) + [row("c-far", "bytes-64", **IN_C, **FAR, p50_us=9)]
    assert sorted(report_pictures.bytes_lines(loaded(rows), "c")) == ["c-ringcast", "zmq-push"]


def test_the_picture_of_objects_is_relative_to_the_best_pickle():
    rows = [
        row("ringcast", "metadata", **{**CALL, "reading": "typed", "write_us": 1, "read_us": 2}),
        row("ringcast", "metadata", **CALL, write_us=3, read_us=3),
        row("pipe", "metadata", **CALL, write_us=4, read_us=6),
        row("mpi", "metadata", **CALL, write_us=11, read_us=12, collective=True),  # the read has the write in it
    ]
    payloads, bars = report_pictures.object_bars(loaded(rows))
    assert payloads == ["metadata"]
    assert bars == {"ringcast": {"metadata": 0.3}, "pipe": {"metadata": 1.0}, "mpi": {"metadata": 1.2}}


def test_the_picture_of_cpu_has_a_point_for_each_way():
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.1, "cpu_writer_s": 0.1}
    rows = [row("ringcast", "metadata", **cell, reading="typed", p50_us=60), row("pipe", "metadata", **cell, p50_us=90)]
    points = report_pictures.cpu_points(loaded(rows))
    assert points == [("ringcast", 60, pytest.approx(2.0), True), ("pipe", 90, pytest.approx(2.0), False)]


def test_labels_are_moved_apart_in_order():
    places = report_pictures.apart([0.5, 0.51, 0.1, 0.52], 0.1)
    assert places[2] == 0.1 and places == pytest.approx([0.41, 0.51, 0.1, 0.61])


# ---- Two runs, and single ways ---------------------------------------------------------------------------------------


def compared(tmp_path, old, new, *more):
    for name, rows in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"meta": META, "rows": rows}))
    command = [
        sys.executable,
        str(FOLDER / "compare.py"),
        *more,
        str(tmp_path / "old.json"),
        str(tmp_path / "new.json"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_row_whose_line_moved_is_not_called_slower(tmp_path):
    old = [row(name, "bytes-64", **IN_C, **NEAR, p50_us=1) for name in ("c-a", "c-b")]
    new = [row("c-a", "bytes-64", **IN_C, **FAR, p50_us=5), row("c-b", "bytes-64", **IN_C, **NEAR, p50_us=5)]
    text = compared(tmp_path, old, new)
    assert "c-a" not in text and "1 rows in C not compared" in text
    (slower,) = [line for line in text.splitlines() if "slower" in line]
    assert slower.startswith("5.00 x slower") and "c-b" in slower
    assert "c-a bytes-64 one-way 2 processes bytes: not compared: the cache line was near, is far" in compared(
        tmp_path, old, new, "--all"
    )


def test_two_far_rows_are_compared_and_changed_ones_are_not(tmp_path):
    old, new = ([row("c-a", "bytes-64", **IN_C, **FAR, p50_us=time)] for time in (1, 5))
    assert "5.00 x slower" in compared(tmp_path, old + [row("c-n", "bytes-16", **IN_C, **NEAR)], new)
    old, new = ([row("c-a", "bytes-64", **IN_C, **LINES["C"], p50_us=time)] for time in (1, 5))
    assert "slower" not in compared(tmp_path, old, new)


@pytest.mark.parametrize("words", [["--only", "c-a", "c-b"], ["--only", "c-a", "--only", "c-b"]])
def test_only_takes_several_ways_and_runs_the_plan_of_each(tmp_path, words):
    program = tmp_path / "native"
    # A row for each call: the plan's is of the way that was asked for, the headline's are of all ways.
    program.write_text(
        """#!/bin/sh
line='{"peer": "%s", "scenario": "%s", "status": "ok", "payload": "bytes-64", "processes": 2, "reading": "bytes"}\\n'
case "$*" in
  "--plan quick --way "*) printf "$line" "$4" plan ;;
  --headline) printf "$line$line" c-a x c-z x ;;
  *) exit 1 ;;
esac
"""
    )
    program.chmod(0o755)
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--native", str(program), "--out", str(tmp_path)]
    subprocess.run(command + words, capture_output=True, check=True)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(made["peer"], made["scenario"], made["status"]) for made in rows] == [
        ("c-a", "plan", "ok"),
        ("c-b", "plan", "ok"),
        ("c-a", "headline", "ok"),
    ]
