# SPDX-License-Identifier: Apache-2.0
"""What `make peers` says of its rows: goals, cells that a peer wins, what is missing, claims, pages and pictures. The
rows are made up."""

import importlib.util
import pathlib
import re
import sys

import pytest

pytestmark = pytest.mark.alike

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench" / "peers"
sys.path.append(str(FOLDER))

import report_claims  # noqa: E402
import report_pictures  # noqa: E402
import report_rows  # noqa: E402
import report_wins  # noqa: E402

spec = importlib.util.spec_from_file_location("peers_report", FOLDER / "report.py")
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)

GOOD = {
    "status": "ok",
    "version": "1",
    "language": "python",
    "scenario": "one-way",
    "processes": 2,
    "lossless": True,
    "collective": False,
    "copying": True,
    "floor": False,
    "serialiser": "pickle5",
    "reading": "bytes",
    "oversubscribed": False,
    "note": "",
}
BYTES = {"bytes-16": 16, "bytes-64": 64, "bytes-64Ki": 65536, "bytes-4Mi": 4 << 20}
META = {"date": "2026-11-25T10:00:00Z", "commit": "0123456789abcdef", "cpu": "A CPU", "cpus": 2, "kernel": "6.18"}


def row(peer, payload, **other):
    family = other.pop("family", peer)
    family = "ringcast" if "ringcast" in peer else family
    return {**GOOD, "peer": peer, "family": family, "payload": payload, "bytes": BYTES.get(payload), **other}


def pair(mine, theirs, payload, figure="p50_us", peer="zmq-push", **other):
    """A row of ringcast and one of a peer in the same cell."""
    name = "c-ringcast" if other.get("language") == "c" else "ringcast"
    kind = {"reading": "typed"} if other.get("reading") == "objects" else {}
    return [row(name, payload, **{**other, figure: mine, **kind}), row(peer, payload, **{**other, figure: theirs})]


def headline(peer, times, lines=None, **other):
    """A row for each round; `lines`: the states of the rounds' lines, N, F or C (changed)."""
    cell = {"language": "c", "scenario": "headline", **other}
    found = [row(peer, "bytes-64", **cell, round=at, half_round_trip_ns=time) for at, time in enumerate(times, 1)]
    return [{**made, **LINES[state]} for made, state in zip(found, lines)] if lines else found


NEAR, FAR = {"line_ns": 25, "line_after_ns": 30}, {"line_ns": 170, "line_after_ns": 180}
LINES = {"N": NEAR, "F": FAR, "C": {"line_ns": 25, "line_after_ns": 180}}


def loaded(rows):
    return report_rows.load({"rows": rows})


def verdict(rows, start):
    (found,) = [goal for goal in report.goals(loaded(rows)) if goal.name.startswith(start)]
    return found


IN_C = {"language": "c"}
OBJECTS = {"reading": "objects"}
CALL = {"scenario": "call", **OBJECTS}
COPYING, ZERO_COPY = {**IN_C, "copying": True}, {**IN_C, "copying": False}
GOALS = [
    ("64 KiB one way, C, best zero-copy", "bytes-64Ki", "p50_us", ZERO_COPY, 1.0),
    ("64 KiB one way, C, best copying", "bytes-64Ki", "p50_us", COPYING, 0.5),
    ("64 KiB one way, Python, best copying", "bytes-64Ki", "p50_us", {"copying": True}, 0.5),
    ("4 MiB in place, C", "bytes-4Mi", "p50_us", {**IN_C, "scenario": "in-place", "reading": "in-place"}, 1.1),
    ("4 MiB in place, Python", "bytes-4Mi", "p50_us", {"reading": "in-place"}, 1.1),
    ("records-10 read", "records-10", "read_us", CALL, 0.8),
    ("records-1000 read", "records-1000", "read_us", CALL, 0.8),
    ("records-10000 read", "records-10000", "read_us", CALL, 0.6),
    ("records-100 written", "records-100", "write_us", CALL, 0.5),
    ("metadata one way", "metadata", "p50_us", OBJECTS, 1.0),
    ("scheduler-256 one way", "scheduler-256", "p50_us", OBJECTS, 1.0),
]


