# SPDX-License-Identifier: Apache-2.0
"""Measures the tables of docs/benchmarks.md, and writes the tables between the markers of the page,
and the picture beside the page. A run takes some minutes; no other load should run on the machine.

  report.py                 measures, keeps the raw figures in build/bench/report.json, writes the
  page report.py --vllm FOLDER   also vLLM's own queue, from an unpacked source; needs what vLLM
  imports report.py --from FILE     writes the page from raw figures report.py --quick
  measures for a moment, to test this script; give --page too
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from bench.machine import machine as facts_of_the_machine  # noqa: E402
from bench.python.__main__ import tables_of  # noqa: E402
from bench.tables import fill, gb, ns, percent, rate_of, ratio, size_of, table, table_of, three, us  # noqa: E402

TOOL = ROOT / "build/bin/ringcast"
BENCH = ROOT / "build/release/bench/ringcast_bench"
RAW = ROOT / "build/bench/report.json"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = "cost_per_frame.svg"

SIZES = [16, 40, 64, 256, *(4**power << 10 for power in range(11))]  # 1 KiB to 1 GiB
COLD_OBJECTS = [
    "metadata",
    "scheduler-64",
    "scheduler-256",
    "prefill-64",
    "tensor-dict",
    "features",
]
CROWD = 8
STEPS = 300

# A block of the page: the cases of Google Benchmark in it, as a pattern, what is measured, and the
# case that the others are compared with.
CASES = {
    "halves": ("alone/.*", "40 B, one process, no peer", None),
    "room": ("full/.*", "1 KiB", "full/memcpy"),
    "spill": ("spill/.*", "a ring of 1 MiB", "spill/memcpy"),
    **{
        f"batch-{size}": (f"batch/{size}_.*", f"{size} B, in a stream", f"batch/{size}_memcpy")
        for size in (16, 64, 256)
    },
    "frames": (
        "(codec|packed|estimate)/.*",
        "a dict of 6 small tensors and 6 numbers; a text of some KiB",
        None,
    ),
    **{
        f"compose-{mib}": (
            f"compose/.*_{mib}M",
            f"{mib} MiB, one process",
            f"compose/kernels_{mib}M",
        )
        for mib in (1, 10)
    },
    **{
        f"stores-{mib}": (f"stores/{mib}_.*", f"{mib} MiB", f"stores/{mib}_in_memcpy")
        for mib in (1, 4, 16, 64, 256)
    },
    "pages": ("pages/.*", "64 KiB in a ring of 64 MiB", "pages/small"),
    "tap": ("tap/.*", "40 B", "tap/nobody"),
}


# ---- Measuring -----------------------------------------------------------------------------------


def say(text):
    print(f"report: {text}", file=sys.stderr, flush=True)


def run(*command):
    """The JSON of a command, or {"skipped": reason}."""
    say(" ".join(str(word) for word in command[1:]))
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=1200, cwd=ROOT
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    return {"skipped": reason.removeprefix("ringcast: ")}


def run_cases(quick):
    """
    Median and figures of each case of the benchmark, by name. The repetitions run in random order.
    """
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
    raw = {"machine": facts_of_the_machine()}

    def perf(name, seconds, *arguments):
        return run(
            TOOL, "perf", name, "--seconds", seconds * second, "--format", "json", *arguments
        )

    def bench(command, seconds, *arguments):
        options = ("--seconds", seconds * second, "--format", "json", *arguments)
        return run(sys.executable, "-m", "bench.python", command, *options)

    def steps(world):
        """The example with torch: a driver and its workers, beside gloo."""
        example = (
            ROOT / "examples/tp_workers.py",
            "--world",
            world,
            "--steps",
            STEPS // 10 if quick else STEPS,
        )
        return run(sys.executable, *example, "--format", "json")

    sizes = [size for size in SIZES if not quick or size <= 1 << 24]
    gaps = [(gap, readers) for gap in (1, 5, 25) for readers in (1, 4, 8)]
    objects = [word for case in COLD_OBJECTS for word in ("--case", case)]
    source = ["--vllm", vllm] if vllm else []
    raw["sizes"] = {size: perf("throughput", 1, "--size", size) for size in sizes}
    raw["latency"] = {size: perf("latency", 3, "--size", size) for size in (40, 1024, 16384)}
    raw["wake"] = {readers: perf("wake", 4, "--readers", readers) for readers in (1, CROWD)}
    raw["cadence"] = {
        f"{gap} ms, {n}": perf("cadence", 1.5, "--gap", gap, "--readers", n) for gap, n in gaps
    }
    raw["cases"] = run_cases(quick)
    raw["steps"] = {world: steps(world) for world in (2, 4)}
    raw["codec"] = bench("codec", 1, *source)
    raw["object"] = {"hot": bench("object", 1), "cold": bench("object", 2, "--cold", *objects)}
    raw["dropin"] = {
        "hot": bench("dropin", 1, *source),
        "cold": bench("dropin", 2, "--cold", *source),
    }
    raw["dropin-cadence"] = bench("cadence", 900, *source)
    return json.loads(json.dumps(raw))  # keys become strings, as in a file


# ---- Tables --------------------------------------------------------------------------------------


def of_40(key):
    """Sizes that take many lines have no such floor."""
    return lambda found: found[key] if found["size"] == 40 else None


def machine(raw):
    facts, first = raw["machine"], next(iter(raw["sizes"].values()))
    caches = ", ".join(f"{level} {size_of(size)}" for level, size in facts["caches"].items())
    kind = "a virtual machine" if facts["virtual"] else "a machine"
    return (
        f"ringcast {facts['ringcast']} on {facts['cpu']} (family {facts['family']}, model "
        f"{facts['model']}), "
        f"{facts['cores']} CPUs of {kind}; caches: {caches}; "
        f"{three(facts['memory_bytes'] / 2**30)} GiB of memory; "
        f"Linux {facts['linux']}; Python {facts['python']}, NumPy {facts['numpy']}, torch "
        f"{facts['torch']}. The load "
        f"average was {facts['load_average']:.1f} at the start. The ring: "
        f"{size_of(first['capacity'])} of "
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
        (
            "lies in",
            lambda found: "ring" if found["size"] < found["capacity"] / 2 else "spill memory",
            str,
        ),
    ]
    table = table_of("frame", columns, raw["sizes"], size_of)
    return f"{table}\n\n![cost per frame by size]({PICTURE})"


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
        (
            "times",
            lambda found: (
                found["ways"]["gloo"]["median_us"] / found["ways"]["ringcast"]["median_us"]
            ),
            three,
        ),
        ("steps/s: ringcast", "ways.ringcast.steps_per_s", three),
        ("gloo", "ways.gloo.steps_per_s", three),
    ]
    return table_of("processes", columns, raw["steps"])


# ---- From `python -m bench.python` ---------------------------------------------------------------


def python(found):
    if "skipped" in found:
        return f"Not measured: {found['skipped']}."
    facts = found["machine"]
    versions = ", ".join(f"{name} {facts[name]}" for name in ("python", "numpy", "torch"))
    told = f"With {versions}; the load average was {facts['load_average']:.1f} at the start."
    return "\n\n".join([*tables_of(found, table, "`{}`".format), told])


def hot_and_cold(found):
    cold = found["cold"]
    told = f"Cold: {cold.get('gap_ms', 0):.0f} ms before each message, and caches evicted in it."
    return "\n\n".join([python(found["hot"]), told, python(cold)])


# ---- From Google Benchmark -----------------------------------------------------------------------


def case_table(raw, pattern, head, floor):
    found = {
        name: case for name, case in sorted(raw["cases"].items()) if re.fullmatch(pattern, name)
    }
    columns = [("time", "ns", ns)]
    if floor:
        least = found[floor].get("ns")
        columns.append((f"to `{floor}`", lambda case: case["ns"] / least if least else None, ratio))
    text = table_of(head, columns, found, "`{}`".format)
    lost = [case["lost"] for case in found.values() if case.get("lost")]
    return text + "".join(
        f"\n\nThe tap lost {three(share)} % of the bytes, and counted them." for share in lost[:1]
    )


BLOCKS = {
    "machine": machine,
    "sizes": sizes,
    "latency": latency,
    "wake": wake,
    "cadence": cadence,
    "steps": steps,
    **{name: lambda raw, name=name: python(raw[name]) for name in ("codec", "dropin-cadence")},
    **{name: lambda raw, name=name: hot_and_cold(raw[name]) for name in ("object", "dropin")},
    **{name: lambda raw, spec=spec: case_table(raw, *spec) for name, spec in CASES.items()},
}


# ---- The page and the picture --------------------------------------------------------------------


def write_page(raw, page, names):
    text = page.read_text(encoding="utf-8")
    page.write_text(fill(text, {name: BLOCKS[name](raw) for name in names}), encoding="utf-8")


def draw(raw, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    from matplotlib import pyplot

    found = {
        int(size): figures for size, figures in raw["sizes"].items() if "skipped" not in figures
    }
    figure, axes = pyplot.subplots(figsize=(9, 5.4))
    for key, style, color, label in (
        ("bytes_per_s", "o-", "firebrick", "ring"),
        ("memcpy_bytes_per_s", "s--", "black", "memcpy, read by the other"),
        ("memcpy_alone_bytes_per_s", ":", "grey", "memcpy, not read"),
    ):
        axes.loglog(
            list(found),
            [size / found[size][key] * 1e9 for size in found],
            style,
            color=color,
            label=label,
        )
    marks = {
        **raw["machine"]["caches"],
        "half the ring": int(next(iter(found.values()))["capacity"]) // 2,
    }
    for index, (label, size) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        axes.axvline(size, color="#bdc3c7", linewidth=0.8, zorder=0)
        place = (size, 0.97 - 0.05 * (index % 2))
        axes.annotate(
            f" {label}", place, xycoords=("data", "axes fraction"), fontsize=8, color="#7f8c8d"
        )
    limits = axes.get_ylim()
    axes.set_xticks(
        [1 << power for power in range(4, 31, 4)],
        [size_of(1 << power) for power in range(4, 31, 4)],
    )
    axes.set_yticks([10**power for power in range(10)], [ns(10**power) for power in range(10)])
    axes.set_ylim(*limits)
    axes.minorticks_off()
    axes.set(xlabel="payload of a frame", ylabel="time of a frame")
    axes.set_title(
        f"From one process to another, {raw['machine']['cpu']}, {raw['machine']['cores']} CPUs",
        fontsize=10,
    )
    axes.grid(True, color="#ecf0f1")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9), frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vllm", metavar="FOLDER", help="an unpacked source of vLLM; default: the installed one"
    )
    parser.add_argument(
        "--from", dest="source", type=pathlib.Path, help="raw figures to take instead of measuring"
    )
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="the page to write into")
    parser.add_argument("--quick", action="store_true", help="only see that it works")
    options = parser.parse_args()
    start = time.monotonic()
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
