# SPDX-License-Identifier: Apache-2.0
"""
RINGCAST_PROFILE, which profiles a whole process, and the commands of python -m ringcast.profile.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from needs import needs_torch
from peers import WATCHDOG
from profiles import FILES, PICTURES, lines, named, read

from ringcast.profile import profile
from ringcast.profile.__main__ import main

pytestmark = pytest.mark.alike


def run(
    program: str,
    *arguments: Any,
    folder: Any = None,
    step: str = "",
    first: str = "",
    status: int = 0,
    **more: str,
) -> Any:
    """A new process; RINGCAST_PROFILE is the folder, and the rest. Its output and its errors."""
    environment = {name: value for name, value in os.environ.items() if name != "RINGCAST_PROFILE"}
    environment.update(more)
    if folder is not None:
        told = [f"{name}={value}" for name, value in (("step", step), ("first", first)) if value]
        environment["RINGCAST_PROFILE"] = ",".join([str(folder), *told])
    command = [sys.executable, *(["-c", program] if program else []), *map(str, arguments)]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout, ended.stderr


RING = """
import ringcast
with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
    for number in range(7):
        writer.send(number)
        reader.recv()
"""


def test_a_whole_process_is_profiled_and_written_at_its_end(tmp_path):
    assert run(RING, folder=tmp_path / "results") == ("", "")
    assert named(tmp_path / "results") in (FILES, FILES | PICTURES)
    told = read(tmp_path / "results", "comprehensive_report.json")
    by_type = told["comm_analysis"]["by_operation_type"]
    assert {name: each["count"] for name, each in by_type.items()} == {
        "ringcast.send": 7,
        "ringcast.recv": 7,
    }
    assert any("step() was never called" in note for note in told["notes"])


def test_a_named_function_ends_the_steps(tmp_path):
    (tmp_path / "engine.py").write_text(
        "class Worker:\n    def run(self, number):\n        return 10 // number\n"
    )
    program = """
import ringcast, engine
worker = engine.Worker()
assert [worker.run(number) for number in (1, 2, 3, 5)] == [10, 5, 3, 2]
try:
    worker.run(0)
except ZeroDivisionError:
    pass
"""
    for place, steps in (
        ("engine:Worker.run", 2),
        ("engine:Worker.walk", 1),
        ("engine:run", 1),
        ("other:run", 1),
    ):
        _, told = run(program, folder=tmp_path / "out", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
                      step=place)  # fmt: skip
        assert read(tmp_path / "out", "analysis_report.json")["steps"]["count"] == steps
        assert ("no step will end" in told) == (place in ("engine:Worker.walk", "engine:run"))
    _, told = run(program, folder=tmp_path / "out", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
                  step="engine.run")  # fmt: skip
    assert "step_at is module:function" in told


def test_unset_nothing_of_it_is_imported_or_replaced():
    program = f"""
import sys
{RING}
assert not [name for name in sys.modules if name.startswith("ringcast.profile")]
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("ringcast")]
"""
    for folder in None, "":
        assert run(program, folder=folder) == ("", "")


def test_a_bad_folder_is_a_warning_and_the_program_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    out, told = run(RING + "print('done')", folder=tmp_path / "file")
    assert out == "done\n" and "RINGCAST_PROFILE" in told and "there is no profile" in told


def test_results_that_cannot_be_written_are_a_warning(tmp_path):
    folder = tmp_path / "results"
    out, told = run(
        RING + f"import os\nos.rmdir({str(folder)!r})\nopen({str(folder)!r}, 'w')", folder=folder
    )
    assert "the profile is not written" in told


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "os.fork"])
def test_children_write_beside_and_those_with_nothing_to_tell_write_nothing(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, os, sys
import ringcast

def child(handle):
    if handle is not None:
        with ringcast.Reader(handle) as reader:
            assert [reader.recv() for _ in range(3)] == [0, 1, 2]

def forked(handle):
    number = os.fork()
    if number == 0:
        child(handle)
        sys.exit()
    return number

if __name__ == "__main__":
    with ringcast.Writer(1 << 20) as writer:
        if {method!r} == "os.fork":
            children = [forked(writer.handle), forked(None)]
        else:
            context = multiprocessing.get_context({method!r})
            children = [context.Process(target=child, args=(told,)) for told in (writer.handle, None)]
            [child.start() for child in children]
        writer.wait_readers(1, timeout=60)
        [writer.send(number) for number in range(3)]
        if {method!r} == "os.fork":
            assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        else:
            [child.join() for child in children]
            assert [child.exitcode for child in children] == [0, 0]
""")
    folder = tmp_path / "results"
    run("", program, folder=folder)
    (child,) = (
        path
        for path in folder.iterdir()
        if path.name.startswith("process") and has(path, "ringcast.recv")
    )
    assert {row["op_type"] for row in lines(child)} == {"ringcast.recv"} and len(lines(child)) == 3
    assert named(child) == FILES and len([path for path in folder.iterdir() if path.is_dir()]) == 2
    merged = read(folder, "comm_analysis.json")["by_operation_type"]
    assert {name: each["count"] for name, each in merged.items()} == {
        "ringcast.send": 3,
        "ringcast.recv": 3,
    }