@pytest.mark.parametrize("start, payload, figure, cell, most", GOALS, ids=[goal[0] for goal in GOALS])
@pytest.mark.parametrize("times, good", [(0.99, True), (1.01, False)])
def test_a_goal_is_reached_up_to_its_ratio_and_not_beyond(start, payload, figure, cell, most, times, good):
    found = verdict(pair(100 * most * times, 100, payload, figure, **cell), start)
    assert found.good is good
    assert found.text.endswith("yes" if good else "NO") and "`zmq-push`" in found.text


def test_the_first_goal_is_of_the_medians_of_the_rounds():
    rows = headline("c-ringcast", [50, 52, 400]) + headline("c-other", [51, 50, 49])
    assert verdict(rows, "64 B one way").good is True and "52.0 ns" in verdict(rows, "64 B one way").text
    assert (
        verdict(headline("c-ringcast", [60, 60, 40]) + headline("c-other", [50, 50, 50]), "64 B one way").good is False
    )


def test_lossy_ways_and_floors_do_not_count_and_threads_are_shown_beside():
    rows = headline("c-ringcast", [50]) + headline("c-other", [60])
    rows += headline("c-lossy", [10], lossless=False) + headline("c-line", [5], floor=True)
    rows += headline("c-queue", [20], note="threads of one process, one reader")
    assert verdict(rows, "64 B one way").good is True and "`c-other`" in verdict(rows, "64 B one way").text
    beside = verdict(rows, "in one process")
    assert beside.good is None and "`c-queue` 20.0 ns: 2.50" in beside.text


def test_a_peer_without_pickle_is_no_rival_in_the_goals_of_records():
    rows = pair(5, 10, "records-10", "read_us", **CALL) + [
        row("own", "records-10", **{**CALL, "read_us": 1, "serialiser": "own"})
    ]
    assert verdict(rows, "records-10 read").good is True


@pytest.mark.parametrize("p50, good", [(100, False), (300, True)])
def test_cpu_is_compared_with_ways_within_twice_the_time(p50, good):
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = [
        row("ringcast", "metadata", **{**cell, "reading": "typed", "p50_us": 60, "cpu_writer_s": 0.2}),
        row("pipe", "metadata", **cell, p50_us=p50, cpu_writer_s=0.1),
        row("spinning", "metadata", **cell, p50_us=20, cpu_writer_s=10),
    ]
    assert verdict(rows, "CPU every 25 ms, python").good is good


def test_the_ways_with_less_cpu_and_a_longer_time_are_in_the_verdict_on_cpu():
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = [
        row("ringcast", "metadata", **{**cell, "reading": "typed", "p50_us": 60, "cpu_writer_s": 0.2}),
        row("ringcast-view", "metadata", **{**cell, "reading": "typed", "p50_us": 90, "cpu_writer_s": 0.1}),
        row("ringcast", "metadata", **cell, p50_us=90, cpu_writer_s=0.1),  # pickled: not what a user gets
        row("pipe", "metadata", **cell, p50_us=130, cpu_writer_s=0.05),
        row("late", "metadata", **cell, p50_us=200, cpu_writer_s=0.3),
        row("spinning", "metadata", **cell, p50_us=20, cpu_writer_s=10),
    ]
    text = verdict(rows, "CPU every 25 ms, python").text
    assert "`ringcast` 2.00 %, best `spinning` 100 %: 0.02, at most 1.00: yes" in text
    assert text.endswith("; less CPU but a longer p50: `pipe` 0.500 % and 130 us")
    assert "less CPU but a longer p50: `pipe`" in report.short_table(loaded(rows))
    alone = verdict(rows[:-1], "CPU every 25 ms, python")
    assert alone.good is None and "`pipe` 0.500 % and 130 us" in "\n".join(report.goal_lines(loaded(rows[:-1])))


