# SPDX-License-Identifier: Apache-2.0
"""
Each relative link of each Markdown file leads to a file of the repository, and to a heading there if it names one, by
the rules of GitHub for the names of headings.
"""

import functools
import posixpath
import re
import sys
import urllib.parse

from repository import ROOT, files

CODE = re.compile(r"^(?:```+|~~~+)[^\n]*\n.*?^(?:```+|~~~+)$|<!--.*?-->", re.M | re.S)
INLINE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.M)
HEADING = re.compile(r"^#{1,6}\s+(.*?)(?:\s+#+)?$", re.M)
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def blank(found):
    """As many lines, without text, so that the numbers of lines stay."""
    return "\n" * found[0].count("\n")


def slug(heading):
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"(?<!\w)[*_]+|[*_]+(?!\w)|`", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@functools.cache
def anchors(path):
    """The names of the headings, the second of a name with -1 behind, and the anchors in HTML."""
    text, found, count = CODE.sub(blank, path.read_text(encoding="utf-8")), set(), {}
    for heading in HEADING.findall(text):
        name = slug(heading)
        found.add(f"{name}-{count[name]}" if name in count else name)
        count[name] = count.get(name, 0) + 1
    return found | set(ANCHOR.findall(text))


def links(path):
    """(line, address) of each link outside code"""
    text = INLINE.sub(lambda found: "x" + blank(found), CODE.sub(blank, path.read_text(encoding="utf-8")))
    for found in LINK.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1] or found[2]


def complaint(name, address, known):
    parts = urllib.parse.urlsplit(address)
    if parts.scheme:
        return None
    if parts.path.startswith("/"):
        return "an absolute path leads nowhere on the forge"
    there = posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.unquote(parts.path)))
    if not parts.path:
        there = name
    if there not in known and not any(other.startswith(there + "/") for other in known):
        return f"there is no {there}"
    if parts.fragment and there.endswith(".md") and parts.fragment not in anchors(ROOT / there):
        return f"{there} has no heading of that name"
    return None


def main():
    known, count, wrong = set(files()), 0, 0
    for name in sorted(name for name in known if name.endswith(".md")):
        for line, address in links(ROOT / name):
            count += 1
            said = complaint(name, address, known)
            if said:
                wrong += 1
                print(f"{name}:{line}: {address}: {said}")
    print(f"{count} links, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
