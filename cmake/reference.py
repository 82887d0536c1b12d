# SPDX-License-Identifier: Apache-2.0
"""The reference of the C API, made of the comments in include/ringcast/*.h.

reference.py check       complaints: a public function without a comment, or without a summary
reference.py man FOLDER LOWDOWN
                         man pages of section 3, by that lowdown: a page for each comment that describes functions; its
                         other functions, and the structs shown there first, have a page that sources it
page() is called by docs_hooks.py: a page for each header.
"""

import pathlib
import re
import subprocess
import sys
import textwrap

from headers import INCLUDE, ONLY_CODES, PUBLIC, Headers, is_function, one_line, summary

WORD = re.compile(
    r"`[^`]+`|\b(?:ringcast|RINGCAST)_\w+(?:\(\))?|\bringcast/\w+\.h\b|-E[A-Z0-9]{2,}\b|\boptions\.\w+|"
    r"(?<!\w)\*\w+|\b\w+->\w+|\b[a-z]\w*\(\w*\)"
)


# ---- Markdown --------------------------------------------------------------------------------------------------------


class Writer:
    """Turns the text of comments into Markdown. `link` gives the address of a name, or None."""

    def __init__(self, link):
        self.link = link

    def escaped(self, text):
        return re.sub(r"([\\`*_<>\[\]#|{}])", r"\\\1", text)

    def words(self, text):
        """A text of a comment, its names as code, with links."""
        out, end = [], 0
        for match in WORD.finditer(text):
            word = match[0].strip("`")
            target = self.link(word.removesuffix("()"))
            out += [self.escaped(text[end : match.start()]), f"[`{word}`]({target})" if target else f"`{word}`"]
            end = match.end()
        return "".join([*out, self.escaped(text[end:])])

    def block(self, lines, is_top):
        """One block of lines without an empty one: code, or paragraphs and lists."""
        if all(line.startswith("    ") for line in lines):
            return "```c\n" + textwrap.dedent("\n".join(lines)) + "\n```"
        items = []  # [kind, term, lines]
        for line in lines:
            dash = re.match(r"  - (.*)", line)
            term = re.match(r"  (-E[A-Z0-9, E-]+?|[A-Z]\w*)(?: {2,}| (?=and other codes))(\S.*)", line)
            lead = re.match(r"([A-Z][a-z]+(?: [a-z]+)?)\.(?= |$)(.*)", line) if is_top else None
            if dash:
                items.append(["dash", "", [dash[1]]])
            elif term:
                items.append(["term", term[1], [term[2]]])
            elif lead:
                items.append(["text", f"**{lead[1]}.** ", [lead[2]]])
            elif items and (items[-1][0] == "text" or line.startswith("   ")):
                items[-1][2].append(line)
            else:
                items.append(["text", "", [line]])
        out, before = [], None
        for kind, term, text in items:
            words = self.words(one_line("\n".join(text)))
            shown = {"dash": f"- {words}", "term": f"{self.words(term)}\n: {words}", "text": f"{term}{words}"}[kind]
            out.append(("\n" if before == kind == "dash" else "\n\n") + shown)
            before = kind
        return "".join(out).strip()

    def text(self, comment, is_top=False):
        blocks = [block.split("\n") for block in re.split(r"\n\s*\n", comment)]
        return "\n\n".join(self.block(block, is_top) for block in blocks if any(block))


def description(writer, group):
    """The comment, without the sentences that only list errors."""
    blocks = re.split(r"\n\s*\n", group.comment)
    kept = [ONLY_CODES.sub("", block).rstrip() for block in blocks]
    return writer.text("\n\n".join(block for block in kept if block.strip()))


def errors(headers, writer, group):
    found = headers.errors(group).items()
    return [(code, writer.words(said) if said else "of the kernel, unchanged") for code, said in found]


def page(headers, name):
    """The page of a header."""
    top, groups = headers.pages[name]
    writer = Writer(lambda word: address(headers, word, name))
    out, section = [f"# ringcast/{name}.h", writer.text(top, is_top=True)], ""
    for group in groups:
        if group.section != section:
            section = group.section
            out.append(f"## {section}")
        if not group.all_names:
            out.append(writer.text(group.comment))
        elif group.comment or not is_function(group.code[0]):  # else a helper of an inline function
            out += entry(headers, writer, group)
    return "\n\n".join(filter(None, out)) + "\n"