@pytest.mark.parametrize("mine, good", [(71, True), (69, False)])
def test_of_batches_more_is_better(mine, good):
    cell = {**IN_C, "scenario": "batch"}
    rows = [
        row("c-ringcast", "bytes-16", **cell, messages_per_s=mine),
        row("c-queue", "bytes-16", **cell, messages_per_s=100, note="threads of one process"),
    ]
    assert verdict(rows, "16 B in batches").good is good
    assert f"| {100 / mine:.2f} |" in report.short_table(loaded(rows))  # below 1: ringcast is better
    wins = list(report_wins.wins(loaded(rows)))
    assert [(win.row["peer"], win.ratio) for win in wins] == [("c-queue", mine / 100)]


# ---- Near and far ----------------------------------------------------------------------------------------------------

KIB64 = "64 KiB one way, C, best copying"


def test_rows_of_one_state_are_compared_and_near_ones_first():
    rows = [row("c-ringcast", "bytes-64Ki", **COPYING, **FAR, p50_us=10)]
    rows += [row("c-ringcast-default", "bytes-64Ki", **COPYING, **NEAR, p50_us=4)]
    rows += [
        row("c-a", "bytes-64Ki", **COPYING, **NEAR, p50_us=9),
        row("c-b", "bytes-64Ki", **COPYING, **FAR, p50_us=5),
    ]
    text = verdict(rows, KIB64).text
    assert "`c-ringcast-default` 4.00 us, best `c-a` 9.00 us: 0.44" in text and "no near row of `c-b`" in text
    assert [(win.row["peer"], win.ratio) for win in report_wins.wins(loaded(rows))] == [("c-b", 0.5)]
    cells = report.matrix(loaded(rows), "p50_us", language="c")
    assert "| 5.00 us (far) |" in cells and "| 9.00 us |" in cells


@pytest.mark.parametrize("ours, theirs", ["NF", "NC", "CC"])
def test_without_a_common_state_there_is_no_verdict(ours, theirs):
    rows = pair(4, 9, "bytes-64Ki", **COPYING)
    rows = [{**rows[0], **LINES[ours]}, {**rows[1], **LINES[theirs]}]
    found = verdict(rows, KIB64)
    assert found.good is None and found.text.endswith("not comparable: near and far")
    assert "| 64 KiB one way, C | not comparable: near and far |" in report.short_table(loaded(rows))
    assert not list(report_wins.wins(loaded([{**rows[0], "p50_us": 20}, rows[1]])))


def test_ways_are_listed_from_the_best_on():
    rows = [row(name, "bytes-64", scenario="stream", messages_per_s=rate) for name, rate in (("a", 5), ("b", 9))]
    rows += [row(name, "bytes-64", p50_us=time) for name, time in (("a", 5), ("b", 9))]
    # "b" is the best wherever it has a figure, although "a" has one more.
    rows += [row("a", "bytes-16", scenario="stream", messages_per_s=1000)]
    rows += [row("c", name, scenario="stream", messages_per_s=0.1) for name in ("bytes-16", "bytes-64")]
    assert report.matrix(loaded(rows), "messages_per_s", scenario="stream").splitlines()[2].startswith("| `b` |")
    assert report.matrix(loaded(rows), "p50_us", scenario="one-way").splitlines()[2].startswith("| `a` |")


def test_a_verdict_of_far_rows_says_so():
    rows = [{**made, **FAR} for made in pair(4, 9, "bytes-64Ki", **COPYING)] + headline("c-line", [50], "N", floor=True)
    assert verdict(rows, KIB64).text.endswith("yes (both far)")
    assert "The line was far in all rows in C." in report.matrix(loaded(rows), "p50_us", scenario="one-way")


def test_the_last_attempt_counts():
    rows = pair(1, 5, "bytes-64Ki", **COPYING)
    rows = [{**rows[0], **NEAR, "attempt": 1}, {**rows[0], **NEAR, "p50_us": 2, "attempt": 2}, {**rows[1], **NEAR}]
    assert "`c-ringcast` 2.00 us, best `zmq-push` 5.00 us: 0.40" in verdict(rows, KIB64).text


