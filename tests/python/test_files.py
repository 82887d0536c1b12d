# SPDX-License-Identifier: Apache-2.0
"""The files that ringcast writes: for their user alone, and never through what another user has put
there."""

import os
import stat

import pytest
from peers import in_a_fork
from profiles import profiled

from ringcast import _files, trace

pytestmark = pytest.mark.alike

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user takes root")
FIRST = b'{"cat":"ringcast","ph":"M","name":""}\n'


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def write_trace(folder):
    trace.start(folder / "trace.json")
    trace.stop()


def write_profile(folder):
    with profiled(folder / "a" / "b") as p:
        with p.operation("send"):
            p.clock.passes(1)
        p.step()


def write_rank(folder):
    with profiled(folder / "results", rank=3, world=4) as p:
        p.step()


@pytest.mark.parametrize("write", [write_trace, write_profile, write_rank])
def test_files_and_folders_are_for_their_user_alone(tmp_path, write):
    write(tmp_path)
    made = list(tmp_path.rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} <= {0o700}
    assert not [path for path in made if path.name.endswith(".part")]


def to_link(path):
    path.symlink_to(path.with_name("elsewhere"))


def to_pipe(path):
    os.mkfifo(path)


def to_file_of_nobody(path):
    path.write_bytes(trace.MARK)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o666)


@pytest.mark.parametrize(
    "put, says",
    [
        (to_link, "link"),
        (to_pipe, "no file"),
        pytest.param(to_file_of_nobody, "another user", marks=needs_root),
    ],
)
def test_a_trace_refuses_what_another_user_may_have_put_there(tmp_path, put, says):
    put(tmp_path / "trace.json")
    with pytest.raises(OSError, match=says):
        trace.start(tmp_path / "trace.json")
    assert not (tmp_path / "elsewhere").exists()


def test_a_trace_does_not_follow_a_link_that_comes_later(tmp_path, ring):
    file = tmp_path / "trace.json"
    trace.start(file)
    file.unlink()
    to_link(file)
    ring[0].send(1)
    with pytest.warns(RuntimeWarning, match="link"):
        trace.flush()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["profile.json", "detailed_timings.csv", "profile.json.part"])
def test_a_profile_writes_through_no_link(tmp_path, name):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / name).symlink_to(tmp_path / "precious")
    with profiled(tmp_path / "results") as p:
        p.step()
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_ranks_folder_is_no_link(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results" / "rank3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"), profiled(tmp_path / "results", rank=3, world=4) as p:
        p.step()
    assert not os.listdir(tmp_path / "elsewhere")


@needs_root
def test_another_user_holds_no_trace_up(tmp_path):
    file = tmp_path / "trace.json"
    tmp_path.chmod(0o755)
    held = trace.TraceFile(str(file), 1 << 20, FIRST)

    def child():
        os.setuid(NOBODY)
        try:
            os.open(f"/proc/self/cwd/{file.name}", os.O_RDONLY)
        except PermissionError:
            return "refused"

    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert in_a_fork(child) == "refused"
    finally:
        os.chdir(before)
        held.close()


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(KeyError), _files.replacing(str(file)) as new:
        new.write("new")
        raise KeyError
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


def test_a_trace_leaves_a_descriptor_alone_that_is_the_programs_by_now(tmp_path):
    mine = tmp_path / "mine"
    held = trace.TraceFile(str(tmp_path / "trace.json"), 1 << 20, FIRST)
    number = held.fd
    os.close(number)
    assert os.open(mine, os.O_CREAT | os.O_WRONLY) == number
    held.append(FIRST, b"," + FIRST)
    os.write(number, b"still open")
    os.close(number)
    held.close()
    assert mine.read_text() == "still open"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_file_takes_the_number_of_a_closed_stream(tmp_path, number):
    def child():
        os.close(number)
        held = trace.TraceFile(str(tmp_path / "trace.json"), 1 << 20, FIRST)
        with _files.replacing(str(tmp_path / "file")) as file:
            return held.fd > 2 and file.fileno() > 2

    assert in_a_fork(child)
