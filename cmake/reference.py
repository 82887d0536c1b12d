# SPDX-License-Identifier: Apache-2.0
"""
The reference of the C API, from the comments in include/ringcast/*.h: man pages, and the pages of
the site.

reference.py man FOLDER LOWDOWN   man pages of section 3: one for each comment that describes
                                  functions; the comment's other functions, and the structs that
                                  they take, have a page that sources it

The headers are regular: a comment at column 0 describes the declarations that follow without an
empty line, and "---- Title ----" begins a section. docs_hooks.py calls page().
"""

import pathlib
import re
import subprocess
import sys
import textwrap

INCLUDE = pathlib.Path(__file__).resolve().parents[1] / "include" / "ringcast"
PUBLIC = "RINGCAST_API "
NAME = re.compile(
    r"\b(ringcast_\w+)\(|^(?:struct|enum) (\w+) \{|^#define (\w+)|^typedef [^(]*?\*?(\w+);", re.M
)
CODE = re.compile(
    r"`[^`]+`|\b(?:ringcast|RINGCAST)_\w+(?:\(\))?|\bringcast/\w+\.h\b|-E[A-Z0-9]{2,}\b|\boptions\.\w+"
)


class Group:
    """A comment, and the declarations that it describes."""

    def __init__(self, header, section, comment):
        self.header, self.section, self.comment, self.code = header, section, comment, []

    @property
    def functions(self):
        return [NAME.search(code)[1] for code in self.code if code.startswith(PUBLIC)]

    @property
    def names(self):
        found = (NAME.search(code) for code in self.code)
        return [next(filter(None, match.groups())) for match in found if match]


def plain(comment):
    """The text of a comment, without its stars."""
    text = re.sub(r"^/\*+ ?|\s*\*/$", "", comment.strip())
    return "\n".join(re.sub(r"^ \* ?", "", line).rstrip() for line in text.split("\n")).strip("\n")


def declared(code):
    """A declaration as the reference shows it: functions without their bodies."""
    return re.sub(r"\s*\{.*", ";", code, flags=re.S) if code.startswith("static inline") else code


def read(name):
    """The text atop a header, and its groups."""
    text = (INCLUDE / f"{name}.h").read_text(encoding="utf-8")
    body = re.sub(
        r"^#(?!define RINGCAST_(?!API|\w+_H$)).*\n|^extern \"C\".*\n|^}\n(?=#endif)",
        "",
        text,
        flags=re.M,
    )
    top, section, groups = None, "", []
    for block in re.split(r"\n\s*\n(?!  )", body.split("\n", 1)[1]):
        block = block.strip("\n")
        while block:
            comment = re.match(r"/\*.*?\*/\n?", block, re.S)
            if title := re.match(r"/\* -{4} (.*?) -+ \*/\n?", block):
                section, block = title[1], block[title.end() :]
                continue
            block = block[comment.end() :] if comment else block
            if comment and top is None:
                top = plain(comment[0])
                continue
            group = Group(name, section, plain(comment[0]) if comment else "")
            code, rest = re.match(r"(.*?)(?=^/\*|\Z)(.*)", block, re.S | re.M).groups()
            parts = re.split(
                r"(?<=[;}])\n(?=[^\s}])|\n(?=RINGCAST_API|static inline)", code.strip()
            )
            group.code = [declared(part) for part in parts if part]
            groups.append(group)
            block = rest
    return top, groups


def headers():
    """{header: (text, groups)}, ringcast.h first."""
    names = sorted(
        (path.stem for path in INCLUDE.glob("*.h")), key=lambda name: (name != "ringcast", name)
    )
    return {name: read(name) for name in names}


# ---- Markdown ------------------------------------------------------------------------------------


def words(text):
    """A text of a comment, its names as code."""
    out, end = [], 0
    for match in CODE.finditer(text):
        out += [
            re.sub(r"([\\*_<>\[\]#|])", r"\\\1", text[end : match.start()]),
            f"`{match[0].strip('`')}`",
        ]
        end = match.end()
    return "".join(out) + re.sub(r"([\\*_<>\[\]#|])", r"\\\1", text[end:])