def test_the_headline_is_of_rounds_that_are_near_for_both_ways():
    rows = headline("c-ringcast", [300, 60, 62, 64, 90], "FNNNN") + headline("c-other", [200, 61, 59, 60, 9], "FNNNF")
    rows += headline("c-ringcast-default", [100] * 5, "FNNNN") + headline("c-cache-line", [50] * 5, "FNNNN", floor=True)
    text = verdict(rows, "64 B one way").text
    assert "`c-ringcast` 62.0 ns, best `c-other` 60.0 ns: 1.03, at most 1.05: yes" in text
    assert text.endswith("(3 near rounds of 5; 1.24 and 1.20 of the bare line)")
    assert "| **`c-ringcast`** | 63.0 ns | 1.26 | 4 near |" in report.headline_table(loaded(rows))


def test_the_headline_is_of_far_rounds_if_none_is_near():
    rows = headline("c-ringcast", [300, 310], "FF") + headline("c-other", [200, 60], "FN")
    assert "300 ns, best `c-other` 200 ns: 1.50" in verdict(rows, "64 B one way").text
    rows = headline("c-ringcast", [300, 310], "FF") + headline("c-other", [60, 60], "NN")
    assert verdict(rows, "64 B one way").text.endswith("not comparable: near and far")


@pytest.mark.parametrize("mine, told", [(8, "NO (floor `c-in-place` 7.00 us)"), (4, "yes")])
def test_the_floor_is_told_where_a_goal_is_missed(mine, told):
    rows = pair(mine, 9, "bytes-64Ki", **COPYING)
    rows += [row("c-in-place", "bytes-64Ki", **COPYING, floor=True, p50_us=7)]
    assert verdict(rows, KIB64).text.endswith(told)


def test_a_lossy_way_is_no_rival_and_a_row_that_does_not_say_is_one():
    rows = pair(4, 9, "bytes-64Ki", **COPYING) + [
        row("c-slot", "bytes-64Ki", **{**COPYING, "lossless": False}, p50_us=1)
    ]
    assert "best `zmq-push`" in verdict(rows, KIB64).text
    rows = pair(4, 9, "bytes-64Ki", **{**COPYING, "lossless": None})
    assert "best `zmq-push`" in verdict(rows, KIB64).text


# ---- Wins, and what is missing ---------------------------------------------------------------------------------------


def test_a_winning_peer_is_listed_with_the_cause_or_that_it_is_not_known():
    rows = pair(10, 8, "bytes-64", peer="a-pipe") + pair(10, 12, "bytes-64Ki", peer="slower")
    rows += [row("slot", "bytes-64", p50_us=5, lossless=False), row("floor", "bytes-64", p50_us=1, floor=True)]
    text = report.win_table(loaded(rows))
    (unknown,) = [line for line in text.splitlines() if "`a-pipe`" in line]
    assert "64 B/2" in unknown and "0.80" in unknown and unknown.endswith("| not known |")
    assert "overwrites" in text and "slower" not in text and "floor" not in text


def test_only_a_lossy_way_is_said_to_overwrite_and_the_gil_is_no_contest():
    cell = {"scenario": "codec", "processes": 1, "lossless": None, **OBJECTS}
    rows = [row("codec-ringcast", "metadata", **cell, write_us=2), row("codec-msgspec", "metadata", **cell, write_us=1)]
    rows += pair(0.9, 0.5, "metadata", "gil_share", scenario="gil", lossless=None, **OBJECTS)
    (win,) = report_wins.wins(loaded(rows))
    assert win.row["peer"] == "codec-msgspec" and "tuples" in win.cause
    assert "zmq-push" in report.matrix(loaded(rows), "gil_share", scenario="gil")


