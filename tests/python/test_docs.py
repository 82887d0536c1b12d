# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows runs as it is written."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from needs import needs_torch

pytestmark = pytest.mark.alike

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["README.md"] + [
    f"docs/{name}.md"
    for name in (
        "asyncio",
        "dropins",
        "index",
        "profile",
        "python",
        "share_once",
        "start",
        "torch",
        "tuning",
    )
]
# Part of an example of several files.
FILE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.S | re.M)
BLOCKS = [
    pytest.param(
        match[1],
        id=f"{page}:{text.count(chr(10), 0, match.start()) + 2}",
        marks=[needs_torch] if "import torch" in match[1] else [],
    )
    for page in PAGES
    for text in [(ROOT / page).read_text(encoding="utf-8")]
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M)
    if not FILE.match(match[0])
]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def output_of(command, **options):
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("block", BLOCKS)
def test_what_the_pages_show_runs(tmp_path, block):
    file = tmp_path / "block.py"
    is_group = "init_process_group" in block
    # What broadcast_tensor_dict gives must be there on each rank.
    # Its ring is looked for by this name.
    block = block.replace('"again.0"', f'"again.{os.getpid()}"')
    file.write_text(
        block
        + ("\nassert (batch if 'batch' in dir() else inputs)['step'] == 7\n" if is_group else "")
    )
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    output_of(
        [sys.executable, *(TORCHRUN if is_group else []), file], env=environment, cwd=tmp_path
    )


def test_hello_in_python_prints_what_arrived_at_both_readers():
    lines = output_of([sys.executable, ROOT / "examples" / "hello.py"]).splitlines()
    wanted = [
        f"reader {reader} received "
        f"{{'step': {step}, 'ids': array([{step}, {step + 1}, {step + 2}, {step + 3}])}}"
        for reader in (1, 2)
        for step in range(3)
    ]
    assert sorted(lines) == wanted


def test_the_first_sender_and_receiver_print_what_the_page_shows(tmp_path):
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    for text, name in FILE.findall(page):
        text = text.replace('"hello"', f'"hello.{os.getpid()}"').replace("sleep(0.1)", "sleep(0)")
        (tmp_path / name).write_text(text)
    (shown,) = re.findall(r"^\$ python receiver.py\n(.*?)^```$", page, re.S | re.M)
    first, last = shown.split("...\n")
    steps = int(re.search(r"for step in range\((\d+)\)", page)[1])
    with subprocess.Popen(
        [sys.executable, "sender.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdout.readline() == "waiting for a receiver\n"  # the ring is there now
        received = output_of([sys.executable, "receiver.py"], cwd=tmp_path)
    assert sender.returncode == 0
    assert (
        received.startswith(first)
        and received.endswith(last)
        and len(received.splitlines()) == steps
    )


COMPILER = shutil.which(os.environ.get("CC", "cc"))


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here")
def test_hello_in_c_prints_what_arrived(tmp_path):
    sources = [
        file for folder in ("ring", "shm", "channel") for file in glob.glob(f"{ROOT}/{folder}/*.c")
    ]
    assert sources
    hello = tmp_path / "hello"
    flags = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT}",
        f"-I{ROOT}/include",
        "-pthread",
    ]
    output_of([COMPILER, *flags, ROOT / "examples" / "hello.c", *sources, "-o", hello])
    assert output_of([hello]).splitlines() == [
        "received step 0",
        "received step 1",
        "received step 2",
    ]
