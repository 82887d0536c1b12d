# SPDX-License-Identifier: Apache-2.0
"""Measures the tables of docs/benchmarks.md, and writes the tables between the markers of the page, and the picture
beside the page. One run on one machine takes some minutes; no other load should run on the machine.

  report.py                 measures, keeps the raw figures in build/bench/report.json, writes the page
  report.py --from FILE     writes the page from raw figures
  report.py --quick         measures for a moment, to test this script; give --page too
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "build/bin/ringcast"
BENCH = ROOT / "build/release/bench/ringcast_bench"
RAW = ROOT / "build/bench/report.json"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = "cost_per_frame.svg"

SIZES = [16, 40, 64, 256, *(4**power << 10 for power in range(11))]  # 1 KiB to 1 GiB
CASES = "alone|statistics|tap|pages|full|spill"
CROWD = 8


# ---- Measuring ------------------------------------------------------------------------------------------------------


def say(text):
    print(f"report: {text}", file=sys.stderr, flush=True)


def run(command):
    """The JSON of a command, or {"skipped": reason}."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    return {"skipped": reason.removeprefix("ringcast: ")}


def perf(name, seconds, *arguments):
    say(f"perf {name} {' '.join(map(str, arguments))}")
    return run([TOOL, "perf", name, "--seconds", seconds, "--format", "json", *arguments])