def block(lines):
    """Lines without an empty one between them: code, or a paragraph and the list below it."""
    if all(line.startswith("    ") for line in lines):
        return "```c\n" + textwrap.dedent("\n".join(lines)) + "\n```"
    items = [["", ""]]  # [term, text]
    for line in lines:
        term = re.match(r"  (- |-E[A-Z0-9, E-]+? {2,}|[A-Z]\w* {2,})(\S.*)", line)
        if term:
            items.append([term[1].strip(), term[2]])
        elif items[-1][0] and not line.startswith("   "):
            items.append(["", line])
        else:
            items[-1][1] += " " + line.strip()
    shown = {"": "{text}", "-": "- {text}"}
    return "\n\n".join(
        shown.get(term, "{term}\n: {text}").format(term=words(term), text=words(text.strip()))
        for term, text in items
        if text
    )


def markdown(comment):
    return "\n\n".join(
        block(part.split("\n")) for part in re.split(r"\n\s*\n", comment) if part.strip()
    )


def page(name, top, groups):
    """The page of a header."""
    out, section = [f"# ringcast/{name}.h", markdown(top)], ""
    for group in groups:
        if group.section != section:
            section = group.section
            out.append(f"## {section}")
        if group.names:
            shown = ", ".join(f"`{each}`" for each in group.names[:4]) + ", ..." * (
                len(group.names) > 4
            )
            out.append(f"### {shown} {{#{group.names[0]}}}")
            out.append("".join(f'<a id="{other}"></a>' for other in group.names[1:]))
            out.append("```c\n" + "\n".join(group.code).replace(PUBLIC, "") + "\n```")
        out.append(markdown(group.comment))
    return "\n\n".join(filter(None, out)) + "\n"


# ---- Man pages -----------------------------------------------------------------------------------


def manual(group, types, near):
    """The man page of a group, as Markdown for lowdown."""
    first = re.split(r"[.:;](?:\s|$)", re.sub(r"\s+", " ", group.comment))[0].replace("`", "")
    code = "\n".join(code for code in group.code if code.startswith(PUBLIC)).replace(PUBLIC, "")
    out = [
        f"# NAME\n\n{', '.join(group.functions)} - {first[:1].lower()}{first[1:]}".replace(
            "_", r"\_"
        )
    ]
    out.append(f"# SYNOPSIS\n\n```\n#include <ringcast/{group.header}.h>\n\n{code}\n```")
    out.append(f"# DESCRIPTION\n\n{markdown(group.comment)}")
    if types:
        out.append("# TYPES\n\n```\n" + "\n\n".join(types.values()) + "\n```")
    also = "".join(f"**{name}**(3), ".replace("_", r"\_") for name in near)
    out.append(
        f"# SEE ALSO\n\n{also}**ringcast**(7), which lists the errors that all functions share"
    )
    return "\n\n".join(out) + "\n"


def write_man(folder, lowdown):
    folder.mkdir(parents=True, exist_ok=True)
    version = re.search(
        r'RINGCAST_VERSION +"(.*)"', (INCLUDE / "version.h").read_text(encoding="utf-8")
    )[1]
    groups = [group for _, found in headers().values() for group in found]
    structs = {}
    for group in groups:
        for code in group.code:
            if match := re.match(r"(?:struct|enum) (\w+) \{", code):
                structs[match[1]] = code
    described = [group for group in groups if group.functions]
    for group in described:
        used = dict.fromkeys(re.findall(r"(?:struct|enum) (\w+)", "\n".join(group.code)))
        types = {name: structs[name] for name in used if name in structs}
        near = [
            name
            for other in described
            for name in other.functions
            if other.section == group.section
        ]
        first, *others = group.functions
        command = [
            lowdown,
            "-s",
            "-t",
            "man",
            "--parse-no-intraemph",
            "--out-no-smarty",
            "-m",
            f"title={first}",
        ]
        command += [
            "-m",
            "section=3",
            "-m",
            f"source=ringcast {version}",
            "-o",
            str(folder / f"{first}.3"),
        ]
        text = manual(group, types, [name for name in near if name not in group.functions][:8])
        subprocess.run(command, input=text, text=True, check=True)
        for other in [*others, *types]:
            if not (folder / f"{other}.3").exists():
                (folder / f"{other}.3").write_text(f".so man3/{first}.3\n", encoding="utf-8")


if __name__ == "__main__":
    write_man(pathlib.Path(sys.argv[2]), sys.argv[3])
