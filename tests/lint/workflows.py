# SPDX-License-Identifier: Apache-2.0
"""
Whatever the workflows and the pages about the project's work run is there: make targets, CMake presets, scripts. So no
workflow has a second description of a step.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "docs/testing.md", ".pre-commit-config.yaml"]
CODE = re.compile(r"^ *```\w*\n(.*?)^ *```|`([^`\n]+)`", re.M | re.S)
MAKE = re.compile(r"(?:^|[\s;&|(])make +([\w-]+)(?![\w=/.])")
PRESET = re.compile(r"(?:cmake|ctest)\b[^&|;\n]* --preset ([\w-]+)")
SCRIPT = re.compile(r"(?<![\w/.])((?:cmake|tests|\.ci)/[\w/.-]*\.(?:sh|py)|\.ci/\w+)\b")


def targets():
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    return {name for line in lines if (found := re.match(r"([a-z][\w -]*):(?!=)", line)) for name in found[1].split()}


def presets():
    found = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
    return {preset["name"] for preset in found["configurePresets"]}


def filled_in(text):
    """A workflow's text, with each value that its matrices give a name."""
    for name, values in re.findall(r"^ +(\w+): \[([^]\n]+)\]", text, re.M):
        place = "${{ matrix.%s }}" % name
        for line in [line for line in text.split("\n") if place in line]:
            text += "".join("\n" + line.replace(place, value.strip(' "')) for value in values.split(","))
    return text


def commands(path):
    """The commands that a file has: the lines of a workflow, the code of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return re.sub(r"(^|\s)#.*|\bname: .*", "", filled_in(text))
    return "\n".join(block or span for block, span in CODE.findall(text))


def complaints(path, known, presets_known):
    text = commands(path)
    for name in sorted(set(MAKE.findall(text)) - known):
        yield f"make has no target {name}"
    for name in sorted(set(PRESET.findall(text)) - presets_known):
        yield f"CMakePresets.json has no preset {name}"
    for name in sorted(set(SCRIPT.findall(text))):
        if not (ROOT / name).exists():
            yield f"there is no {name}"


def main():
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    wrong = 0 if workflows else 1
    for path in workflows + [ROOT / page for page in PAGES]:
        for complaint in complaints(path, targets(), presets()):
            wrong += 1
            print(f"{path.relative_to(ROOT)}: {complaint}")
    print(f"{len(workflows)} workflows and {len(PAGES)} pages, {wrong} names wrong")
    return 1 if wrong else 0


sys.exit(main())
