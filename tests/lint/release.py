# SPDX-License-Identifier: Apache-2.0
"""What cmake/release.sh check says, in repositories made here: all is well, or a disagreement by its name."""

import pathlib
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
    ("CHANGELOG.md", "[1.2.3]", "[1.2.4]", "CHANGELOG.md: the newest release"),
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


def expect(folder, words, status, said):
    found = subprocess.run(["bash", "cmake/release.sh", *words], cwd=folder, capture_output=True, text=True)
    assert found.returncode == status and said in found.stdout + found.stderr, (words, found)


def main():
    with tempfile.TemporaryDirectory() as folder:
        repository(folder)
        expect(folder, ["check"], 0, "1.2.3 can be released")
        expect(folder, ["notes"], 0, "\nNew.\n\n")
        git(folder, "tag", "--annotate", "--message=1.2.3", "v1.2.3")
        expect(folder, ["check", "v1.2.3"], 0, "1.2.3 can be released")
        expect(folder, ["check", "v1.2.4"], 1, "the tag is v1.2.4")
    for change in DISAGREEMENTS:
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, change)
            expect(folder, ["check"], 1, change[3])
    print(f"release.sh names {len(DISAGREEMENTS)} disagreements")


if __name__ == "__main__":
    sys.exit(main())
