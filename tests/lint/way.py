# SPDX-License-Identifier: Apache-2.0
"""
The way of a message: the files, with their functions, that one send or one recv runs through.

Builds the extension in FOLDER with -finstrument-functions and without inlining, sends a dict of one
array and one int a few times, so that all caches are filled, and then lists what runs in Writer.send
up to the store of the commit word, and in Reader.recv.

    way.py FOLDER
"""

import collections
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

LAST_OF_SEND = "rc_meta_make"  # in rc_ring_publish, whose last step is the store of the commit word

HOOKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

enum { MOST = 4096 };
static void *entered[MOST];
static int count, is_on;

void way_begin(void) {
  count = 0;
  is_on = 1;
}
void way_end(const char *path) {
  is_on = 0;
  FILE *file = fopen(path, "w");
  for (int i = 0; i < count; i++) {
    Dl_info info;
    if (dladdr(entered[i], &info))
      fprintf(file, "%s %#lx\n", info.dli_fname, (char *)entered[i] - (char *)info.dli_fbase);
  }
  fclose(file);
}
void __cyg_profile_func_enter(void *function, void *caller) {
  (void)caller;
  for (int i = 0; i < count; i++)
    if (entered[i] == function) return;
  if (is_on && count < MOST) entered[count++] = function;
}
void __cyg_profile_func_exit(void *function, void *caller) {
  (void)function;
  (void)caller;
}
"""


def build(folder):
    """The extension and the library that notes its calls."""
    flags = "-O0 -g -DNDEBUG -finstrument-functions"
    configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DRINGCAST_PYTHON=ON"]
    configure += ["-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_C_FLAGS={flags}"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(configure, **quiet)
    subprocess.run(["cmake", "--build", folder, "--target", "_ringcast"], **quiet)
    source = folder / "hooks.c"
    source.write_text(HOOKS, encoding="utf-8")
    hooks = folder / "hooks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", hooks, source, "-ldl"], **quiet)
    return next(folder.glob("python/_ringcast*.so")), hooks


def package(folder, extension):
    """A folder with the package as it is, but with that extension."""
    path = folder / "path"
    shutil.rmtree(path, ignore_errors=True)
    (path / "ringcast").mkdir(parents=True)
    for file in (ROOT / "python/ringcast").iterdir():
        if not file.name.startswith("_ringcast."):
            (path / "ringcast" / file.name).symlink_to(file)
    (path / "ringcast" / extension.name).symlink_to(extension)
    return path


def walk(hooks, folder):
    """In a process with both loaded: notes the calls of one send and one recv."""
    import numpy as np
    import ringcast

    noted = ctypes.CDLL(hooks)
    value = {"array": np.zeros(1000), "number": 1}
    with ringcast.Writer() as writer, ringcast.Reader(writer.handle) as reader:
        for _ in range(3):
            noted.way_begin()
            writer.send(value)
            noted.way_end(f"{folder}/send".encode())
            noted.way_begin()
            reader.recv()
            noted.way_end(f"{folder}/recv".encode())


def functions(extension, noted):
    """The functions of each file, in the order in which they were entered first."""
    lines = [line.split() for line in noted.read_text(encoding="utf-8").splitlines()]
    addresses = [offset for path, offset in lines if path.endswith(extension.name)]
    found = subprocess.run(
        ["addr2line", "-f", "-e", extension, *addresses], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    files = collections.defaultdict(list)
    last = len(found) if noted.name == "recv" else found.index(LAST_OF_SEND) + 2
    for name, place in zip(found[:last:2], found[1:last:2], strict=True):
        file = pathlib.Path(place.rsplit(":", 1)[0]).resolve()
        is_python = name.lstrip("_").startswith("Py")  # an inline function of Python's headers
        if file.is_relative_to(ROOT) and not is_python:
            files[file.relative_to(ROOT).as_posix()].append(name)
    return files


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    if len(sys.argv) > 2:
        walk(sys.argv[2], folder)
        return
    extension, hooks = build(folder)
    path = package(folder, extension)
    environment = dict(os.environ, LD_PRELOAD=str(hooks), PYTHONPATH=str(path))
    subprocess.run([sys.executable, __file__, folder, hooks], check=True, env=environment)
    for way in ["send", "recv"]:
        files = functions(extension, folder / way)
        print(f"{way}: {len(files)} files")
        for file, names in files.items():
            print(f"  {file}: {', '.join(names)}")


main()