@pytest.mark.parametrize("time, told", [(5, "assembles parts"), (12, "not known")])
def test_a_large_message_is_told_with_the_floor(time, told):
    rows = pair(18, time, "bytes-4Mi", peer="c-aeron-ipc", **IN_C)
    rows += [row("c-in-place", "bytes-4Mi", **IN_C, floor=True, p50_us=10)]
    (win,) = report_wins.wins(loaded(rows))
    assert told in win.cause and win.cause.endswith("ringcast's time is 1.80 of the floor `c-in-place`")


def test_a_spinning_peer_is_told_only_beside_a_ringcast_that_sleeps():
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = pair(60, 20, "metadata", **cell)
    (win,) = report_wins.wins(loaded([{**rows[0], "cpu_writer_s": 0.1}, {**rows[1], "cpu_writer_s": 10}]))
    assert "spins" in win.cause
    (win,) = report_wins.wins(loaded([{**made, "cpu_writer_s": 10} for made in rows]))
    assert win.cause == "not known"


def test_a_peer_of_another_cell_wins_nothing():
    rows = [row("ringcast", "bytes-64", p50_us=10), row("fast", "bytes-64", p50_us=1, processes=4)]
    assert "No way beats ringcast" in report.win_table(loaded(rows))


def test_what_is_missing_is_listed_with_its_reason():
    rows = pair(1, 2, "bytes-64")
    rows.append(row("nccl-object", "all", scenario="all", status="there is no GPU here"))
    rows.append(row("zmq-push", "records-100", scenario="shared", status="a message is read once"))
    text = report.absent_table(loaded(rows))
    assert "| nccl-object | all | there is no GPU here |" in text
    assert "| zmq-push | shared | a message is read once |" in text


def test_many_ways_with_one_reason_are_told_by_the_others():
    names = [f"way-{number}" for number in range(9)]
    rows = [row(name, "metadata", p50_us=1) for name in [*names, "lmdb"]] + [row("lmdb", "metadata", scenario="shared")]
    rows += [row(name, "metadata", scenario="shared", status="a message is read once") for name in names]
    assert "| 9 ways, all but lmdb | shared | a message is read once |" in report.absent_table(loaded(rows))


def test_the_reasons_of_a_codec_are_one_line():
    cell = {"scenario": "codec", "processes": 1, "lossless": None}
    rows = [row("codec-a", "records-10", **cell, write_us=1)]
    rows += [
        row("codec-a", name, **cell, status=f"can't write it: TypeError: {name}") for name in ("metadata", "scheduler")
    ]
    assert "| codec-a | codec: metadata, scheduler | can't write it |" in report.absent_table(loaded(rows))


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

PAGES = ["docs/peers.md", "docs/claims.md", "docs/choosing.md", "README.md"]


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
    assert "yes" in block(pages["docs/peers.md"], "goals")
    again = filled(tmp_path, some_rows(), META)
    assert again == pages


def test_the_readme_has_the_first_picture_and_five_rows(tmp_path):
    text = block(filled(tmp_path, some_rows(), META)["README.md"], "peers")
    assert "(docs/peers-bytes.svg)" in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2 + 5
    assert "| metadata dict one way, Python | 3.00 us (`ringcast`) | 9.00 us (`zmq-push`) | 0.33 |" in text


def test_without_rows_the_pages_say_so(tmp_path):
    pages = filled(tmp_path, [], {})
    for name in PAGES[0], PAGES[2]:
        for text in re.findall(r"<!-- measured: [\w-]+ -->\n(.*?)\n<!-- end -->", pages[name], re.S):
            assert text == report.NOT
    assert "not measured" in report.text([])


def test_the_summary_has_every_claim_of_the_page(tmp_path):
    page = filled(tmp_path, some_rows(), META)["docs/claims.md"]
    lines = block(page, "claims").splitlines()[2:]
    assert len(lines) == page.count("\n### ") >= 30
    assert all(re.search(r"\| (holds|holds in part|does not hold|not tested) \|$", line) for line in lines)


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
