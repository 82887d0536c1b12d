# SPDX-License-Identifier: Apache-2.0
"""
What the installed package brings besides Python: the command, and a C library to compile and link
with.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import ringcast

pytestmark = [
    pytest.mark.alike,
    # the copy of the package that AddressSanitizer watches has no library in C
    pytest.mark.unwatched,
]
HELLO = pathlib.Path(__file__).parents[2] / "examples" / "hello.c"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")
IN_PLACE_OF_EXEC = """
import os, runpy, sys
modules = sys.modules
os.execv = lambda program, arguments: print(os.path.basename(program), *arguments, *{"numpy", "torch"} & set(modules))
sys.argv = ["-m", "list", "--format", "json"]
runpy.run_module("ringcast", run_name="__main__")
"""


def run(*command, **options):
    return subprocess.run(
        list(command), capture_output=True, text=True, timeout=120, check=False, **options
    )


def module(*arguments, **options):
    return run(sys.executable, "-m", "ringcast", *arguments, **options)


def config(*options):
    done = module("config", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_the_module_is_the_program_of_the_same_release():
    assert module("--version").stdout == f"ringcast {ringcast.__version__}\n"


def test_output_and_exit_status_are_the_programs():
    done = module("list", "--no-such-option")
    assert (
        done.returncode == 2
        and "--no-such-option" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_the_program_ends_quietly_when_the_output_is_closed():
    theirs, ours = os.pipe()
    os.close(theirs)
    with os.fdopen(ours, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "ringcast", "--help"], stdout=output, timeout=120, check=False
        )
    assert done.returncode == -signal.SIGPIPE


def test_the_module_imports_neither_numpy_nor_torch():
    assert (
        run(sys.executable, "-c", IN_PLACE_OF_EXEC).stdout
        == "ringcast ringcast list --format json\n"
    )


def put_program(folder, text):
    folder.mkdir()
    (folder / "ringcast").write_text(f"#!/bin/sh\necho {text}: $1\n")
    (folder / "ringcast").chmod(0o755)


def test_without_metadata_the_program_is_beside_the_package_or_on_path(tmp_path):
    package = pathlib.Path(ringcast.__file__).parent
    shutil.copytree(
        package, tmp_path / "ringcast", ignore=shutil.ignore_patterns("_c", "__pycache__")
    )
    # -S: no site-packages, whose metadata would be found
    start = [sys.executable, "-S", "-m", "ringcast"]
    options = {"env": {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path / "elsewhere")}}
    done = run(*start, "list", **options)
    assert done.returncode == 1 and done.stderr.startswith("the program `ringcast` is neither ")
    put_program(tmp_path / "elsewhere", "on PATH")
    assert run(*start, "list", **options).stdout == "on PATH: list\n"
    put_program(tmp_path / "bin", "beside")
    assert run(*start, "list", **options).stdout == "beside: list\n"
    done = run(*start, "config", "--libs", **options)
    assert done.returncode == 1 and "has no C library" in done.stderr


@needs_a_compiler
def test_a_program_in_c_is_compiled_and_runs(tmp_path):
    program = tmp_path / "hello"
    done = run(COMPILER, str(HELLO), "-o", str(program), *config("--cflags", "--libs"))
    assert (done.returncode, done.stderr) == (0, "")
    assert run(str(program)).stdout.splitlines() == [
        "received step 0",
        "received step 1",
        "received step 2",
    ]


@pytest.mark.parametrize("character", [" ", ",", ":"])
def test_flags_are_refused_in_a_folder_whose_name_would_break_them(tmp_path, character):
    folder = tmp_path / f"a{character}b"
    shutil.copytree(pathlib.Path(ringcast.__file__).parent, folder / "ringcast")
    for option, status in (("--cflags", 1), ("--libs", 1), ("--cmakedir", 0)):
        done = run(sys.executable, "-m", "ringcast", "config", option, cwd=folder)
        assert done.returncode == status, done
        assert status == 0 or (repr(character) in done.stderr and "--cmakedir" in done.stderr)


def test_the_folders_hold_what_they_are_named_for():
    include, lib, pkgconfig, cmake = map(
        pathlib.Path, config("--includedir", "--libdir", "--pkgconfigdir", "--cmakedir")
    )
    assert (include / "ringcast" / "ringcast.h").is_file() and (
        cmake / "ringcast-config.cmake"
    ).is_file()
    assert (lib / "libringcast.a").is_file() and f"Version: {ringcast.__version__}" in (
        pkgconfig / "ringcast.pc"
    ).read_text().split("\n")


def test_the_man_pages_are_there_or_the_reason_is_told():
    done = module("config", "--mandir")
    page = pathlib.Path(done.stdout.strip()) / "man1" / "ringcast.1"
    assert page.is_file() if done.returncode == 0 else "where lowdown is installed" in done.stderr


def test_config_without_an_option_is_refused():
    done = module("config")
    assert (done.returncode, done.stdout) == (2, "") and "choose at least one option" in done.stderr
