# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine that figures depend on, without a name of the machine."""

import glob
import importlib
import os
import pathlib
import platform
import re
from importlib import metadata


def read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def version(package):
    """The version of an installed package, or None, without an import: torch takes seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine():
    lines = (line.partition(":") for line in read("/proc/cpuinfo").splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in lines}
    kernel = re.match(r"[0-9.]*[0-9]", platform.release())
    memory = re.search(r"MemTotal: +(\d+)", read("/proc/meminfo"))
    caches = {}
    for index in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        kind, level, size = (read(f"{index}/{name}").strip() for name in ("type", "level", "size"))
        if kind != "Instruction" and size.endswith("K"):
            caches[f"L{level}"] = int(size[:-1]) << 10
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "family": cpu.get("cpu family", ""),
        "model": cpu.get("model", ""),
        "virtual": "hypervisor" in cpu.get("flags", "").split(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": caches,
        "memory_bytes": int(memory[1]) << 10 if memory else 0,
        "load_average": os.getloadavg()[0],
        "linux": kernel[0] if kernel else platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "torch")},
        "ringcast": importlib.import_module("ringcast").__version__,
    }


def told(facts):
    """The facts in one line."""
    packages = ", ".join(
        f"{name} {facts[name]}" for name in ("ringcast", "python", "numpy", "torch") if facts[name]
    )
    cores = f"{facts['cores']} CPU{'s' if facts['cores'] > 1 else ''}"
    load = f"load average {facts['load_average']:.1f}"
    return f"{cores} of {facts['cpu']}, Linux {facts['linux']}, {load}; {packages}"