def has(folder: Any, name: str) -> bool:
    return name in read(folder, "comm_analysis.json")["by_operation_type"]


def test_a_child_that_inherits_the_environment_of_a_rank_is_none(tmp_path):
    run(RING, folder=tmp_path, first="1", RANK="0", WORLD_SIZE="2")
    assert [path.name[:7] for path in tmp_path.iterdir()] == ["process"]


GROUP = """
import sys
import torch.distributed as dist, torch
import ringcast.torch as rt
dist.init_process_group("gloo")
for number in range(3):
    assert rt.broadcast_object(number if dist.get_rank() == 0 else None) == number
    dist.all_reduce(torch.ones(2))
store = dist.distributed_c10d._get_default_store()  # torchrun's; a rank that leaves breaks the others' calls
store.add("done", 1)
while store.add("done", 0) < 2:
    pass
dist.destroy_process_group()
"""


@needs_torch
def test_the_ranks_of_torchrun_are_merged(tmp_path):
    (tmp_path / "program.py").write_text(GROUP)
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        tmp_path / "program.py",
    ]
    run("", *torchrun, folder=tmp_path / "results", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    assert named(tmp_path / "results") >= FILES | {"rank0", "rank1"}
    found = read(tmp_path / "results", "comm_analysis.json")
    counts = {name: each["count"] for name, each in found["by_operation_type"].items()}
    assert counts["all_reduce"] == 6 and counts["ringcast.send"] == counts["ringcast.recv"] == 3
    assert found["summary"]["ranks"] == 2


SPAWNED = """
import multiprocessing, os, sys, time
import ringcast
from ringcast.profile import current

def loads():
    with current().operation("load", bytes=1):
        pass

def rank(number, store):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + store, rank=number, world_size=2)
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    loader = multiprocessing.get_context("fork").Process(target=loads)
    loader.start()
    loader.join()
    open(f"{store}.{number}", "w").close()
    while not os.path.exists(f"{store}.{1 - number}"):  # a rank that leaves breaks the other's call
        time.sleep(0.01)
    dist.destroy_process_group()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(number, sys.argv[1])) for number in range(2)]
    [each.start() for each in ranks]
    [each.join() for each in ranks]
    assert [each.exitcode for each in ranks] == [0, 0]
    print(os.getpid())
"""


@needs_torch
def test_ranks_are_known_after_their_group_is_gone_and_other_processes_are_left_out(tmp_path):
    folder = tmp_path / "results"
    for stale in "rank0", "rank7", "process1":
        profile(folder / stale, pictures=False, rank=int(stale[-1]), world=1).start().stop()
        os.utime(folder / stale / "profile.json", (1, 1))
    (tmp_path / "program.py").write_text(SPAWNED)
    launcher, _ = run(
        "", tmp_path / "program.py", tmp_path / "store", folder=folder, GLOO_SOCKET_IFNAME="lo"
    )
    told = read(folder, "comprehensive_report.json")
    summary, counts = told["comm_analysis"]["summary"], told["comm_analysis"]["by_operation_type"]
    assert (summary["ranks"], summary["steps"]) == (2, 1)
    assert counts["all_reduce"]["count"] == 6 and "load" not in counts
    assert [rank["rank"] for rank in told["analysis_report"]["ranks"]] == [0, 1]
    assert set(told["analysis_report"]["memory"]["by_rank"]) == {"0", "1"}
    loaders = [path.name for path in folder.glob("process*") if path.name != "process1"]
    assert len(loaders) == 2 and all(has(folder / loader, "load") for loader in loaders)
    note = next(note for note in told["notes"] if note.startswith("left out of the figures"))
    assert f"process {launcher.strip()}" in note and all(
        f"process {name[7:]}" in note for name in loaders
    )
    assert main(["merge", str(folder), "--no-pictures"]) == 0
    assert read(folder, "comm_analysis.json")["summary"]["ranks"] == 2, (
        "rank 7 is of an earlier run"
    )


# ---- Commands ------------------------------------------------------------------------------------


def test_a_command_does_not_profile_itself(tmp_path):
    run(RING, folder=tmp_path)
    before = (tmp_path / "profile.json").read_text()
    out, _ = run("", "-m", "ringcast.profile", "report", tmp_path, "--no-pictures", folder=tmp_path)
    assert out.startswith("# Performance report")
    assert json.loads((tmp_path / "profile.json").read_text()) == json.loads(before)