def run_cases(quick):
    """Median and figures of each case of the benchmark, by name. The repetitions run in random order."""
    say(f"bench {CASES}")
    found = run(
        [
            BENCH,
            f"--benchmark_filter=^({CASES})/",
            f"--benchmark_min_time={0.01 if quick else 0.1}",
            f"--benchmark_repetitions={3 if quick else 7}",
            "--benchmark_enable_random_interleaving=true",
            "--benchmark_format=json",
        ]
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
            cases[name] = {"ns": entry["real_time"]}
        elif entry["run_type"] == "iteration":
            for key in ("tap_lost_percent",):
                if key in entry:
                    cases.setdefault("figures", {}).setdefault(name, {}).setdefault(key, []).append(entry[key])
    return cases


def read(path, default=""):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return default


def machine():
    """Facts that the figures depend on, without a name of the machine."""
    text = read("/proc/cpuinfo")
    field = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    caches = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if read(index / "type") != "Instruction":
            caches[f"L{read(index / 'level')}"] = int(read(index / "size").rstrip("K")) << 10
    memory = re.search(r"MemTotal: +(\d+)", read("/proc/meminfo"))
    return {
        "cpu": field.get("model name", os.uname().machine),
        "family": field.get("cpu family", ""),
        "model": field.get("model", ""),
        "virtual": "hypervisor" in field.get("flags", "").split(),
        "cpus": len(os.sched_getaffinity(0)),
        "caches": caches,
        "memory_bytes": int(memory[1]) << 10 if memory else 0,
        "kernel": re.match(r"[0-9.]*[0-9]", os.uname().release)[0],
        "load": os.getloadavg()[0],
    }


def run_steps(quick):
    """The example with torch: a driver and its workers, beside gloo."""
    found = {}
    for world in (2, 4):
        say(f"tp_workers.py --world {world}")
        found[world] = run(
            [
                sys.executable,
                ROOT / "examples/tp_workers.py",
                "--world",
                world,
                "--format",
                "json",
                "--steps",
                30 if quick else 300,
            ]
        )
    return found


def measure(quick):
    raw, second = {"machine": machine(), "version": read(ROOT / "include/ringcast/version.h")}, 0.02 if quick else 1
    cpus = raw["machine"]["cpus"]
    sizes = [size for size in SIZES if not quick or size <= 1 << 24]
    raw["sizes"] = {size: perf("throughput", 2 * second, "--size", size) for size in sizes}
    raw["latency"] = {size: perf("latency", 4 * second, "--size", size) for size in (40, 1024, 16384)}
    raw["wake"] = {readers: perf("wake", 4 * second, "--readers", readers) for readers in (1, CROWD)}
    raw["cadence"] = {
        f"{gap} ms, {readers}": perf("cadence", 2 * second, "--gap", gap, "--readers", readers)
        for gap in (1, 5, 25)
        for readers in (1, 4, 8)
    }
    raw["scale"] = perf("scale", second / 2, "--readers", max(CROWD, min(14, cpus - 1)))
    raw["cases"] = run_cases(quick)
    raw["steps"] = run_steps(quick)
    return json.loads(json.dumps(raw))  # keys become strings, as they are when read from a file


# ---- Words and numbers ----------------------------------------------------------------------------------------------


def three(value):
    """Three digits: 1.23, 12.3, 123, 1,230."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{value:e}".split("e")[1]))
    return f"{round(value, -int(f'{value:e}'.split('e')[1]) + 2):,.{digits}f}"


def time_of(ns):
    for unit, scale in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        if ns < 1000 * scale:
            return f"{three(ns / scale)} {unit}"
    return f"{three(ns / 1e9)} s"


def size_of(count):
    count = int(count)
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def rate_of(per_second):
    return f"{three(per_second / 1e6)} million" if per_second >= 1e6 else three(per_second)


def faults_of(count):
    return three(count) if count >= 0.01 else "0"


def table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def of(case, what="ns"):
    """A case's figure in words."""
    if not case or "skipped" in case:
        return "not here"
    return time_of(case[what]) if what == "ns" else three(case[what])


def ratio(case, floor, digits=2):
    return f"{case['ns'] / floor['ns']:.{digits}f}" if "ns" in (case or {}) and "ns" in (floor or {}) else ""


def reasons(raw, names):
    """A line for each case that could not run."""
    found = {raw["cases"].get(name, {}).get("skipped") for name in names} - {None}
    return "".join(f"\n\nNot measured here: {reason}." for reason in sorted(found))


# ---- The blocks of the page -----------------------------------------------------------------------------------------


def show_machine(raw):
    facts, first = raw["machine"], next(iter(raw["sizes"].values()))
    caches = ", ".join(f"{level} {size_of(size)}" for level, size in facts["caches"].items())
    version = re.search(r'RINGCAST_VERSION +"(.*)"', raw["version"])[1]
    kind = "a virtual machine" if facts["virtual"] else "a machine"
    return (
        f"ringcast {version} on {facts['cpu']} (family {facts['family']}, model {facts['model']}), {facts['cpus']}"
        f" CPUs of {kind}; caches: {caches}; {three(facts['memory_bytes'] / 2**30)} GiB of memory; Linux"
        f" {facts['kernel']}. The load average was {facts['load']:.1f} when it began. The ring:"
        f" {size_of(first['capacity'])} of {first['memory']} memory, the library's own choice here."
    )


def where(size, raw):
    """Where a frame of this size lies."""
    limit = int(next(iter(raw["sizes"].values()))["capacity"]) / 2
    return "ring" if size < limit else "beside it"


def show_sizes(raw):
    rows = []
    for key, found in raw["sizes"].items():
        size = int(key)
        if "skipped" in found:
            rows.append([size_of(size), "not sent", "", "", "", "", "", "", ""])
            continue
        ns, rate = 1e9 / found["frames_per_s"], found["bytes_per_s"]
        rows.append(
            [
                size_of(size),
                time_of(ns),
                rate_of(found["frames_per_s"]),
                f"{rate / 1e9:.2f}",
                f"{found['memcpy_bytes_per_s'] / 1e9:.2f}",
                f"{found['ratio']:.2f}",
                f"{found['memcpy_alone_bytes_per_s'] / 1e9:.1f}",
                " / ".join(faults_of(found[f"{side}_faults_per_frame"]) for side in ("writer", "reader")),
                where(size, raw),
            ]
        )
    head = [
        "frame",
        "ring, per frame",
        "frames/s",
        "GB/s",
        "memcpy, read by the other",
        "ratio",
        "memcpy, nobody reads",
        "page faults, writer / reader",
        "lies in",
    ]
    missing = sorted({found["skipped"] for found in raw["sizes"].values() if "skipped" in found}, key=len)
    note = f"\n\nNot sent: {missing[0]}." if missing else ""
    return f"{table(head, rows)}{note}\n\n{show_bends(raw)}\n\n![cost per frame by size]({PICTURE})"


def show_bends(raw):
    """One sentence on each of the two parts of the curve."""
    points = [
        (int(size), 1e9 / found["frames_per_s"]) for size, found in raw["sizes"].items() if "skipped" not in found
    ]
    flat = [(size, ns) for size, ns in points if ns < 2 * points[0][1]]
    slopes = [((b[1] - a[1]) / (b[0] - a[0]) * 1024, b) for a, b in zip(points, points[1:]) if b[0] > flat[-1][0]]
    text = (
        f"Flat: up to {size_of(flat[-1][0])} a frame takes {time_of(min(ns for _, ns in flat))} to "
        f"{time_of(max(ns for _, ns in flat))}."
    )
    if slopes:
        text += (
            " Then, for each KiB more: "
            + ", ".join(f"{time_of(slope)} (to {size_of(end[0])})" for slope, end in slopes if end[0] >= 1024)
            + "."
        )
    return text


def show_latency(raw):
    rows = []
    for size, found in raw["latency"].items():
        if "skipped" in found:
            rows.append([size_of(size), f"not measured: {found['skipped']}", "", "", "", "", ""])
            continue
        one_way, floor, line = found["one_way_ns"], found["floor_ns"]["p50"], found["line_ns"]["p50"]
        rows.append(
            [
                size_of(size),
                *(time_of(one_way[key]) for key in ("p50", "p99", "p999")),
                time_of(floor),
                time_of(line),
                f"{found['ratio']:.2f}" if size == "40" else "",
                f"{found['ratio_line']:.2f}" if size == "40" else "",
            ]
        )
    return table(
        [
            "one way",
            "ring, p50",
            "p99",
            "p99.9",
            "floor: a line each way",
            "one line in turn",
            "ratio to the floor",
            "to the line",
        ],
        rows,
    )


def show_halves(raw):
    cases, rows = raw["cases"], []
    for label, name in (("reserve + commit", "reserve_commit"), ("next + release", "next_release")):
        on, off = cases.get(f"statistics/on/{name}"), cases.get(f"statistics/off/{name}")
        rows.append([label, of(cases.get(f"alone/{name}")), of(on), of(off), ratio(on, off)])
    return table(
        ["40 B, one process, nobody on the other side", "linked in", "shared library", "without statistics", "ratio"],
        rows,
    )


def show_wake(raw):
    rows = []
    for readers, found in raw["wake"].items():
        if "skipped" in found:
            rows.append([readers, f"not measured: {found['skipped']}", "", "", "", ""])
            continue
        rows.append(
            [
                readers,
                f"{three(found['wake_us']['p50'])} us",
                f"{three(found['wake_us']['p99'])} us",
                f"{three(found['futex_us']['p50'])} us",
                f"{found['ratio']:.2f}",
                f"{found['idle_cpu_percent']:.3f} %",
            ]
        )
    return table(
        ["readers asleep", "from send to running, p50", "p99", "bare futex, p50", "ratio", "CPU of a parked reader"],
        rows,
    )


def show_cadence(raw):
    rows = []
    for name, found in raw.get("cadence", {}).items():
        if "skipped" in found:
            rows.append([name, f"not measured: {found['skipped']}", *[""] * 8])
            continue
        wake = found["wake_us"]
        rows.append(
            [
                name,
                *(
                    f"{three(value)} us"
                    for value in (found["commit_us"]["p50"], wake["p50"], wake["p99"], found["slowest_us"]["p50"])
                ),
                f"{found['reader_cpu_percent']:.2f} %",
                f"{three(found['futex_us']['p50'])} us",
                f"{found['futex_cpu_percent']:.2f} %",
                f"{three(found['spin_us']['p50'])} us",
                f"{found['ratio']:.2f}",
            ]
        )
        if "watts" in found:
            rows[-1][5] += f", {three(found['watts'])} W"
            rows[-1][7] += f", {three(found['futex_watts'])} W"
    if not rows:
        return "Not measured yet: `make bench-docs` measures this table."
    return table(
        [
            "gap, readers",
            "commit, p50",
            "wake, p50",
            "p99",
            "slowest reader, p50",
            "CPU of a reader",
            "bare futex, p50",
            "CPU",
            "endless spinning, p50",
            "ratio to the futex",
        ],
        rows,
    )


def show_scale(raw):
    found = raw["scale"]
    if "skipped" in found:
        return f"Not measured: {found['skipped']}."
    steps = [step for step in found["scale"] if step["pinned"]]
    rows = [
        [
            str(step["readers"]),
            time_of(step["writer_ns_per_frame"]),
            f"{step['ratio']:.2f}",
            rate_of(step["frames_per_s"]),
        ]
        for step in steps
    ]
    oversubscribed = [step for step in found["scale"] if not step["pinned"]]
    rows += [
        [
            f"{step['readers']}, more than CPUs",
            f"{time_of(step['writer_ns_per_frame'])} (CPU time)",
            "",
            rate_of(step["frames_per_s"]),
        ]
        for step in oversubscribed
    ]
    text = table(["readers", "writer, per frame", "to 1 reader", "frames/s to the slowest"], rows)
    if len(steps) < 14:
        text += (
            f"\n\nWith a CPU for each: to {len(steps)} reader{'s' if len(steps) > 1 else ''} here. Up to 14 is"
            " still to be measured on a machine with more cores: `ringcast perf scale --readers 14`."
        )
    return text


def show_room(raw):
    cases = raw["cases"]
    floor = cases.get("full/memcpy", {})
    rows = [
        [label, of(cases.get(name)), ratio(cases.get(name), floor)]
        for label, name in (
            ("room enough (the default ring)", "full/room_enough"),
            ("room for three frames: the writer waits for the reader", "full/room_short"),
            ("memcpy into three places, read by the other", "full/memcpy"),
            ("room for three, and a reader that takes 2 us for each", "full/slow_reader_2us"),
        )
    ]
    return table(["1 KiB", "per frame", "to memcpy"], rows)


def show_spill(raw):
    cases = raw["cases"]
    floor = cases.get("spill/memcpy", {})
    rows = [
        [label, of(cases.get(name)), ratio(cases.get(name), floor)]
        for label, name in (
            ("the largest that fits in", "spill/in_the_ring"),
            ("4 KiB more", "spill/beside_the_ring"),
            ("memcpy, read by the other", "spill/memcpy"),
        )
    ]
    text = table(["a ring of 1 MiB", "per frame", "to memcpy"], rows)
    return text + reasons(raw, ["spill/beside_the_ring"])


def show_pages(raw):
    cases, rows = raw["cases"], []
    for kind in ("hugetlb", "shmem-huge", "small"):
        small, large = cases.get(f"pages/{kind}/40"), cases.get(f"pages/{kind}/65536")
        rows.append([kind, of(small), of(large), ratio(large, cases.get("pages/small/65536"))])
    text = table(["a ring of 64 MiB of", "40 B, per frame", "64 KiB, per frame", "64 KiB, to small pages"], rows)
    return text + reasons(raw, [f"pages/{kind}/40" for kind in ("hugetlb", "shmem-huge")])


def show_tap(raw):
    cases = raw["cases"]
    lost = cases.get("figures", {}).get("tap/tap", {}).get("tap_lost_percent", [])
    rows = [
        [label, of(cases.get(name)), ratio(cases.get(name), cases.get("tap/nobody"))]
        for label, name in (
            ("nobody", "tap/nobody"),
            ("a tap", "tap/tap"),
            ("a reader", "tap/reader"),
            ("a reader and a tap", "tap/reader_and_tap"),
        )
    ]
    text = table(["40 B, and there looks on", "per frame", "to nobody"], rows)
    if lost:
        text += (
            f"\n\nThe tap lost {three(sorted(lost)[len(lost) // 2])} % of the bytes, and knew it: nobody waits for it."
        )
    return text + reasons(raw, ["tap/reader_and_tap"])


def show_steps(raw):
    rows, missing = [], ""
    for world, found in raw["steps"].items():
        if "skipped" in found:
            missing = f"\n\nNot measured: {found['skipped']}."
            continue
        ring, gloo = found["ways"]["ringcast"], found["ways"]["gloo"]
        rows.append(
            [
                world,
                f"{three(ring['median_us'])} us",
                f"{three(gloo['median_us'])} us",
                f"{gloo['median_us'] / ring['median_us']:.1f}",
                f"{three(ring['steps_per_s'])}",
                f"{three(gloo['steps_per_s'])}",
            ]
        )
    return (
        table(["processes", "a step, median: ringcast", "gloo", "times", "steps/s: ringcast", "gloo"], rows) + missing
    )


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
    sizes = list(found)
    figure, axes = pyplot.subplots(figsize=(9, 5.4))
    axes.loglog(
        sizes, [1e9 / found[size]["frames_per_s"] for size in sizes], "o-", color="#c0392b", label="ring", zorder=3
    )
    axes.loglog(
        sizes,
        [size / found[size]["memcpy_bytes_per_s"] * 1e9 for size in sizes],
        "s--",
        color="#2c3e50",
        label="memcpy, read by the other",
        markersize=4,
    )
    axes.loglog(
        sizes,
        [size / found[size]["memcpy_alone_bytes_per_s"] * 1e9 for size in sizes],
        ":",
        color="#7f8c8d",
        label="memcpy, nobody reads",
    )
    capacity = int(found[sizes[0]]["capacity"])
    marks = {**raw["machine"]["caches"], "half the ring": capacity // 2}
    for index, (label, size) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        axes.axvline(size, color="#bdc3c7", linewidth=0.8, zorder=0)
        axes.annotate(
            f" {label}",
            (size, 0.97 - 0.05 * (index % 2)),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color="#7f8c8d",
        )
    ticks = [1 << power for power in range(4, 31, 4)]
    axes.set_xticks(ticks, [size_of(tick) for tick in ticks])
    axes.set_xlim(12, 1.3 * (1 << 30))
    decades = [10**power for power in range(10)]
    low, high = axes.get_ylim()
    axes.set_yticks(decades, [time_of(decade) for decade in decades])
    axes.set_ylim(low, high)
    axes.minorticks_off()
    axes.set_xlabel("payload of a frame")
    axes.set_ylabel("time of a frame")
    axes.set_title(f"From one process to another, {raw['machine']['cpu']}, {raw['machine']['cpus']} CPUs", fontsize=10)
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
