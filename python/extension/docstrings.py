# SPDX-License-Identifier: Apache-2.0
"""Writes the extension's docstrings as C macros: docstrings.py ringcast/_ringcast.pyi
build/docstrings.h

The stub is the only source of signatures and docstrings. A function `f`, a class `C` and its member
`m` that have a docstring there become RC_DOC_f, RC_DOC_C and RC_DOC_C_m, and RC_DOCS lists all as
{"C_m", RC_DOC_C_m}. Before the docstring of a function, a method, and a class with a __new__ stands
the signature in CPython's form, for inspect.signature and help().
"""

import ast
import os
import sys


def signature(node: ast.FunctionDef, name: str, receiver: str) -> str:
    """
    The line that CPython takes __text_signature__ from. `receiver`: "$module", "$self", or "" for a
    class.
    """
    arguments = node.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    words = ast.unparse(arguments).split(", ")
    if receiver != "$module":
        del words[0]  # self or cls
    return f"{name}({', '.join(filter(None, [receiver, *words]))})\n--\n\n"


def is_property(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(decorator, ast.Name) and decorator.id == "property"
        for decorator in node.decorator_list
    )


def documented(tree: ast.Module):
    """(macro, text) of all that has a docstring."""
    for node in tree.body:
        text = (
            ast.get_docstring(node) if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else None
        )
        if isinstance(node, ast.FunctionDef) and text:
            yield node.name, signature(node, node.name, "$module") + text
        if not isinstance(node, ast.ClassDef):
            continue
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        made = [signature(method, node.name, "") for method in methods if method.name == "__new__"]
        if text:
            yield node.name, "".join(made) + text
        for method in methods:
            text = ast.get_docstring(method)
            if text:
                head = "" if is_property(method) else signature(method, method.name, "$self")
                yield f"{node.name}_{method.name}", head + text


def literal(text: str) -> str:
    """A C string, one line of the source for each line of the text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    lines = escaped.split("\n")
    pieces = [line + "\\n" for line in lines[:-1]] + lines[-1:]
    return " \\\n".join(f'  "{piece}"' for piece in pieces)


def main(stub: str, header: str) -> None:
    with open(stub, encoding="utf-8") as file:
        tree = ast.parse(file.read(), stub)
    made = [f"/* Made by docstrings.py of {os.path.basename(stub)}. */\n"]
    texts = dict(documented(tree))
    made += [f"#define RC_DOC_{name} \\\n{literal(text)}\n" for name, text in texts.items()]
    made.append(
        "#define RC_DOCS \\\n  "
        + ", \\\n  ".join(f'{{"{name}", RC_DOC_{name}}}' for name in texts)
        + "\n"
    )
    with open(header, "w", encoding="utf-8") as file:
        file.write("\n".join(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
