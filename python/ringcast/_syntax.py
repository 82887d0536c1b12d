# SPDX-License-Identifier: Apache-2.0
"""Hashes of what functions and classes do, to know the code of an engine's version again.

A hash is of the syntax tree, without what changes nothing: comments, layout, docstrings, annotations (of an assignment
in a class only the text, since a dataclass has a field for each). All versions of Python give one hash: ast.dump() does
not, as new versions add fields to nodes, which are empty in older code, and split f-strings in other places.
"""

import ast
import hashlib
import inspect
import tokenize
from typing import Any, Container, Iterator, List, Optional

_HEX_DIGITS = 12
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Of no effect, or (ctx) a consequence of the place in the tree.
_LEFT_OUT = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}


def hash_of(thing: Any, apart: Container[str] = ()) -> Optional[str]:
    """Of a function or class that is loaded. None: there is no source, or not of the wrapper that something has put
    around the function.

    apart: names of methods to leave out, which have hashes of their own."""
    try:
        source = inspect.getsource(thing)
        # A method is indented; its lines stay as they are, because a string may span several.
        (node,) = ast.parse(f"if 1:\n{source}" if source[:1].isspace() else source).body
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    node = node.body[0] if isinstance(node, ast.If) else node
    if hasattr(thing, "__wrapped__") and not getattr(node, "decorator_list", ()):
        return None
    return hash_of_tree(node, apart)


def hash_of_tree(node: ast.AST, apart: Container[str] = ()) -> str:
    """The same of a definition's syntax tree."""
    text = _written(node, False, apart)
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


def _written(node: Any, in_class: bool, apart: Container[str] = ()) -> str:
    if isinstance(node, list):
        return f"[{' '.join(_written(each, in_class) for each in node)}]"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {ascii(node.value)}"
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.AnnAssign) and not in_class:
        node = ast.Assign([node.target], node.value)  # type: ignore[arg-type]
    if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        in_class = isinstance(node, ast.ClassDef)
    fields = []
    for name, value in sorted(ast.iter_fields(node)):
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            value = [each for each in value if _does_something(each, in_class, apart)]
        elif name == "values" and isinstance(node, ast.JoinedStr):
            value = list(_joined(value))
        if name not in _LEFT_OUT and value not in (None, [], 0):
            fields.append(f"{name}={_written(value, in_class)}")
    return f"{type(node).__name__}({' '.join(fields)})"


def _does_something(statement: ast.AST, in_class: bool, apart: Container[str]) -> bool:
    if isinstance(statement, ast.Expr):
        return not (isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str))
    if isinstance(statement, ast.AnnAssign):
        return in_class or statement.value is not None
    return getattr(statement, "name", None) not in apart if in_class else True


def _joined(parts: List[ast.expr]) -> Iterator[ast.expr]:
    """An f-string's parts, adjacent texts as one."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield ast.Constant(text)
        yield part
        text = ""
    if text:
        yield ast.Constant(text)
