# SPDX-License-Identifier: Apache-2.0
"""Measures the tables of docs/benchmarks.md, and writes the tables between the markers of the page, and the picture
beside the page. One run on one machine takes some minutes; no other load should run on the machine.

  report.py                 measures, keeps the raw figures in build/bench/report.json, writes the page
  report.py --from FILE     writes the page from raw figures
  report.py --quick         measures for a moment, to test this script; give --page too
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

from ringcast.bench import dropin
from ringcast.bench import report as python

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "build/bin/ringcast"
BENCH = ROOT / "build/release/bench/ringcast_bench"
RAW = ROOT / "build/bench/report.json"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = "cost_per_frame.svg"

SIZES = [16, 40, 64, 256, *(4**power << 10 for power in range(11))]  # 1 KiB to 1 GiB
CASES = "alone|tap|pages|full|spill"
COLD_OBJECTS = ["metadata", "scheduler-64", "scheduler-256", "prefill-64", "tensor-dict", "features"]
CROWD = 8


# ---- Measuring ------------------------------------------------------------------------------------------------------


def say(text):
    print(f"report: {text}", file=sys.stderr, flush=True)


def run(*command):
    """The JSON of a command, or {"skipped": reason}."""
    say(" ".join(str(word) for word in command[1:]))
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    return {"skipped": reason.removeprefix("ringcast: ")}


def run_cases(quick):
    """Median and figures of each case of the benchmark, by name. The repetitions run in random order."""
    found = run(
        BENCH,
        f"--benchmark_filter=^({CASES})/",
        f"--benchmark_min_time={0.01 if quick else 0.1}",
        f"--benchmark_repetitions={3 if quick else 7}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_format=json",
    )
    if "skipped" in found:
        sys.exit(f"report: the benchmark failed: {found['skipped']}")
    cases = {}
    for entry in found["benchmarks"]:
        name = re.sub("/(iterations:[0-9]+|manual_time|repeats:[0-9]+)", "", entry["run_name"])
        if entry.get("error_occurred") or entry.get("skipped"):
            reason = entry.get("error_message") or entry.get("skip_message", "")
            cases[name] = {"skipped": reason.removeprefix("skipped: ")}
        elif entry.get("aggregate_name") == "median":
            cases[name] = {"ns": entry["real_time"], "lost": entry.get("tap_lost_percent")}
    return cases


def measure(quick):
    second = 0.02 if quick else 1
    raw = {"machine": python.machine()}

    def perf(name, seconds, *arguments):
        return run(TOOL, "perf", name, "--seconds", seconds * second, "--format", "json", *arguments)

    def bench(command, seconds, *arguments, cases=()):
        only = [word for case in cases for word in ("--case", case)]
        options = ("--seconds", seconds * second, "--format", "json", *only, *arguments)
        return run(sys.executable, "-m", "ringcast.bench", command, *options)

    def steps(world):
        """The example with torch: a driver and its workers, beside gloo."""
        example = (ROOT / "examples/tp_workers.py", "--world", world, "--steps", 30 if quick else 300)
        return run(sys.executable, *example, "--format", "json")

    sizes = [size for size in SIZES if not quick or size <= 1 << 24]
    gaps = [(gap, readers) for gap in (1, 5, 25) for readers in (1, 4, 8)]
    raw["sizes"] = {size: perf("throughput", 1, "--size", size) for size in sizes}
    raw["latency"] = {size: perf("latency", 3, "--size", size) for size in (40, 1024, 16384)}
    raw["wake"] = {readers: perf("wake", 4, "--readers", readers) for readers in (1, CROWD)}
    raw["cadence"] = {f"{gap} ms, {n}": perf("cadence", 1.5, "--gap", gap, "--readers", n) for gap, n in gaps}
    raw["scale"] = perf("scale", 0.5, "--readers", max(CROWD, min(14, raw["machine"]["cores"] - 1)))
    raw["cases"] = run_cases(quick)
    raw["steps"] = {world: steps(world) for world in (2, 4)}
    raw["codec"] = bench("codec", 1)
    raw["object"] = {"hot": bench("object", 1), "cold": bench("object", 2, "--cold", cases=COLD_OBJECTS)}
    raw["dropin"] = {"hot": bench("dropin", 1), "cold": bench("dropin", 2, "--cold")}
    return json.loads(json.dumps(raw))  # keys become strings, as in a file


# ---- Words and numbers ----------------------------------------------------------------------------------------------


def three(value):
    """Three digits: 1.23, 12.3, 123, 1,230."""
    if value == 0:
        return "0"
    power = int(f"{value:e}".split("e")[1])
    return f"{round(value, 2 - power):,.{max(0, 2 - power)}f}"


def time_of(ns):
    for unit, scale in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        if ns < 1000 * scale:
            return f"{three(ns / scale)} {unit}"
    return f"{three(ns / 1e9)} s"


def size_of(count):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if int(count) >= 1 << shift and int(count) % (1 << shift) == 0:
            return f"{int(count) >> shift} {unit}"
    return f"{count} B"


def rate_of(per_second):
    return f"{three(per_second / 1e6)} million" if per_second >= 1e6 else three(per_second)


def table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def us(path):
    return lambda found: f"{three(python.figure_of(found, path))} us"


def ns(path):
    return lambda found: time_of(python.figure_of(found, path))


def plain(path, form="{:.2f}"):
    return lambda found: form.format(python.figure_of(found, path))


def gb(path):
    return lambda found: f"{found[path] / 1e9:.2f}"


def perf_table(label, columns, found, name=str):
    """A row for each measurement: a label and the columns {title: text of the figures}, or why figures are missing."""
    rows = []
    for key, figures in found.items():
        none = [f"not measured: {figures.get('skipped')}", *[""] * (len(columns) - 1)]
        rows.append([name(key), *(none if "skipped" in figures else [show(figures) for show in columns.values()])])
    return table([label, *columns], rows)


# ---- The blocks of the page, from `ringcast perf` -------------------------------------------------------------------


def show_machine(raw):
    facts, first = raw["machine"], next(iter(raw["sizes"].values()))
    caches = ", ".join(f"{level} {size_of(size)}" for level, size in facts["caches"].items())
    kind = "a virtual machine" if facts["virtual"] else "a machine"
    return (
        f"ringcast {facts['ringcast']} on {facts['cpu']} (family {facts['family']}, model {facts['model']}), "
        f"{facts['cores']} CPUs of {kind}; caches: {caches}; {three(facts['memory_bytes'] / 2**30)} GiB of memory; "
        f"Linux {facts['linux']}; Python {facts['python']}, NumPy {facts['numpy']}, torch {facts['torch']}. The load "
        f"average was {facts['load_average']:.1f} when it began. The ring: {size_of(first['capacity'])} of "
        f"{first['memory']} memory, the library's own choice here."
    )


def show_sizes(raw):
    def faults(found):
        counts = (found[f"{side}_faults_per_frame"] for side in ("writer", "reader"))
        return " / ".join(three(count) if count >= 0.01 else "0" for count in counts)

    columns = {
        "ring, per frame": lambda found: time_of(1e9 / found["frames_per_s"]),
        "frames/s": lambda found: rate_of(found["frames_per_s"]),
        "GB/s": gb("bytes_per_s"),
        "memcpy, read by the other": gb("memcpy_bytes_per_s"),
        "ratio": plain("ratio"),
        "memcpy, nobody reads": gb("memcpy_alone_bytes_per_s"),
        "page faults, writer / reader": faults,
        "lies in": lambda found: "ring" if found["size"] < found["capacity"] / 2 else "beside it",
    }
    return f"{perf_table('frame', columns, raw['sizes'], size_of)}\n\n![cost per frame by size]({PICTURE})"


def show_latency(raw):
    columns = {
        "ring, p50": ns("one_way_ns.p50"),
        "p99": ns("one_way_ns.p99"),
        "p99.9": ns("one_way_ns.p999"),
        "floor: a line each way": ns("floor_ns.p50"),
        "one line in turn": ns("line_ns.p50"),
        "ratio to the floor": lambda found: f"{found['ratio']:.2f}" if found["size"] == 40 else "",
        "to the line": lambda found: f"{found['ratio_line']:.2f}" if found["size"] == 40 else "",
    }
    return perf_table("one way", columns, raw["latency"], size_of)


def show_wake(raw):
    columns = {
        "from send to running, p50": us("wake_us.p50"),
        "p99": us("wake_us.p99"),
        "bare futex, p50": us("futex_us.p50"),
        "ratio": plain("ratio"),
        "CPU asleep": plain("idle_cpu_percent", "{:.3f} %"),
        "a futex's": plain("futex_idle_cpu_percent", "{:.3f} %"),
    }
    return perf_table("readers asleep", columns, raw["wake"])


def show_cadence(raw):
    def cpu(percent, watts):
        return lambda found: f"{found[percent]:.2f} %" + (f", {three(found[watts])} W" if watts in found else "")

    columns = {
        "commit, p50": us("commit_us.p50"),
        "wake, p50": us("wake_us.p50"),
        "p99": us("wake_us.p99"),
        "slowest reader, p50": us("slowest_us.p50"),
        "CPU of a reader": cpu("reader_cpu_percent", "watts"),
        "bare futex, p50": us("futex_us.p50"),
        "CPU": cpu("futex_cpu_percent", "futex_watts"),
        "endless spinning, p50": us("spin_us.p50"),
        "ratio to the futex": plain("ratio"),
    }
    return perf_table("gap, readers", columns, raw["cadence"])


def show_scale(raw):
    found = raw["scale"]
    if "skipped" in found:
        return f"Not measured: {found['skipped']}."
    rows, pinned = [], 0
    for step in found["scale"]:
        pinned += step["pinned"]
        time, rate = time_of(step["writer_ns_per_frame"]), rate_of(step["frames_per_s"])
        if step["pinned"]:
            rows.append([str(step["readers"]), time, f"{step['ratio']:.2f}", rate])
        else:
            rows.append([f"{step['readers']}, more than CPUs", f"{time} (CPU time)", "", rate])
    text = table(["readers", "writer, per frame", "to 1 reader", "frames/s to the slowest"], rows)
    if pinned >= 14:
        return text
    return (
        f"{text}\n\nWith a CPU for each: to {pinned} reader{'s' if pinned > 1 else ''} here. Up to 14 is"
        " still to be measured on a machine with more cores: `ringcast perf scale --readers 14`."
    )


def show_steps(raw):
    def times(found):
        return f"{found['ways']['gloo']['median_us'] / found['ways']['ringcast']['median_us']:.1f}"

    columns = {
        "a step, median: ringcast": us("ways.ringcast.median_us"),
        "gloo": us("ways.gloo.median_us"),
        "times": times,
        "steps/s: ringcast": lambda found: three(found["ways"]["ringcast"]["steps_per_s"]),
        "steps/s: gloo": lambda found: three(found["ways"]["gloo"]["steps_per_s"]),
    }
    return perf_table("processes", columns, raw["steps"])


# ---- The blocks of the page, from `python -m ringcast.bench` --------------------------------------------------------


def python_table(found, columns):
    """A row for each case, or the reason why there is none. `columns`: title, path of the figure."""
    if "skipped" in found:
        return f"Not measured: {found['skipped']}."
    rows = [
        [f"`{case}`", *(python.number(python.figure_of(figures, path)) for _, path in columns)]
        for case, figures in found["cases"].items()
    ]
    why = "".join(f"\n\n`{name}` is left out: {why}." for name, why in found["left_out"].items())
    return table(["case", *(title for title, _ in columns)], rows) + why


def beside_cold(raw, rows):
    """The hot figures, with the cold ones of the same row under `cold`; and after which gap cold messages came."""
    hot, cold = raw["hot"], raw["cold"]
    if "skipped" in hot or "skipped" in cold:
        return hot if "skipped" in hot else cold, ""
    chilled = rows(cold["cases"])
    cases = {name: {**figures, "cold": chilled.get(name)} for name, figures in rows(hot["cases"]).items()}
    return {**hot, "cases": cases}, f"\n\nCold: {cold['gap_ms']:.0f} ms before each message, and caches evicted in it."


def show_codec(raw):
    columns = [(f"{group} {title}".strip(), path) for title, group, _, path in python.COLUMNS["codec"]]
    return python_table(raw["codec"], columns)


def show_object(raw):
    found, note = beside_cold(raw["object"], dict)
    columns = [
        ("ringcast, us: p50", "ringcast.one_way_p50_us"),
        ("p99", "ringcast.one_way_p99_us"),
        ("pickle p50", "pickle.one_way_p50_us"),
        ("ratio", "ratio.one_way"),
        ("pickle alone", "pickle_alone.dumps_loads_us"),
        ("objects/s", "ringcast.objects_per_s"),
        ("pickle's", "pickle.objects_per_s"),
        ("GB/s", "ringcast.gb_per_s"),
        ("cold: p50", "cold.ringcast.one_way_p50_us"),
        ("pickle p50", "cold.pickle.one_way_p50_us"),
        ("ratio", "cold.ratio.one_way"),
    ]
    return python_table(found, columns) + note


def show_dropin(raw):
    found, note = beside_cold(raw["dropin"], dropin.rows)
    columns = [(f"{group} {title}".strip(), path) for title, group, _, path in python.COLUMNS["dropin"]]
    columns += [("cold: p50", "cold.p50_us"), ("CPU of a reader", "cold.cpu_reader_us"), ("ratio", "cold.ratio")]
    return python_table(found, columns) + note


# ---- The blocks of the page, from Google Benchmark ------------------------------------------------------------------


def cell(raw, name):
    found = raw["cases"].get(name)
    return time_of(found["ns"]) if found and "ns" in found else "not here"


def ratio(raw, name, floor):
    found = [raw["cases"].get(each, {}) for each in (name, floor)]
    return f"{found[0]['ns'] / found[1]['ns']:.2f}" if all("ns" in each for each in found) else ""


def reasons(raw, *names):
    """A line for each case that could not run."""
    found = {raw["cases"].get(name, {}).get("skipped") for name in names} - {None}
    return "".join(f"\n\nNot measured here: {reason}." for reason in sorted(found))


def case_table(raw, head, floor, labels):
    """A row for each case: the label, the time, and the ratio to the case `floor`."""
    rows = [[label, cell(raw, name), ratio(raw, name, floor)] for name, label in labels.items()]
    return table(head, rows) + reasons(raw, *labels)


def show_halves(raw):
    halves = {"reserve + commit": "alone/reserve_commit", "next + release": "alone/next_release"}
    rows = [[label, cell(raw, name)] for label, name in halves.items()]
    return table(["40 B, one process, nobody on the other side", "time"], rows)


def show_room(raw):
    labels = {
        "full/room_enough": "room enough (the default ring)",
        "full/room_short": "room for three frames: the writer waits for the reader",
        "full/memcpy": "memcpy into three places, read by the other",
        "full/slow_reader_2us": "room for three, and a reader that takes 2 us for each",
    }
    return case_table(raw, ["1 KiB", "per frame", "to memcpy"], "full/memcpy", labels)


def show_spill(raw):
    labels = {
        "spill/in_the_ring": "the largest that fits in",
        "spill/beside_the_ring": "4 KiB more",
        "spill/memcpy": "memcpy, read by the other",
    }
    return case_table(raw, ["a ring of 1 MiB", "per frame", "to memcpy"], "spill/memcpy", labels)


def show_pages(raw):
    rows = []
    for kind in ("hugetlb", "shmem-huge", "small"):
        small, large = f"pages/{kind}/40", f"pages/{kind}/65536"
        rows.append([kind, cell(raw, small), cell(raw, large), ratio(raw, large, "pages/small/65536")])
    text = table(["a ring of 64 MiB of", "40 B, per frame", "64 KiB, per frame", "64 KiB, to small pages"], rows)
    return text + reasons(raw, "pages/hugetlb/40", "pages/shmem-huge/40")


def show_tap(raw):
    labels = {
        "tap/nobody": "nobody",
        "tap/tap": "a tap",
        "tap/reader": "a reader",
        "tap/reader_and_tap": "a reader and a tap",
    }
    text = case_table(raw, ["40 B, and there looks on", "per frame", "to nobody"], "tap/nobody", labels)
    lost = raw["cases"].get("tap/tap", {}).get("lost")
    if lost is None:
        return text
    return f"{text}\n\nThe tap lost {three(lost)} % of the bytes, and knew it: nobody waits for it."


BLOCKS = {name.removeprefix("show_"): function for name, function in globals().items() if name.startswith("show_")}


# ---- The page and the picture ---------------------------------------------------------------------------------------


def write_page(raw, page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"<!-- measured: (\w+) -->", text):
        block = f"<!-- measured: {name} -->\n{BLOCKS[name](raw)}\n<!-- end -->"
        text = re.sub(rf"<!-- measured: {name} -->.*?<!-- end -->", lambda _, block=block: block, text, flags=re.S)
    page.write_text(text, encoding="utf-8")


def draw(raw, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    found = {int(size): figures for size, figures in raw["sizes"].items() if "skipped" not in figures}
    figure, axes = pyplot.subplots(figsize=(9, 5.4))
    for key, style, color, label in (
        ("bytes_per_s", "o-", "#c0392b", "ring"),
        ("memcpy_bytes_per_s", "s--", "#2c3e50", "memcpy, read by the other"),
        ("memcpy_alone_bytes_per_s", ":", "#7f8c8d", "memcpy, nobody reads"),
    ):
        axes.loglog(list(found), [size / found[size][key] * 1e9 for size in found], style, color=color, label=label)
    marks = {**raw["machine"]["caches"], "half the ring": int(next(iter(found.values()))["capacity"]) // 2}
    for index, (label, size) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        axes.axvline(size, color="#bdc3c7", linewidth=0.8, zorder=0)
        place = (size, 0.97 - 0.05 * (index % 2))
        axes.annotate(f" {label}", place, xycoords=("data", "axes fraction"), fontsize=8, color="#7f8c8d")
    ticks, decades, limits = (
        [1 << power for power in range(4, 31, 4)],
        [10**power for power in range(10)],
        axes.get_ylim(),
    )
    axes.set_xticks(ticks, [size_of(tick) for tick in ticks])
    axes.set_xlim(12, 1.3 * (1 << 30))
    axes.set_yticks(decades, [time_of(decade) for decade in decades])
    axes.set_ylim(*limits)
    axes.minorticks_off()
    axes.set_xlabel("payload of a frame")
    axes.set_ylabel("time of a frame")
    axes.set_title(f"From one process to another, {raw['machine']['cpu']}, {raw['machine']['cores']} CPUs", fontsize=10)
    axes.grid(True, color="#ecf0f1")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9), frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="raw figures to take instead of measuring")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="the page to write into")
    parser.add_argument("--quick", action="store_true", help="only see that it works")
    options = parser.parse_args()
    start = time.monotonic()
    if options.source:
        raw = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        raw = measure(options.quick)
        RAW.parent.mkdir(parents=True, exist_ok=True)
        RAW.write_text(json.dumps(raw, indent=1), encoding="utf-8")
        say(f"measured in {time.monotonic() - start:.0f} s; raw figures in {RAW.relative_to(ROOT)}")
    write_page(raw, options.page)
    draw(raw, options.page.parent / PICTURE)
    say(f"written: {options.page} and {PICTURE}")


if __name__ == "__main__":
    main()
