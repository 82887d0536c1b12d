# SPDX-License-Identifier: Apache-2.0
"""Measures the tables of docs/benchmarks.md, and writes the tables between the markers of the page, and the picture
beside the page. A run takes some minutes; no other load should run on the machine.

  report.py                 measures, keeps the raw figures in build/bench/report.json, writes the page
  report.py --vllm FOLDER   also vLLM's own queue, from an unpacked source; needs what vLLM imports
  report.py --from FILE     writes the page from raw figures
  report.py --codec FILE    only the codec's tables, from what `python -m ringcast.bench codec --format json` printed
  report.py --cadence FILE  only the table beside vLLM's queue at a cadence, from `... cadence --format json`
  report.py --quick         measures for a moment, to test this script; give --page too
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

from tables import CASES, fill, gb, ns, percent, rate_of, ratio, size_of, table, three, us

from ringcast.bench import cadence as python_cadence
from ringcast.bench import codec as python_codec
from ringcast.bench import dropin
from ringcast.bench import report as python

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "build/bin/ringcast"
BENCH = ROOT / "build/release/bench/ringcast_bench"
RAW = ROOT / "build/bench/report.json"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = "cost_per_frame.svg"

SIZES = [16, 40, 64, 256, *(4**power << 10 for power in range(11))]  # 1 KiB to 1 GiB
COLD_OBJECTS = ["metadata", "scheduler-64", "scheduler-256", "prefill-64", "tensor-dict", "features"]
CROWD = 8


# ---- Measuring ------------------------------------------------------------------------------------------------------


def say(text):
    print(f"report: {text}", file=sys.stderr, flush=True)


def run(*command):
    """The JSON of a command, or {"skipped": reason}."""
    say(" ".join(str(word) for word in command[1:]))
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1200)
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    return {"skipped": reason.removeprefix("ringcast: ")}


def run_cases(quick):
    """Median and figures of each case of the benchmark, by name. The repetitions run in random order."""
    found = run(
        BENCH,
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
        if entry.get("error_occurred"):
            cases[name] = {"skipped": entry["error_message"].removeprefix("skipped: ")}
        elif entry.get("aggregate_name") == "median":
            cases[name] = {"ns": entry["real_time"], "lost": entry.get("tap_lost_percent")}
    return cases


def measure(quick, vllm):
    second = 0.02 if quick else 1
    raw = {"machine": python.machine()}

    def perf(name, seconds, *arguments):
        return run(TOOL, "perf", name, "--seconds", seconds * second, "--format", "json", *arguments)

    def bench(command, seconds, *arguments):
        options = ("--seconds", seconds * second, "--format", "json", *arguments)
        return run(sys.executable, "-m", "ringcast.bench", command, *options)

    def steps(world):
        """The example with torch: a driver and its workers, beside gloo."""
        example = (ROOT / "examples/tp_workers.py", "--world", world, "--steps", 30 if quick else 300)
        return run(sys.executable, *example, "--format", "json")

    sizes = [size for size in SIZES if not quick or size <= 1 << 24]
    gaps = [(gap, readers) for gap in (1, 5, 25) for readers in (1, 4, 8)]
    objects = [word for case in COLD_OBJECTS for word in ("--case", case)]
    source = ["--vllm", vllm] if vllm else []
    raw["sizes"] = {size: perf("throughput", 1, "--size", size) for size in sizes}
    raw["latency"] = {size: perf("latency", 3, "--size", size) for size in (40, 1024, 16384)}
    raw["wake"] = {readers: perf("wake", 4, "--readers", readers) for readers in (1, CROWD)}
    raw["cadence"] = {f"{gap} ms, {n}": perf("cadence", 1.5, "--gap", gap, "--readers", n) for gap, n in gaps}
    raw["cases"] = run_cases(quick)
    raw["steps"] = {world: steps(world) for world in (2, 4)}
    raw["codec"] = bench("codec", 1, *source)
    raw["object"] = {"hot": bench("object", 1), "cold": bench("object", 2, "--cold", *objects)}
    raw["dropin"] = {"hot": bench("dropin", 1, *source), "cold": bench("dropin", 2, "--cold", *source)}
    raw["dropin-cadence"] = bench("cadence", python_cadence.SECONDS, *source)
    return json.loads(json.dumps(raw))  # keys become strings, as in a file


# ---- Tables ---------------------------------------------------------------------------------------------------------


def cell(figures, path, form):
    value = python.figure_of(figures, path) if isinstance(path, str) else path(figures)
    return "" if value is None else form(value)


def table_of(label, columns, found, name=str):
    """A row for each measurement: its name, and the figures of the columns (title, path or function, form); or why
    figures are missing."""
    rows = [
        [name(key), f"not measured: {figures['skipped']}", *[""] * (len(columns) - 1)]
        if "skipped" in figures
        else [name(key), *(cell(figures, path, form) for _, path, form in columns)]
        for key, figures in found.items()
    ]
    return table([label, *(title for title, _, _ in columns)], rows)


def of_40(key):
    """Sizes that take many lines have no such floor."""
    return lambda found: found[key] if found["size"] == 40 else None


def machine(raw):
    facts, first = raw["machine"], next(iter(raw["sizes"].values()))
    caches = ", ".join(f"{level} {size_of(size)}" for level, size in facts["caches"].items())
    kind = "a virtual machine" if facts["virtual"] else "a machine"
    return (
        f"ringcast {facts['ringcast']} on {facts['cpu']} (family {facts['family']}, model {facts['model']}), "
        f"{facts['cores']} CPUs of {kind}; caches: {caches}; {three(facts['memory_bytes'] / 2**30)} GiB of memory; "
        f"Linux {facts['linux']}; Python {facts['python']}, NumPy {facts['numpy']}, torch {facts['torch']}. The load "
        f"average was {facts['load_average']:.1f} at the start. The ring: {size_of(first['capacity'])} of "
        f"{first['memory']} memory, the library's own choice here."
    )


def sizes(raw):
    columns = [
        ("ring, per frame", lambda found: 1e9 / found["frames_per_s"], ns),
        ("frames/s", "frames_per_s", rate_of),
        ("GB/s", "bytes_per_s", gb),
        ("memcpy, read by the other", "memcpy_bytes_per_s", gb),
        ("ratio", "ratio", ratio),
        ("memcpy, not read", "memcpy_alone_bytes_per_s", gb),
        ("page faults, writer", "writer_faults_per_frame", three),
        ("reader", "reader_faults_per_frame", three),
        ("lies in", lambda found: "ring" if found["size"] < found["capacity"] / 2 else "spill memory", str),
    ]
    return f"{table_of('frame', columns, raw['sizes'], size_of)}\n\n![cost per frame by size]({PICTURE})"


def latency(raw):
    columns = [
        ("ring, p50", "one_way_ns.p50", ns),
        ("p99", "one_way_ns.p99", ns),
        ("p99.9", "one_way_ns.p999", ns),
        ("floor: a line each way", "floor_ns.p50", ns),
        ("one line in turn", "line_ns.p50", ns),
        ("ratio to the floor", of_40("ratio"), ratio),
        ("to the line", of_40("ratio_line"), ratio),
    ]
    return table_of("one way", columns, raw["latency"], size_of)


def wake(raw):
    columns = [
        ("from send to running, p50", "wake_us.p50", us),
        ("p99", "wake_us.p99", us),
        ("bare futex, p50", "futex_us.p50", us),
        ("ratio", "ratio", ratio),
        ("CPU asleep", "idle_cpu_percent", percent),
        ("a futex's", "futex_idle_cpu_percent", percent),
    ]
    return table_of("readers asleep", columns, raw["wake"])


def cadence(raw):
    columns = [
        ("commit, p50", "commit_us.p50", us),
        ("wake, p50", "wake_us.p50", us),
        ("p99", "wake_us.p99", us),
        ("slowest reader, p50", "slowest_us.p50", us),
        ("CPU of a reader", "reader_cpu_percent", percent),
        ("bare futex, p50", "futex_us.p50", us),
        ("CPU", "futex_cpu_percent", percent),
        ("endless spinning, p50", "spin_us.p50", us),
        ("ratio to the futex", "ratio", ratio),
    ]
    return table_of("gap, readers", columns, raw["cadence"])


def steps(raw):
    columns = [
        ("a step, median: ringcast", "ways.ringcast.median_us", us),
        ("gloo", "ways.gloo.median_us", us),
        ("times", lambda found: found["ways"]["gloo"]["median_us"] / found["ways"]["ringcast"]["median_us"], three),
        ("steps/s: ringcast", "ways.ringcast.steps_per_s", three),
        ("gloo", "ways.gloo.steps_per_s", three),
    ]
    return table_of("processes", columns, raw["steps"])


# ---- From `python -m ringcast.bench` --------------------------------------------------------------------------------


def python_table(found, columns, cold=None):
    """A row for each case, or the reason why there is none. `cold`: the same measured cold, with the figures of a row
    at the path `cold`."""
    skipped = found.get("skipped") or (cold or {}).get("skipped")
    if skipped:
        return f"Not measured: {skipped}."
    rows, text = found["cases"], ""
    if cold:
        chilled = dropin.rows(cold["cases"])
        rows = {name: {**figures, "cold": chilled.get(name)} for name, figures in dropin.rows(rows).items()}
        text = f"\n\nCold: {cold['gap_ms']:.0f} ms before each message, and caches evicted in it."
    text = table_of("case", [(*column, python.number) for column in columns], rows, "`{}`".format) + text
    return text + "".join(f"\n\n`{name}` is left out: {why}." for name, why in found["left_out"].items())


def columns_of(command):
    return [(f"{group} {title}".strip(), path) for title, group, _, path in python.COLUMNS[command]]


COLD = [("cold: p50", "cold.p50_us"), ("CPU of a reader", "cold.cpu_reader_us"), ("ratio", "cold.ratio")]


def codec(raw):
    found = raw["codec"]
    if "skipped" in found:
        return python_table(found, [])
    rows = python_codec.rows(found["cases"])
    tables = [python_table({**found, "cases": rows}, columns_of("codec"))]
    for command in ("codec, cold", "codec, bytes"):
        columns = [(*column, python.number) for column in columns_of(command)]
        tables.append(table_of("case", columns, rows, "`{}`".format))
    facts = found["machine"]
    versions = ", ".join(f"{name} {facts[name]}" for name in ("python", "numpy", "torch"))
    told = f"With {versions}; the load average was {facts['load_average']:.1f} at the start."
    return "\n\n".join([*tables, *python.tail_of(found), told])


def objects(raw):
    columns = [*columns_of("object"), ("GB/s", "gb_per_s"), *COLD]
    return python_table(raw["object"]["hot"], columns, raw["object"]["cold"])


def dropins(raw):
    return python_table(raw["dropin"]["hot"], columns_of("dropin") + COLD, raw["dropin"]["cold"])


def dropin_cadence(raw):
    found = raw["dropin-cadence"]
    if "skipped" in found:
        return python_table(found, [])
    told = f"{found['seconds']:g} s in all; the load average was {found['machine']['load_average']:.1f} at the start."
    found = {**found, "cases": python_cadence.rows(found["cases"])}
    return f"{python_table(found, columns_of('cadence'))}\n\n{told}"


# ---- From Google Benchmark ------------------------------------------------------------------------------------------


def case_table(raw, head, floor, labels):
    found = {label: raw["cases"].get(name, {"skipped": "not here"}) for name, label in labels.items()}
    columns = [(head[1], "ns", ns)]
    if floor:
        least = raw["cases"][floor].get("ns")
        columns.append((head[2], lambda case: case["ns"] / least if least else None, ratio))
    text = table_of(head[0], columns, found)
    lost = [case["lost"] for case in found.values() if case.get("lost")]
    return text + "".join(f"\n\nThe tap lost {three(share)} % of the bytes, and counted them." for share in lost[:1])


BLOCKS = {
    "machine": machine,
    "sizes": sizes,
    "latency": latency,
    "wake": wake,
    "cadence": cadence,
    "steps": steps,
    "codec": codec,
    "object": objects,
    "dropin": dropins,
    "dropin-cadence": dropin_cadence,
    **{name: lambda raw, spec=spec: case_table(raw, *spec) for name, spec in CASES.items()},
}


# ---- The page and the picture ---------------------------------------------------------------------------------------


def write_page(raw, page, names):
    text = page.read_text(encoding="utf-8")
    page.write_text(fill(text, {name: BLOCKS[name](raw) for name in names}), encoding="utf-8")


def draw(raw, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    found = {int(size): figures for size, figures in raw["sizes"].items() if "skipped" not in figures}
    figure, axes = pyplot.subplots(figsize=(9, 5.4))
    for key, style, color, label in (
        ("bytes_per_s", "o-", "firebrick", "ring"),
        ("memcpy_bytes_per_s", "s--", "black", "memcpy, read by the other"),
        ("memcpy_alone_bytes_per_s", ":", "grey", "memcpy, not read"),
    ):
        axes.loglog(list(found), [size / found[size][key] * 1e9 for size in found], style, color=color, label=label)
    marks = {**raw["machine"]["caches"], "half the ring": int(next(iter(found.values()))["capacity"]) // 2}
    for index, (label, size) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        axes.axvline(size, color="#bdc3c7", linewidth=0.8, zorder=0)
        place = (size, 0.97 - 0.05 * (index % 2))
        axes.annotate(f" {label}", place, xycoords=("data", "axes fraction"), fontsize=8, color="#7f8c8d")
    limits = axes.get_ylim()
    axes.set_xticks([1 << power for power in range(4, 31, 4)], [size_of(1 << power) for power in range(4, 31, 4)])
    axes.set_yticks([10**power for power in range(10)], [ns(10**power) for power in range(10)])
    axes.set_ylim(*limits)
    axes.minorticks_off()
    axes.set(xlabel="payload of a frame", ylabel="time of a frame")
    axes.set_title(f"From one process to another, {raw['machine']['cpu']}, {raw['machine']['cores']} CPUs", fontsize=10)
    axes.grid(True, color="#ecf0f1")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9), frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="FOLDER", help="an unpacked source of vLLM; default: the installed one")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="raw figures to take instead of measuring")
    parser.add_argument("--codec", type=pathlib.Path, metavar="FILE", help="only the codec's tables, from that file")
    parser.add_argument("--cadence", type=pathlib.Path, metavar="FILE", help="only that table, from that file")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="the page to write into")
    parser.add_argument("--quick", action="store_true", help="only see that it works")
    options = parser.parse_args()
    start = time.monotonic()
    for name, file in (("codec", options.codec), ("dropin-cadence", options.cadence)):
        if file:
            write_page({name: json.loads(file.read_text(encoding="utf-8"))}, options.page, [name])
    if options.codec or options.cadence:
        return
    if options.source:
        raw = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        raw = measure(options.quick, options.vllm)
        RAW.parent.mkdir(parents=True, exist_ok=True)
        RAW.write_text(json.dumps(raw, indent=1), encoding="utf-8")
        say(f"measured in {time.monotonic() - start:.0f} s; raw figures in {RAW.relative_to(ROOT)}")
    write_page(raw, options.page, BLOCKS)
    draw(raw, options.page.parent / PICTURE)
    say(f"written: {options.page} and {PICTURE}")


if __name__ == "__main__":
    main()
