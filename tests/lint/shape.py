# SPDX-License-Identifier: Apache-2.0
"""Prints the shape of the C code, room by room: something to look at, no gate.

    shape.py [FOLDER ...]     by default the core, the extension and the command line

Files, lines, the median file and the median function in lines, conditional expressions (?:) in
1,000 lines, and lines of more than 100 columns. A function begins at a line without indentation
that ends with "{", and its braces and signature count.
"""

import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["include", "ring", "shm", "channel", "gpu", "python/extension", "tools"]
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'')
FUNCTION = re.compile(
    r"^(?!struct|enum|union|static const|#)[A-Za-z_][^;={}]*\)\s*\{.*?^\}", re.M | re.S
)
ONE_LINE = re.compile(r"^(?!struct|enum|union|#)[A-Za-z_][^;={}\n]*\) \{[^\n]*\}$", re.M)


def functions(code):
    """The number of lines of each function."""
    short = ONE_LINE.findall(code)
    rest = ONE_LINE.sub("", code)
    return [1] * len(short) + [text.count("\n") + 1 for text in FUNCTION.findall(rest)]


def main():
    print("folder              files   lines  file  function    ?:  >100")
    for folder in sys.argv[1:] or FOLDERS:
        paths = sorted((ROOT / folder).rglob("*.[ch]"))
        texts = [path.read_text(encoding="utf-8") for path in paths]
        codes = [TEXT.sub('""', COMMENT.sub("", text)) for text in texts]
        lines = sum(text.count("\n") for text in texts)
        lengths = [length for code in codes for length in functions(code)] or [0]
        conditional = sum(code.count("?") for code in codes)
        long = sum(len(line) > 100 for text in texts for line in text.splitlines())
        median = statistics.median(text.count("\n") for text in texts)
        print(
            f"{folder:18}{len(paths):7}{lines:8}{median:6.0f}{statistics.median(lengths):10.0f}"
            f"{1000 * conditional / lines:6.1f}{long:6}"
        )


if __name__ == "__main__":
    main()
