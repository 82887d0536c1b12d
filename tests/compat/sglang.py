#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Runs SGLang's callers of broadcast_pyobj over gloo, with SGLang as it is and with ringcast in place,
and compares.

The real package's modules are used where they can be imported without a GPU: those that define
broadcast_pyobj, and communication_op. Of callers in modules that need CUDA packages, the method
itself is cut out of the file and run with its few names given; where a method does much else, its
call is made as it stands there. What each rank got is compared. Exit status 0: all cases pass, both
ways, with the same results on each rank.

python tests/compat/sglang.py [--version 0.5.23 --version ...]
"""

import argparse
import json

import fetch

from ringcast._install import TESTED

VERSIONS = TESTED["SGLang"]
# What the modules above import; SGLang's own list has everything that needs CUDA as well.
NEEDED = """IPython aiohttp dill fastapi huggingface_hub msgspec orjson pillow psutil pybase64 pydantic python-multipart
pyyaml pyzmq requests setproctitle tqdm transformers<5.21 triton uvloop"""
SECONDS = 300


def download(version):
    found = list(fetch.DOWNLOADS.glob(f"sglang-{version}-*.whl"))
    if not found:
        fetch.say(f"downloading SGLang {version}")
        fetch.pip("download", "-q", "--no-deps", "-d", str(fetch.DOWNLOADS), f"sglang=={version}")
        found = list(fetch.DOWNLOADS.glob(f"sglang-{version}-*.whl"))
    return fetch.unpacked(found[0], fetch.BUILD / f"sglang-{version}")


def run(source, which, world):
    """Case -> what it came to, by rank."""
    fetch.say(f"{world} ranks, with {which}")
    found = {}
    ranks = fetch.run_ranks("sglang_callers.py", which, world, SECONDS, **fetch.environment(source))
    for rank, (status, out, errors) in enumerate(ranks):
        for line in out.splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                found.setdefault(entry["case"], [None] * world)[rank] = entry["result"]
        if status:
            raise SystemExit(
                f"compat: rank {rank} of {world}, with {which}, ended with:\n{errors[-3000:]}"
            )
    return found


def check(version):
    """How many cases fail."""
    source = download(version)
    fetch.install(NEEDED.split(), "sglang")
    failed = 0
    for world in 2, 4:
        before, after = run(source, "sglang", world), run(source, "ringcast", world)
        for case in {**before, **after}:
            one, other = before.get(case), after.get(case)
            good = one == other and None not in (one or [None])
            failed += not good
            print(f"{case:62} {world} ranks  {'the same on each rank' if good else 'FAILED'}")
            if not good:
                print(f"  SGLang:   {one}\n  ringcast: {other}")
    result = f"FAILED: {failed}" if failed else "all results are the same"
    print(f"SGLang {version}: {result}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--version", action="append", help=f"default: {' and '.join(VERSIONS)}")
    return 1 if sum([check(version) for version in parser.parse_args().version or VERSIONS]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
