# SPDX-License-Identifier: Apache-2.0
"""
Tensors of a real GPU through the Python package, between processes: a plain script, as there may be
no pytest.

Each probe runs in a process of its own, with a time limit, and leaves one line of JSON, as
tests/gpu_scenarios does: {"probe", "result", "why", "figures"}. What a probe needs and is not here
makes it "skipped". That nothing goes by the pool is a failure, unless GPU_PROBE_INLINE has the
reason, of doctor, why not.

tensors.py [--after FILE] [NAME...]; --after: not those that FILE has a line of, which an earlier
run has left.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback

import array_probes
import torch_probes
from probe import FIGURES, LIMIT, Skipped

PROBES = [*torch_probes.PROBES, *array_probes.PROBES]


def run_here(name):
    result, why = "ok", ""
    try:
        next(probe for probe in PROBES if probe.__name__ == name)()
    except Skipped as reason:
        result, why = "skipped", str(reason)
    except Exception as error:
        result, why = "failed", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    print(json.dumps({"probe": name, "result": result, "why": why, "figures": FIGURES}), flush=True)


def run_apart(name):
    """Its line; a process that hangs is killed with all that it has started."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--here", name],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    result, why, printed = "crashed", "", ""
    try:
        printed, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        result, why = "timeout", f"not done within {LIMIT:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in printed.splitlines() if line.startswith('{"probe"')]
    if lines:
        return json.loads(lines[-1])
    return {
        "probe": name,
        "result": result,
        "why": why or f"status {process.returncode}",
        "figures": {},
    }


def main(names):
    if names[:1] == ["--here"]:
        run_here(names[1])
        return 0
    # So that what was started is killed first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bad, before = 0, ""
    if names[:1] == ["--after"]:
        with contextlib.suppress(OSError), open(names[1], encoding="utf-8") as file:
            before = file.read()
        names = names[2:]
    for probe in PROBES:
        if names and probe.__name__ not in names or f'{{"probe": "{probe.__name__}", ' in before:
            continue
        line = run_apart(probe.__name__)
        print(json.dumps(line), flush=True)
        bad += line["result"] not in ("ok", "skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
