# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/scale.md: measured, predicted by scale_model.py, and written into the page.

  scale.py measure [FILE]   measures, by `ringcast perf` and on network namespaces (as root): raw figures as JSON
  scale.py predict [FILE]   prints the tables from raw figures
  scale.py page [FILE]      writes the tables into docs/scale.md, and the picture beside the page
  scale.py all              measure and page; 2 to 4 minutes on 2 CPUs, and nothing else should run

FILE is docs/scale.json unless given.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import time

import scale_model as model
from measured import fill
from scale_picture import draw
from scale_tables import BLOCKS, READERS, RELAYED, SIZES

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "build/bin/ringcast"
RAW = ROOT / "docs/scale.json"
PAGE = ROOT / "docs/scale.md"
PICTURE = "scale.svg"

ASLEEP = [1, 2, 4, 8, 16, 32]
PLAN = dict(zip(RELAYED, (150, 100, 50)))  # messages of each size
GIGABIT = 10**9
# Way, machines, readers on each but the first, bits a second of the writer's link.
RUNS = [
    *(("zmq", machines, 1, None) for machines in (2, 4, 8)),
    *(("zmq", machines, 2, None) for machines in (2, 8)),
    *(("zmq", machines, 1, GIGABIT) for machines in (2, 8)),
    *((way, machines, 1, None) for way in ("curve", "torch") for machines in (2, 4, 8)),
]


# ---- Measuring ------------------------------------------------------------------------------------------------------


def say(text):
    print(f"scale: {text}", file=sys.stderr, flush=True)


def perf(name, *options):
    command = [TOOL, "perf", name, *options, "--format", "json"]
    say(" ".join(str(word) for word in command[1:]))
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"scale: {done.stderr.strip()}")
    return json.loads(done.stdout)


def only(found, *keys):
    return {key: found[key] for key in keys}


def run_on_machines(way, machines, each, rate):
    import scale_machines

    say(f"{way}, {machines} machines, readers on each: {each}" + (f", {rate:g} bit/s" if rate else ""))
    plan = [(size, count) for size, count in PLAN.items() if not rate or size == model.LONG]
    found = scale_machines.run(way, machines, each, plan, rate)
    return {"way": way, "machines": machines, "each": each, "rate": rate, "found": found}


def measure():
    import scale_machines
    from ringcast.bench import report

    if reason := scale_machines.machines.why_not():
        sys.exit(f"scale: {reason}")
    raw = {"date": datetime.date.today().isoformat(), "machine": report.machine()}
    raw["latency"] = {
        size: only(perf("latency", "--size", size, "--seconds", 3), "one_way_ns", "line_ns") for size in SIZES
    }
    raw["burst"] = {
        size: perf("scale", "--size", size, "--readers", 1, "--seconds", 1)["scale"][0]["writer_ns_per_frame"]
        for size in SIZES
    }
    raw["stream"] = {
        size: {
            readers: perf("throughput", "--size", size, "--readers", readers, "--seconds", 1.5)["frames_per_s"]
            for readers in READERS
        }
        for size in SIZES
    }
    raw["wake"] = {
        readers: only(perf("wake", "--readers", readers, "--seconds", 1), "commit_us", "slowest_us")
        for readers in ASLEEP
    }
    raw["machines"] = [run_on_machines(*run) for run in RUNS]
    return json.loads(json.dumps(raw))  # keys become strings, as in a file


# ---- The page and the picture ---------------------------------------------------------------------------------------


def written(raw, text):
    """The page's text with the tables of these figures."""
    return fill(text, {f"scale-{name}": block(raw) for name, block in BLOCKS.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["measure", "predict", "page", "all"])
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=RAW, metavar="FILE")
    options = parser.parse_args()
    start = time.monotonic()
    if options.command in ("measure", "all"):
        raw = measure()
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in raw.items())
        options.file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        say(f"measured in {time.monotonic() - start:.0f} s; raw figures in {options.file}")
    raw = json.loads(options.file.read_text(encoding="utf-8"))
    if options.command == "predict":
        print("\n\n".join(f"{name}\n\n{block(raw)}" for name, block in BLOCKS.items()))
    elif options.command in ("page", "all"):
        PAGE.write_text(written(raw, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        draw(raw, PAGE.parent / PICTURE)
        say(f"written: {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main()
