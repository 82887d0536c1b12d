# SPDX-License-Identifier: Apache-2.0
"""
What the compatibility scripts share: a peer's published sources and a Python that can import them,
in build/compat.

Nothing of it is ever committed. The Python is a virtual environment of its own; it sees what
build/venv has (torch, NumPy, ringcast) and needs no second copy. The network is used by pip alone,
and only for what is not there yet.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from typing import Dict, Iterable, List, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "compat"
DOWNLOADS = BUILD / "downloads"
PLUGIN = pathlib.Path(__file__).resolve().parent / "plugin"


def say(text: str) -> None:
    print(f"compat: {text}", flush=True)


def python() -> pathlib.Path:
    """The Python in build/compat/venv, made if it is not there."""
    venv = BUILD / "venv"
    found = venv / "bin" / "python"
    if not found.exists():
        say("making build/compat/venv")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (venv / "lib" / minor / "site-packages" / "base.pth").write_text(
            sysconfig.get_path("purelib") + "\n"
        )
    return found


def install(requirements: Iterable[str], marker: str) -> None:
    """Once for each marker."""
    done = BUILD / f".{marker}"
    wanted = "\n".join(requirements) + "\n"
    if done.exists() and done.read_text() == wanted:
        return
    say(f"installing what {marker} needs; some minutes, some GiB")
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / f"{marker}.txt"
    file.write_text(wanted)
    pip("install", "-q", "-r", str(file))
    done.write_text(wanted)


def pip(*arguments: str, **environment: str) -> None:
    command = [str(python()), "-m", "pip", *arguments]
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if result.returncode:
        print(result.stdout[-2000:], result.stderr[-4000:], sep="\n", file=sys.stderr)
        raise SystemExit(
            f"compat: {' '.join(command)} failed; without a network this can't be run the first "
            f"time"
        )


def without_lower_bounds(file: pathlib.Path) -> List[str]:
    """
    The requirements in a file. pip takes the newest there is, which on a mirror may be older than
    was asked for.
    """
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [re.sub(r">= *[0-9.a-z]+ *,? *", "", line) for line in lines if line]


def unpacked(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """
    The folder, filled from the archive if it is not there; of a tar what is in its one folder.
    """
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(partial)
        partial.rename(folder)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(
                partial, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
            )
        (inner,) = partial.iterdir()
        inner.rename(folder)
        shutil.rmtree(partial)
    return folder


def environment(*first: pathlib.Path, **more: str) -> Dict[str, str]:
    """For a process of that Python: these folders before all others on its path."""
    path = [str(folder) for folder in first] + [
        part for part in os.environ.get("PYTHONPATH", "").split(":") if part
    ]
    return {
        **os.environ,
        "PYTHONPATH": ":".join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def run_ranks(
    script: str, which: str, world: int, seconds: int, **variables: str
) -> List[Tuple[int, str, str]]:
    """
    A script of the plugin's folder as each rank of a group: status, output, errors, by rank. Into
    files: a rank that nobody reads from would stop at a full pipe, and the others wait for it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ranks = []
        for rank in range(world):
            command = [
                str(python()),
                str(PLUGIN / script),
                which,
                str(folder / "store"),
                str(rank),
                str(world),
            ]
            with (
                open(folder / f"{rank}.out", "w") as out,
                open(folder / f"{rank}.err", "w") as errors,
            ):
                ranks.append(subprocess.Popen(command, env=variables, stdout=out, stderr=errors))
        try:
            for process in ranks:
                process.wait(seconds)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return [
            (
                process.returncode,
                (folder / f"{rank}.out").read_text(),
                (folder / f"{rank}.err").read_text(),
            )
            for rank, process in enumerate(ranks)
        ]
