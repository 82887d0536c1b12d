# SPDX-License-Identifier: Apache-2.0
"""What cmake/release.sh check says, in repositories made here: all is well, or each disagreement by its name."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

FILES = {
    "cmake/release.sh": (ROOT / "cmake/release.sh").read_text(encoding="utf-8"),
    "include/ringcast/version.h": """#define RINGCAST_VERSION_MAJOR 1
#define RINGCAST_VERSION_MINOR 2
#define RINGCAST_VERSION_PATCH 3
#define RINGCAST_VERSION       "1.2.3"
""",
    "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.3] - 2026-11-27\n\nNew.\n\n## [1.2.2] - 2026-11-01\n\nOld.\n",
    "ringcast.map": "RINGCAST_1.1 {\n};\nRINGCAST_1.2 {\n} RINGCAST_1.1;\nRINGCAST_GPU_1.3 {\n};\n",
    "debian/changelog": "ringcast (1.2.3) unstable; urgency=medium\n",
}

# File, what is there, what comes in its place, and what is then said.
DISAGREEMENTS = [
    ("include/ringcast/version.h", "PATCH 3", "PATCH 4", "its parts are others"),
    ("CHANGELOG.md", "[1.2.3]", "[1.2.4]", "CHANGELOG.md: the newest release"),
    ("CHANGELOG.md", " - 2026-11-27", "", "CHANGELOG.md: the newest release"),
    ("CHANGELOG.md", "## [Unreleased]\n", "", "'## [Unreleased]'"),
    ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\nMore.\n", "'## [Unreleased]'"),
    ("ringcast.map", "RINGCAST_1.2 {", "RINGCAST_1.10 {", "the newest node is RINGCAST_1.10"),
    ("debian/changelog", "1.2.3", "1.2.2", "debian/changelog: the newest version"),
]


def git(folder, *words):
    subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test", *words], cwd=folder, check=True)


def repository(folder, change=None):
    for name, text in FILES.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if change and change[0] == name:
            assert change[1] in text
            text = text.replace(change[1], change[2])
        path.write_text(text, encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=all")


def run(folder, *words):
    found = subprocess.run(["bash", "cmake/release.sh", *words], cwd=folder, capture_output=True, text=True)
    return found.returncode, found.stdout + found.stderr


def expect(folder, words, status, said):
    found = run(folder, *words)
    assert found[0] == status and said in found[1], (words, found)


def main():
    with tempfile.TemporaryDirectory() as folder:
        repository(folder)
        expect(folder, ["check"], 0, "1.2.3 can be released")
        assert run(folder, "notes") == (0, "\nNew.\n\n")
        expect(folder, ["check", "v1.2.3"], 1, "not of this commit")
        git(folder, "tag", "--annotate", "--message=1.2.3", "v1.2.3")
        expect(folder, ["check", "v1.2.3"], 0, "1.2.3 can be released")
        expect(folder, ["check", "v1.2.4"], 1, "the tag is v1.2.4")
        expect(folder, ["check"], 1, "there is a tag v1.2.3 already")
        pathlib.Path(folder, "new").touch()
        expect(folder, ["check", "v1.2.3"], 1, "not clean")
        expect(folder, [], 2, "release.sh check")
    for change in DISAGREEMENTS:
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, change)
            status, said = run(folder, "check")
            assert status == 1 and change[3] in said and len(re.findall("^release: ", said, re.M)) == 1, (change, said)
    print(f"release.sh names {len(DISAGREEMENTS)} disagreements")


if __name__ == "__main__":
    sys.exit(main())
