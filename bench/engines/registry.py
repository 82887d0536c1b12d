# SPDX-License-Identifier: Apache-2.0
"""The engines. Each is a module engine_NAME, with

VERSION               the version that run.sh installs VARIABLE              the environment
variable that puts ringcast in place (1) or does not (0) VARIABLES             the rest of the
environment of its processes, beside COMMON SEGMENTS              by way a pattern: the names in
/dev/shm that the engine itself leaves behind, for other uses than
                      ringcast's
SCRIPTS               parts that this engine alone has: {part: script}, called as session.py is,
without cases WITHOUT               parts of run.py, left out start(model)          an engine that
runs the model with RANKS ranks, in the calling process:
    .generate(prompts, tokens, each_step=None) -> Generation; calls each_step(steps so far)
    .workers() -> the process ids of its ranks, in their order
    .errors -> names of errors that generate() may raise when a rank is killed; not if WITHOUT
    .error_seconds -> the engine's own timeout, beyond which it hangs
    .close()

An engine's module imports its engine in functions alone, so that run.py can read the rest without
it.
"""

import dataclasses
import importlib
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ["vllm", "sglang"]
WAYS = {"own": "0", "ringcast": "1"}
RANKS = 2


@dataclasses.dataclass
class Generation:
    tokens: list  # of each prompt: the token ids
    began: float  # time.perf_counter() when the prompts were handed over
    arrivals: list  # time.perf_counter() of each step's output


def cpus(count):
    """For each rank a CPU of its own, as far as there are enough: "0|1"."""
    usable = sorted(os.sched_getaffinity(0))
    return "|".join(str(usable[rank % len(usable)]) for rank in range(count))


COMMON = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
    "SPT_NOENV": "1",  # setproctitle would write over the environment, by which processes are found
}


def engine(name):
    return importlib.import_module(f"engine_{name}")


def environment(name, way):
    of = engine(name)
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **COMMON, "PYTHONPATH": path, **of.VARIABLES, of.VARIABLE: WAYS[way]}