def entry(headers, writer, group):
    shown = group.functions or group.names("type") or group.names("macro")
    label = ", ".join(name.removeprefix("ringcast_") for name in shown[:2])
    title = ", ".join(f"`{name}`" for name in shown[:4]) + (", ..." if len(shown) > 4 else "")
    yield f'### {title} {{#{shown[0]} data-toc-label="{label}"}}'
    yield "".join(f'<a id="{name}"></a>' for name in group.all_names if name != shown[0])
    yield "```c\n" + "\n".join(code.replace(PUBLIC, "") for code in group.code) + "\n```"
    yield description(writer, group)
    if not group.functions:
        return
    for lead, said in (("Returns", headers.returned(group)), ("Concurrency", headers.concurrency(group))):
        yield f"**{lead}:** {writer.words(said)}" if said else ""
    rows = [f"| `{code}` | {said} |" for code, said in errors(headers, writer, group)]
    yield "\n".join(["| error | when |", "|---|---|", *rows]) if rows else ""


def address(headers, word, page_name=None):
    """Where the pages of the headers describe a name."""
    header = re.fullmatch(r"ringcast/(\w+)\.h", word)
    if header:
        return f"{header[1]}.md" if header[1] in headers.pages else None
    group = headers.of.get(word)
    if group is None or (is_function(group.code[0]) and not group.comment):
        return None
    return ("" if group.header == page_name else f"{group.header}.md") + f"#{word}"


# ---- Man pages -------------------------------------------------------------------------------------------------------


def manual(headers, group):
    """The man page of a group, as Markdown for lowdown."""
    writer = Writer(lambda word: None)
    code = "\n".join(c.replace(PUBLIC, "") for c in group.code if is_function(c))
    names = writer.escaped(", ".join(group.functions))
    out = [f"# NAME\n\n{names} - {writer.escaped(summary(group))}\n"]
    out.append(f"# SYNOPSIS\n\n```\n#include <ringcast/{group.header}.h>\n\n{code}\n```\n")
    out.append(f"# DESCRIPTION\n\n{description(writer, group)}\n")
    if types := types_of(headers, group):
        out.append("# TYPES\n\n```\n" + "\n\n".join(types.values()) + "\n```\n")
    if said := headers.returned(group):
        out.append(f"# RETURN VALUE\n\n{writer.words(said)}\n")
    if found := errors(headers, writer, group):
        out.append("# ERRORS\n\n" + "\n\n".join(f"**{code}**\n: {said}" for code, said in found) + "\n")
    if said := headers.concurrency(group):
        out.append(f"# CONCURRENCY\n\n{writer.words(said)}\n")
    also = [f"**{writer.escaped(name)}**(3)" for name in related(headers, group)] + ["**ringcast**(7)"]
    return "\n".join([*out, "# SEE ALSO\n\n" + ", ".join(also) + "\n"])


def types_of(headers, group):
    """{name: declaration} of the structs and enums that the functions of the group take."""
    code = "\n".join(c for c in group.code if is_function(c))
    used = [name for name in dict.fromkeys(re.findall(r"\bringcast_\w+", code)) if name in headers.of]
    return {name: c for name in used for c in headers.of[name].code if re.match(rf"(struct|enum) {name} {{", c)}


def related(headers, group):
    """The functions that the comment names, and those beside the group in its section."""
    at = headers.groups.index(group)
    near = [other for other in headers.groups[max(at - 3, 0) : at + 4] if other.section == group.section]
    named = re.findall(r"\bringcast_\w+", group.comment) + [name for other in near for name in other.functions]
    pages = {name for other in documented(headers) for name in other.functions}
    return [name for name in dict.fromkeys(named) if name in pages and name not in group.functions]


def documented(headers):
    """The groups that get a man page: with a public function."""
    return [group for group in headers.groups if any(code.startswith(PUBLIC) for code in group.code)]


def write_man(headers, folder, lowdown):
    version = re.search(r'RINGCAST_VERSION +"(.*)"', (INCLUDE / "version.h").read_text(encoding="utf-8"))[1]
    for group in documented(headers):
        first, *others = group.functions
        others += [name for name in types_of(headers, group) if not (folder / f"{name}.3").exists()]
        command = [lowdown, "-s", "-t", "man", "--parse-no-intraemph", "--out-no-smarty"]
        command += ["-m", f"title={first}", "-m", "section=3"]
        command += ["-m", f"source=ringcast {version}", "-o", str(folder / f"{first}.3")]
        subprocess.run(command, input=manual(headers, group), text=True, check=True)
        for other in others:
            (folder / f"{other}.3").write_text(f".so man3/{first}.3\n", encoding="utf-8")


def main(what, folder=None, lowdown=None):
    headers = Headers()
    if what == "check":
        complaints = list(headers.complaints())
        print("\n".join([*complaints, f"{len(documented(headers))} comments, {len(complaints)} complaints"]))
        return 1 if complaints else 0
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_man(headers, folder, lowdown)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
