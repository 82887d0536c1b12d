# SPDX-License-Identifier: Apache-2.0
"""
Tries a wheel in a new virtual environment of the Python that runs this; cmake/wheels-test.sh calls
it in a clean Debian. Each step is a line with its seconds, and the output of a step that fails is
shown. Exit status 0: none failed.

inside.py DIST WHERE [--torch VERSION] [--tests]
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the packages of the tests are for is in pyproject.toml; those without a wheel for this Python
# are left out.
FOR_TESTS = ["pytest", "hypothesis", "msgspec", "xxhash", "uvloop"]
# As in cmake/pythons.sh --codec: neither groups of processes, which need torch, nor devices, nor
# the repository's own.
NOT_RUN = """_device _torch_ _vllm_ _dropins _sglang _machines _share_once _tp_workers _bench _docs _typing _warm
             _peers _engines _profile _tp_model _pipeline"""

WITHOUT_NUMPY = """
import os, subprocess, sys, ringcast
camera = f"camera.{os.getpid()}"
with ringcast.Writer(1 << 20, name=camera) as writer, ringcast.Reader(writer.handle, name="screen") as reader:
    writer.send({"step": 7, "image": b"x" * 1000}, 3, hash="xxh3")  # only with xxHash inside
    program = [sys.executable, "-m", "ringcast"]
    for command in (["list"], ["stat", camera], ["top", "--once"]):
        said = subprocess.run([*program, *command], check=True, capture_output=True, text=True).stdout
        assert camera in said, said
    assert reader.recv(3)["step"] == 7 and "numpy" not in sys.modules
"""
DROP_INS = """
import ringcast.vllm, ringcast.trace, ringcast.profile
try:
    import torch
except ImportError:
    torch = None
for name in ("ringcast.torch", "ringcast.sglang"):
    try:
        __import__(name)
    except ImportError as error:
        assert torch is None and str(error) == f"{name} needs torch: python -m pip install torch", error
    else:
        assert torch
"""
TWO_RANKS = """
import torch
import torch.distributed as dist
from ringcast.torch import broadcast_tensor_dict

dist.init_process_group("gloo")
batch = {"ids": torch.arange(8), "step": 7} if dist.get_rank() == 0 else None
batch = broadcast_tensor_dict(batch, src=0)
assert batch["ids"].tolist() == list(range(8)) and batch["step"] == 7
dist.barrier()  # no rank leaves while another rank receives
dist.destroy_process_group()
"""


class Trial:
    def __init__(self, folder):
        self.folder, self.bin = folder, folder / "venv" / "bin"
        self.seconds, self.failed, self.steps = 0.0, [], 0

    def step(self, name, *command, check=None, **environment):
        start = time.monotonic()
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        taken = time.monotonic() - start
        self.seconds += taken
        self.steps += 1
        good = done.returncode == 0 and (check is None or check(done.stdout))
        if not good:
            self.failed.append(name)
            print(done.stdout[-3000:])
        print(f"  {'ok' if good else 'FAILED':6} {taken:6.1f} s  {name}", flush=True)
        return done.stdout

    def pip(self, *arguments):
        return (
            self.bin / "python",
            "-m",
            "pip",
            "-q",
            "--disable-pip-version-check",
            "install",
            *arguments,
        )

    def python(self, name, script):
        self.step(name, self.bin / "python", "-c", script)


def install(trial, dist):
    trial.step("a new virtual environment", sys.executable, "-m", "venv", trial.bin.parent)
    wheels = ("--no-index", "--find-links", dist, "--only-binary", ":all:")
    trial.step("pip install ringcast, alone", *trial.pip(*wheels, "ringcast"))


def command(trial):
    version = re.search(
        r'VERSION +"(.*)"', (ROOT / "include" / "ringcast" / "version.h").read_text()
    )[1]
    told = f"ringcast {version}\n"
    trial.step("ringcast doctor", trial.bin / "ringcast", "doctor")
    trial.step("ringcast --version", trial.bin / "ringcast", "--version", check=told.__eq__)
    trial.step(
        "the same by python -m",
        trial.bin / "python",
        "-m",
        "ringcast",
        "--version",
        check=told.__eq__,
    )
    has_liburing = re.compile('"liburing": *1').search
    trial.step(
        "liburing is inside",
        trial.bin / "ringcast",
        "doctor",
        "--format",
        "json",
        check=has_liburing,
    )
    trial.step("ringcast perf", trial.bin / "ringcast", "perf", "latency", "--seconds", "0.2")
    trial.python("messages, list, stat and top without NumPy", WITHOUT_NUMPY)
    page = trial.bin.parent / "share" / "man"
    config = (trial.bin / "python", "-m", "ringcast", "config")
    trial.step(
        "the man pages",
        *config,
        "--mandir",
        check=lambda said: said.strip() == str(page) and page.is_dir(),
    )
    trial.step("the C library", "ls", *trial.step("config", *config, "--libdir").split())


def with_numpy(trial):
    trial.step("pip install numpy", *trial.pip("--only-binary", ":all:", "numpy"))
    trial.step(
        "examples/hello.py",
        trial.bin / "python",
        "examples/hello.py",
        check=lambda said: said.count("received") == 6,
    )


def with_torch(trial, version):
    trial.step(
        f"pip install torch=={version}", *trial.pip("--only-binary", ":all:", f"torch=={version}")
    )
    file = trial.folder / "ranks.py"
    file.write_text(TWO_RANKS)
    ranks = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", file)
    trial.step(
        "broadcast_tensor_dict, two ranks",
        trial.bin / "python",
        *ranks,
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )


def package_tests(trial):
    for package in FOR_TESTS:
        done = subprocess.run(
            [str(part) for part in trial.pip("--only-binary", ":all:", package)],
            capture_output=True,
        )
        if done.returncode != 0:
            print(f"         without {package}, of which there is no wheel for this Python")
    ignored = [f"--ignore-glob=*{name}*" for name in NOT_RUN.split()]
    options = ("-q", "-p", "no:cacheprovider", "tests/python", *ignored)
    said = trial.step(
        "tests/python",
        trial.bin / "python",
        "-m",
        "pytest",
        *options,
        CI="",
        PYTHONDONTWRITEBYTECODE="1",
    )
    return re.sub(r" in [0-9.]+s.*", "", said.strip().splitlines()[-1].strip("= "))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("where")
    parser.add_argument("--torch")
    parser.add_argument("--tests", action="store_true")
    options = parser.parse_args()
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if compilers:
        sys.exit(f"not clean: there is {compilers[0]}")
    version = sys.version.split()[0]
    print(f"== {options.where}, Python {version}, without a compiler")
    with tempfile.TemporaryDirectory() as folder:
        trial, said = Trial(pathlib.Path(folder)), "no tests"
        install(trial, options.dist)
        command(trial)
        with_numpy(trial)
        if options.torch:
            with_torch(trial, options.torch)
            print(f"         {trial.seconds:6.1f} s in all, from nothing to two ranks with torch")
        trial.python("ringcast.vllm, .torch, .sglang, or what they lack", DROP_INS)
        if options.tests:
            said = package_tests(trial)
    print(
        f"RESULT {options.where}, Python {version}: {trial.steps} steps, {len(trial.failed)} "
        f"failed; {said}"
    )
    sys.exit(bool(trial.failed))


if __name__ == "__main__":
    main()
