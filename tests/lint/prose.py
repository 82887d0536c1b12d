# SPDX-License-Identifier: Apache-2.0
"""
Measures how plainly each folder's prose reads, and holds it against the figures below, which only go down.

Prose is comments and longer strings in C, docstrings and comments in Python, and Markdown without its code. Counted per
folder: the share of pronouns and demonstratives in the words, and "who", "nobody" and their like in 1,000 words. Plain
technical English names its subject; in the C libraries that CONTRIBUTING.md names as models these are 3 to 4 % and
fewer than 1.

    prose.py            a folder above its figure fails, and so does one so far below it that the figure should follow
    prose.py --lower    lowers the figures to what is there and 0.2
"""

import pathlib
import re
import sys

from repository import ROOT, files

# Folder or file: pronouns in 100 words, "who" and "nobody" in 1,000 words; at most.
ALLOWED = {
    "include": (4.4, 0.3),
    "ring": (3.9, 0.5),
    "shm": (3.5, 1.0),
    "channel": (5.1, 0.7),
    "gpu": (4.4, 0.7),
    "python/extension": (4.1, 0.3),
    "python/ringcast": (5.3, 0.7),
    "tools": (5.4, 0.1),
    "bench": (2.2, 0.0),
    "examples": (3.6, 0.0),
    "docs": (3.6, 0.3),
    "README.md": (4.4, 0.2),
    "CONTRIBUTING.md": (3.9, 1.6),
    "CHANGELOG.md": (3.3, 0.2),
    "RELEASING.md": (3.5, 0.2),
    "SECURITY.md": (4.4, 0.2),
    "tests/unit": (11.0, 4.1),
    "tests/process": (11.2, 5.5),
    "tests/python": (10.1, 4.7),
    "tests/support": (10.3, 2.1),
    "tests/fuzz": (12.4, 6.2),
    "tests/tools": (8.5, 0.0),
    "tests/lint": (10.6, 9.1),
    "tests/fake_cuda": (13.1, 5.5),
    "tests/gpu": (10.4, 1.5),
    "tests/compat": (10.8, 2.8),
    "tests/engines": (7.4, 0.2),
}

SLACK = 0.3, 1.0  # how far below its figures a folder may be before they must follow
ME = "tests/lint/prose.py"

PRONOUNS = set(
    """
    it its itself they them their theirs he him his she her that this these those such one ones who whom whose whoever
    whatever whichever what nobody somebody anybody everybody everyone someone anyone none other others another
""".split()
)
WHO = {"who", "whom", "whose", "whoever", "nobody", "somebody", "anybody", "everybody"}
SUFFIXES = (".c", ".h", ".hpp", ".cc", ".py", ".pyi", ".md")


def prose_of(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`]*`", " x ", text, flags=re.S)
    if path.suffix in (".py", ".pyi"):
        return "\n".join(re.findall(r'""".*?"""', text, flags=re.S) + re.findall(r"(?m)(?:^|\s)#[^\n]*", text))
    comments = re.findall(r"/\*.*?\*/|//[^\n]*", text, flags=re.S)
    comments = [re.sub(r"^\s*\*+", " ", comment, flags=re.M) for comment in comments]
    return "\n".join(comments + [s for s in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text) if s.count(" ") > 3])


def sentences(text):
    """The words, in lower case, of each sentence of six words or more."""
    text = re.sub(r"[`*_|/#\"]+|->", " ", text)
    for sentence in re.split(r"(?<=[.;:!?])\s+|\n\s*\n|\n\s*[-•]", text):
        words = re.findall(r"[A-Za-z']+", sentence)
        if len(words) > 5 and "SPDX" not in sentence:
            yield [word.lower() for word in words]


def measure(paths):
    """Pronouns in 100 words, and "who" and its like in 1,000."""
    words = pronouns = who = 0
    for path in paths:
        for sentence in sentences(prose_of(path)):
            words += len(sentence)
            pronouns += sum(word in PRONOUNS for word in sentence)
            who += sum(word in WHO for word in sentence)
    return round(100 * pronouns / max(words, 1), 1), round(1000 * who / max(words, 1), 1)


def files_of(folder):
    return [ROOT / name for name in files(folder) if name.endswith(SUFFIXES)]


def lower(found):
    """Rewrites the figures of this file."""
    path = pathlib.Path(__file__)
    text = path.read_text(encoding="utf-8")
    for folder, allowed in ALLOWED.items():
        lowered = tuple(min(round(share + 0.2, 1), most) for share, most in zip(found[folder], allowed))
        text = text.replace(f'"{folder}": {allowed},', f'"{folder}": {lowered},')
    path.write_text(text, encoding="utf-8")


def main():
    measured = {folder: measure(files_of(folder)) for folder in ALLOWED}
    if sys.argv[1:] == ["--lower"]:
        lower(measured)
        return 0
    wrong = 0
    for folder, allowed in ALLOWED.items():
        what = ("% pronouns", "words in 1,000 are who, nobody, ...")
        for share, most, slack, of in zip(measured[folder], allowed, SLACK, what):
            if share > most:
                wrong += 1
                print(f"{folder}: {share} {of}, at most {most}: name the subjects (the reader, the writer's process)")
            elif share < most - slack - 1e-9:
                wrong += 1
                print(f"{folder}: {share} {of}, {most} are allowed: run {ME} --lower")
    print(f"{len(ALLOWED)} folders, {wrong} figures wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
