# SPDX-License-Identifier: Apache-2.0
"""The page of all error texts (docs_hooks.py): read from the sources, for users who search one."""

import ast
import builtins
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Functions that take the text of an error; what they raise or return is an argument before it.
CALL = re.compile(r"\b(?:rc_fail|rc_py_raise|rc_py_refuse|PyErr_Format|PyErr_SetString|fail)\w*\(")
STRING = r'"(?:[^"\\\n]|\\.)*"'
TEXT = re.compile(rf"{STRING}(?:\s*(?:PRI\w+|RINGCAST_\w+|{STRING}))*")
WHAT = re.compile(r"-E[A-Z0-9]+\b|\bPyExc_(\w+)|\b(?:rc_py_)?errors?[.>-]+(\w+)")
FORMAT = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]*)?(?:hh|h|ll|l|z|j|t)?[a-zA-Z]")
TOP = """# All errors

The texts of the library's errors, by folder: `...` stands for what differs. In C a function returns
the code, and `ringcast_last_error()` gives the text; Python raises an exception with it
([python.md](../python.md)). What to do about the frequent ones:
[troubleshooting.md](../troubleshooting.md).
"""


def arguments(text, start):
    """The text from `start` to the parenthesis that closes the call."""
    depth = 1
    for found in re.finditer(rf"{STRING}|[()]", text[start:]):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return text[start : start + found.start()]
    return ""


def of_c(path):
    """(what, text) of each error of a C file."""
    source = path.read_text(encoding="utf-8")
    for call in CALL.finditer(source):
        inside = arguments(source, call.end())
        found = TEXT.search(inside)
        if not found:
            continue
        text = re.sub(r"\s*PRI\w+\s*", '"d"', found[0])
        text = re.sub(r"\s*RINGCAST_\w+\s*", '"..."', text)
        text = "".join(ast.literal_eval(part) for part in re.findall(STRING, text))
        what = WHAT.search(inside[: found.start()])
        what = next(filter(None, what.groups()), what[0]) if what else ""
        yield what, FORMAT.sub("...", text)


def text_of(node):
    """The text of an expression, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) or "..." for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        left = text_of(node.left)
        right = text_of(node.right) if isinstance(node.op, ast.Add) else ""
        return left and FORMAT.sub("...", left) + (right or "...") * isinstance(node.op, ast.Add)
    return None


def of_python(path):
    """(what, text) of each `raise` of a Python file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else None
        if not isinstance(call, ast.Call) or not call.args:
            continue
        for text in filter(None, map(text_of, call.args)):
            yield ast.unparse(call.func).rpartition(".")[2], text


def is_for_users(text, what, own):
    """Whether it is a sentence, with an error that has a public name; `own`: exceptions.py."""
    public = what.startswith("-E") or hasattr(builtins, what) or f"class {what}(" in own
    return len(text.replace(".", "").split()) > 2 and (public or (not what and len(text) > 20))


def page():
    """The text of the page."""
    own = (ROOT / "python/ringcast/exceptions.py").read_text(encoding="utf-8")
    out = [TOP]
    for folder in ("ring", "shm", "channel", "gpu", "python/extension", "python/ringcast"):
        rows = set()
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.suffix in (".c", ".h"):
                rows.update((text, what) for what, text in of_c(path))
            elif path.suffix == ".py":
                rows.update((text, what) for what, text in of_python(path))
        rows = {
            (" ".join(text.split()), what) for text, what in rows if is_for_users(text, what, own)
        }
        if not rows:
            continue
        out.append(f"## {folder}\n\n| text | error |\n|---|---|")
        for text, what in sorted(rows, key=lambda row: row[0].lower()):
            text = re.sub(r"([|\\`*_<>\[\]])", r"\\\1", text)
            out.append(f"| {text} | {f'`{what}`' if what else ''} |")
        out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    print(page())
