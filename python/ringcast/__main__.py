# SPDX-License-Identifier: Apache-2.0
"""
The command line: `python -m ringcast` is the program `ringcast` of this installation, with the same
arguments.

`python -m ringcast config` prints what a C program needs to use the library inside the package:

    cc hello.c -o hello $(python -m ringcast config --cflags --libs)
"""

import argparse
import os
import re
import shutil
import signal
import sys
from importlib import metadata
from typing import List, Optional

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_OPTIONS = {
    "cflags": "the compiler's flags",
    "libs": "the linker's flags, with the library's place as an rpath",
    "includedir": "the folder of the headers",
    "libdir": "the folder of libringcast.so and libringcast.a",
    "pkgconfigdir": "the folder for PKG_CONFIG_PATH",
    "cmakedir": "the folder for CMake: -Dringcast_DIR=...",
    "mandir": "the folder for MANPATH",
}


def _installed(path: str) -> Optional[str]:
    """Where pip has put a file whose path in the environment, such as bin/ringcast, is given."""
    try:
        files = metadata.files("ringcast") or []
    except metadata.PackageNotFoundError:
        files = []
    places = [
        os.path.normpath(str(file.locate())) for file in files if str(file).endswith(f"/{path}")
    ]
    places.append(os.path.join(os.path.dirname(_PACKAGE), path))  # pip install --target
    return next((place for place in places if os.path.exists(place)), None)


def _config(arguments: List[str]) -> None:
    parser = argparse.ArgumentParser(
        "python -m ringcast config", description="How to compile and link C programs."
    )
    for name, text in _OPTIONS.items():
        parser.add_argument(f"--{name}", dest="asked", action="append_const", const=name, help=text)
    asked = parser.parse_args(arguments).asked
    if not asked:
        parser.error("choose at least one option")
    include, lib = os.path.join(_PACKAGE, "_c", "include"), os.path.join(_PACKAGE, "_c", "lib")
    if not os.path.isdir(lib):
        sys.exit(
            f"{_PACKAGE} has no C library: if CMake has installed one, use pkg-config --cflags "
            f"--libs ringcast"
        )
    odd = re.search(r"[^\w/.+@%=~-]", _PACKAGE)
    if odd and {"cflags", "libs"}.intersection(asked):
        sys.exit(
            f"flags can't name {_PACKAGE}, which has {odd[0]!r}: use CMake with the folder that "
            f"--cmakedir prints"
        )
    page = _installed("share/man/man1/ringcast.1")
    found = {
        "cflags": f"-I{include}",
        "libs": f"-L{lib} -Wl,-rpath,{lib} -lringcast",
        "includedir": include,
        "libdir": lib,
        "pkgconfigdir": os.path.join(lib, "pkgconfig"),
        "cmakedir": os.path.join(lib, "cmake", "ringcast"),
        "mandir": os.path.dirname(os.path.dirname(page)) if page else None,
    }
    if "mandir" in asked and not page:
        sys.exit(
            "this build of ringcast has no man pages: they are made where lowdown is installed"
        )
    print(*(found[name] for name in asked))


def main() -> None:
    if sys.argv[1:2] == ["config"]:
        return _config(sys.argv[2:])
    program = _installed("bin/ringcast") or shutil.which("ringcast")
    if program is None:
        sys.exit(
            "the program `ringcast` is neither in this installation of the package nor on PATH: "
            "install the package"
        )
    sys.stdout.flush()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and exec would pass that on
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(program, ["ringcast", *sys.argv[1:]])


if __name__ == "__main__":
    main()
