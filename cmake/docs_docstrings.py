# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe: the house's docstrings, which are plain text, as Markdown (mkdocs.yml).

A line "name: what it is" of an argument, and a sentence "TypeError: when" of an error, become items of lists. Names of
functions and settings become code, indented lines blocks of Python; all else is text, whatever Markdown makes of it.
"""

import builtins
import inspect
import pathlib
import re

import griffe

ERRORS = {name for name, value in vars(builtins).items() if inspect.isclass(value) and issubclass(value, BaseException)}
EXCEPTIONS = pathlib.Path(__file__).resolve().parents[1] / "python" / "ringcast" / "exceptions.py"
ERRORS.update(re.findall(r"^class (\w+)", EXCEPTIONS.read_text(encoding="utf-8"), re.M))
KIND = rf"(?:ringcast\.)?(?:{'|'.join(sorted(ERRORS))})(?: \([A-Z0-9, ]+\))?"
ERROR = re.compile(rf"(?:(?<=\.\s)|^)({KIND}(?:,? (?:and|or) {KIND}|, {KIND})*):\s+", re.M)
# Where a list ends, and text goes on.
AFTER_ARGUMENTS = re.compile(r"(?<=\.)\n(?=[A-Z])")
AFTER_ERRORS = re.compile(r"(?<=\.)\s+(?=(?:Other errors|Errors as|After an|Any (?:other )?error|Arguments and)\b)")
# Names of pages, which become links, and what becomes code.
CODE = re.compile(
    r"""`[^`]+` | \bdocs/(?P<page>[\w-]+)\.md\b | "[^"\s]*" | (?<![\w.(])[A-Za-z_][\w.]*\([^()\n]*\) |
    \b[A-Za-z][\w.]*_[\w.]*\w(?:=\w+)? | \b__\w+__\b | \b[a-z]\w*\[\w+\] | \bringcast(?:\.\w+)+""",
    re.X,
)


def words(text):
    out, end = [], 0
    for match in CODE.finditer(text):
        code = match[0] if match[0][0] == "`" else f"`{match[0]}`"
        shown = f"[{match['page']}.md](../../{match['page']}.md)" if match["page"] else code
        out += [escaped(text[end : match.start()]), shown]
        end = match.end()
    return "".join([*out, escaped(text[end:])])


def escaped(text):
    return re.sub(r"([*_<>\[\]#])", r"\\\1", text)


def items(found, text, ends):
    """The text before the first match, a list of what stands after each, and the text from `ends` on."""
    found = list(found)
    out = [words(text[: found[0].start()].strip()) + "\n"] if text[: found[0].start()].strip() else []
    last = ends.search(text, found[-1].end())
    rest = text[last.end() :] if last else ""
    stops = [*(match.start() for match in found[1:]), last.start() if last else len(text)]
    out += [f"- **`{match[1]}`**: {words(text[match.end() : stop].strip())}" for match, stop in zip(found, stops)]
    return "\n".join([*out, "\n" + words(rest)] if rest else out)


def markdown(text, arguments):
    out = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        names = "|".join(map(re.escape, arguments)) or "$."
        of_arguments = re.compile(rf"(?:^|(?<=\. ))((?:{names})(?:, (?:{names}))*):\s+", re.M)
        if block.startswith("    "):
            out.append(f"```python\n{inspect.cleandoc(chr(10) + block)}\n```")
        elif of_arguments.match(block):
            out += ["**Arguments**", items(of_arguments.finditer(block), block, AFTER_ARGUMENTS)]
        elif ERROR.search(block):
            out += ["**Errors**"] * bool(ERROR.match(block)) + [items(ERROR.finditer(block), block, AFTER_ERRORS)]
        else:
            out.append(words(block))
    return "\n\n".join(out)


class PlainDocstrings(griffe.Extension):
    def on_package(self, *, pkg, **_):
        self.change(pkg)

    def change(self, obj):
        if obj.is_class and "__new__" in obj.members:  # of the stub; the signature of a class is shown of __init__
            obj.members.setdefault("__init__", obj.members.pop("__new__"))
        if obj.docstring:
            function = obj.members.get("__init__") if obj.is_class else obj
            arguments = [parameter.name for parameter in getattr(function, "parameters", ())]
            obj.docstring.value = markdown(obj.docstring.value, arguments)
        for member in obj.members.values():
            if not member.is_alias:
                self.change(member)
