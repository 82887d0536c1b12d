# SPDX-License-Identifier: Apache-2.0
"""
Every example of README.md and docs/ is run by a test, or the table below says why not. An example is a fenced block of
Python, C, C++ or commands, and a block without a language that has a prompt.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = {"sh", "console", "bash", "shell"}
LANGUAGES = {"python", "c", "cpp", "c++", *COMMANDS}
# The tests that run examples: of which languages, on the pages that their PAGE or PAGES names.
RUNNERS = {
    "tests/python/test_docs.py": {"python"},
    "tests/tools/test_pages.py": {"sh", "console"},
    "tests/lint/c_guide.py": {"c", "cpp", "sh"},
}
# Page, a part of the block's text, and why no test runs the block.
NOT_RUN = [
    ("README.md", "ringcast_writer_reserve(", "an extract of examples/hello.c, which test_docs.py runs"),
    ("README.md", "$ ringcast stat", "commands of docs/cli.md, which test_pages.py runs"),
    ("docs/benchmarks.md", "ringcast.bench batch", "minutes of measuring; test_bench.py runs the command in short"),
    ("docs/benchmarks.md", "ringcast.bench cadence", "needs vLLM, and 15 minutes"),
    ("docs/c.md", "apt install", "changes the machine"),
    ("docs/c.md", "ringcast config --cflags", "needs the installed package; test_command.py compiles a program so"),
    ("docs/c.md", "make install", "changes the machine; lint_installed tests an installation"),
    ("docs/containers.md", "docker run", "needs Docker"),
    ("docs/engines.md", "make engines", "fetches engines of gigabytes"),
    ("docs/index.md", "vllm serve", "needs the engines and a model; make engines runs both"),
    ("docs/index.md", "ringcast_writer_reserve(", "an extract of examples/hello.c, which test_docs.py runs"),
    ("docs/peers.md", "make peers", "fetches peers of gigabytes"),
    ("docs/sglang.md", "sglang.launch_server", "needs SGLang and a model; make engines runs both"),
    ("docs/start.md", "apt install", "changes the machine, and needs the network"),
    ("docs/start.md", "--find-links dist", "needs the network, and a wheel of make wheels"),
    ("docs/tuning.md", "sysctl vm.nr_hugepages", "changes the machine"),
    ("docs/vllm.md", "vllm serve", "needs vLLM and a model; make engines runs both"),
    ("docs/vllm.md", "v1/completions", "needs vLLM; make engines runs requests and kills a worker"),
    ("docs/tp_model.md", "examples/tp_model.py", "minutes; test_tp_model.py runs the example in short"),
    ("docs/trace.md", "program.py", "stands for any program; test_trace.py runs one with the variable"),
    ("docs/trace.md", "bench/trace_picture.py", "draws the frame of one run, whose number differs in each run"),
]


class Block:
    def __init__(self, page, line, language, text):
        self.page, self.line, self.language, self.text = page, line, language, text

    @property
    def is_example(self):
        return self.language in LANGUAGES or (not self.language and re.search(r"^\$ ", self.text, re.M))


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.M | re.S):
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])


def pages_of(test):
    """The pages that a test names, by what it assigns to PAGE or PAGES."""
    path = ROOT / test
    if not path.exists():
        return set()
    wanted, names = ("ROOT", "MAN", "PAGE", "PAGES"), {"pathlib": pathlib, "__file__": str(path)}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id in wanted:
            exec(compile(ast.Module([node], []), test, "exec"), names)
    found = names.get("PAGES") or [names["PAGE"]]
    return {str(page.relative_to(ROOT)) if isinstance(page, pathlib.Path) else page for page in found}


def main():
    pages = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    run = {(page, language) for test, of in RUNNERS.items() for page in pages_of(test) for language in of}
    examples = [block for page in pages for block in blocks(page) if block.is_example]
    left = [block for block in examples if (block.page, block.language) not in run]
    wrong, used = 0, set()
    for block in left:
        why = [entry for entry in NOT_RUN if entry[0] == block.page and entry[1] in block.text]
        used.update(why[:1])
        if not why:
            wrong += 1
            print(f"{block.page}:{block.line}: no test runs this block ({block.language or 'without a language'})")
    for entry in NOT_RUN:
        if entry not in used and (ROOT / entry[0]).exists():
            wrong += 1
            print(f"{entry[0]}: no block with '{entry[1]}' is left out any more: take the line out of {sys.argv[0]}")
    print(f"{len(examples)} examples, {len(examples) - len(left)} of them run by tests, {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
