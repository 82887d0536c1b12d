# SPDX-License-Identifier: Apache-2.0
"""
What docs/c.md shows is compiled and run, by an installed ringcast.

C and C++ with a main() are whole programs. Other blocks are statements, in a main() with a writer,
a reader of the same ring and, in C, check(); a comment `<!-- before: ... -->` above such a block is
code that runs first. A block `text` after one of them is what it prints. Blocks `cmake` are the
rest of a CMakeLists.txt, and `sh` is run beside hello.c. Blocks `console` are not run: the
installation is what lint_installed tests.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "c.md"
BLOCK = re.compile(
    r"(?:^<!-- before: ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?",
    re.S | re.M,
)
FRAME = """#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <ringcast/batch.h>
#include <ringcast/estimate.h>
#include <ringcast/frame.h>
#include <ringcast/inspect.h>
#include <ringcast/ringcast.h>

static int check(int result) {
  if (result >= 0) return result;
  fprintf(stderr, "%%s\\n", ringcast_last_error());
  exit(1);
}

int main(void) {
  ringcast_writer *writer;
  ringcast_reader *reader;
  check(ringcast_writer_create(&writer));
  check(ringcast_reader_attach(ringcast_writer_handle(writer), &reader));
  %s
  {
#line %d "%s"
%s
  }
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  return 0;
}
"""
FRAME_OF_CPP = """#include <cstdio>
#include <ringcast/ringcast.hpp>

[[maybe_unused]] static void send_logits(ringcast::writer &writer) {
  const float values[] = {3, 4};
  const std::int64_t shape[] = {2};
  ringcast_tensor tensor{values, ringcast::dtype_of<float>(), 1, shape, nullptr, 0};
  ringcast_frame_plan plan{};
  ringcast_plan_tensor(&plan, 6, 1, sizeof values);
  auto span = writer.reserve(ringcast_plan_bytes(&plan));
  ringcast_frame_builder builder;
  std::size_t bytes = 0;
  ringcast::check(ringcast_build_begin(&builder, span.data(), span.size(), &plan, RINGCAST_ROOT_DICT, 0));
  ringcast::check(ringcast_build_tensor(&builder, "logits", 6, &tensor));
  ringcast::check(ringcast_build_end(&builder, &bytes));
  span.commit(bytes, RINGCAST_KIND_TENSORS);
}

int main() {
  using namespace std::chrono_literals;
  ringcast::writer writer;
  ringcast::reader reader(writer.handle());
  %s
  {
#line %d "%s"
%s
  }
}
"""
SOURCES = [
    "CMakeLists.txt",
    "cmake",
    "include",
    "ring",
    "shm",
    "channel",
    "gpu",
    "ringcast.map",
    "docs/man",
]
PROJECT = "cmake_minimum_required(VERSION 3.22)\nproject(hello LANGUAGES C)\n"


def output_of(command, **options):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, **options
    )
    if done.returncode != 0:
        raise SystemExit(f"{command}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Guide:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        prefix = folder / "installed"
        output_of([args.cmake, "--install", args.build, "--prefix", str(prefix)])
        (pkgconfig,) = prefix.rglob("pkgconfig")
        library = str(pkgconfig.parent)
        self.environment = {
            **os.environ,
            "PKG_CONFIG_PATH": str(pkgconfig),
            "LD_LIBRARY_PATH": library,
        }
        self.environment.update(CMAKE_PREFIX_PATH=str(prefix), CC=args.cc, CFLAGS=args.cflags)
        self.flags = output_of(
            ["pkg-config", "--cflags", "--libs", "ringcast"], env=self.environment
        ).split()
        self.hello = (ROOT / "examples" / "hello.c").read_text(encoding="utf-8")

    def compile(self, line, source, *command):
        program = self.folder / f"at{line}"
        file = program.with_suffix(".c" if command[0] == self.args.cc else ".cc")
        file.write_text(source, encoding="utf-8")
        warnings = ["-Wall", "-Wextra", "-Werror"]
        output_of([*command, *warnings, str(file), "-o", str(program), *self.flags, "-pthread"])
        return output_of([str(program)], env=self.environment, cwd=self.folder)

    def c(self, line, code, before):
        if "int main(" not in code:
            code = FRAME % (before or "", line, PAGE, code)
        elif code not in self.hello:
            raise SystemExit(f"{PAGE}:{line}: this is not examples/hello.c")
        return self.compile(line, code, self.args.cc, "-std=gnu11", *self.args.cflags.split())

    def cpp(self, line, code, before):
        if "-fsanitize" in self.args.cflags or not self.args.cxx:
            print(f"SKIPPED docs_c: line {line}: no C++ compiler for the flags of this build")
            return None
        if "int main(" not in code:
            code = FRAME_OF_CPP % (before or "", line, PAGE, code)
        return self.compile(line, code, self.args.cxx, "-std=c++17")

    def cmake(self, line, code, before):
        folder = self.folder / f"cmake{line}"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(PROJECT + code, encoding="utf-8")
        (folder / "hello.c").write_text(self.hello, encoding="utf-8")
        if "ringcast.git" in code:
            self.repository(folder / "ringcast.git")
        if "add_subdirectory(ringcast)" in code:
            (folder / "ringcast").symlink_to(ROOT)
        unite = "-DCMAKE_UNITY_BUILD=ON"  # which a project around ours may have chosen
        output_of(
            [self.args.cmake, "-S", str(folder), "-B", str(folder / "build"), unite],
            env=self.environment,
        )
        output_of(
            [self.args.cmake, "--build", str(folder / "build"), "--target", "hello", "-j", "2"]
        )
        return output_of([str(folder / "build" / "hello")], env=self.environment)

    def repository(self, folder):
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, folder / name)
        git = ["git", "-C", str(folder), "-c", "user.name=nobody", "-c", "user.email="]
        for command in (
            ["init", "-q", "-b", "main"],
            ["add", "."],
            ["commit", "-q", "-m", "the sources"],
        ):
            output_of([*git, *command])

    def sh(self, line, code, before):
        (self.folder / "hello.c").write_text(self.hello, encoding="utf-8")
        shell = f'cc() {{ {self.args.cc} {self.args.cflags} "$@"; }}\n{code}'
        return output_of(["bash", "-euc", shell], env=self.environment, cwd=self.folder)


HELLO = "received step 0\nreceived step 1\nreceived step 2\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("build", "cmake", "cc", "cxx", "cflags"):
        parser.add_argument(f"--{name}", default="")
    text = PAGE.read_text(encoding="utf-8")
    run = {}
    with tempfile.TemporaryDirectory() as folder:
        guide = Guide(parser.parse_args(), pathlib.Path(folder))
        for match in BLOCK.finditer(text):
            before, language, code, wanted = match.groups()
            if language == "console":
                continue
            line = text.count("\n", 0, match.start(3)) + 1
            said = getattr(guide, language)(line, code, before)
            if language in ("cmake", "sh"):
                wanted = HELLO
            if said is not None and wanted is not None and said != wanted:
                raise SystemExit(f"{PAGE}:{line}: prints\n{said}instead of\n{wanted}")
            run[language] = run.get(language, 0) + 1
    print(
        "docs/c.md:", ", ".join(f"{count} blocks of {language}" for language, count in run.items())
    )
    fences = (
        len(re.findall(r"^```\w+$", text, re.M))
        - text.count("\n```text\n")
        - text.count("\n```console\n")
    )
    assert sum(run.values()) == fences and set(run) == {"sh", "cmake", "c", "cpp"}, (
        "a block was not run"
    )


if __name__ == "__main__":
    main()
