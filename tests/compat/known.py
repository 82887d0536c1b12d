#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of the hashes of an engine's code in the known versions: python/ringcast/ENGINE/_known.py.

A maintainer's tool: first `make vllm-compat` or `make sglang-compat` has to pass for the version. All versions that the
table is to have are named, since the table is written anew. A folder has the unpacked package, or the package's wheel.

python tests/compat/known.py vllm|sglang VERSION=FOLDER...
"""

import argparse
import ast
import importlib
import pathlib
import zipfile

from ringcast._syntax import hash_of_tree

COLUMNS = 120
ROOT = pathlib.Path(__file__).resolve().parents[2]

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Written by tests/compat/known.py: what {engine}'s code is in the known versions.

Module -> name -> hash (_syntax.py) -> versions. The hash of a class leaves out the methods with hashes of their own.
"""

from typing import Dict

KNOWN: Dict[str, Dict[str, Dict[str, str]]] = {{
'''
# Functions that the replaced functions call in the engine. ringcast's functions do the same work themselves.
RELIED_UPON = ("GroupCoordinator._should_use_all_gather", "_split_tensor_dict")


def names_of_vllm():
    """Module -> the names in it."""
    from ringcast.vllm import _install as install

    groups = [name for name in install.SIGNATURES if name.startswith("GroupCoordinator.")]
    queues = [name for name in install.SIGNATURES if not name.startswith("GroupCoordinator")]
    calls = ["WorkerProc.worker_busy_loop", "WorkerProc._execute_worker_rpc"]
    return {
        install._QUEUES: [*queues, "MessageQueue"],
        install._GROUPS: [*groups, *RELIED_UPON],
        install._WORKERS: calls,
    }


def names_of_sglang():
    from ringcast.sglang import _install as install

    found = {}
    for target in install._TARGETS:
        found.setdefault(target.module, []).append(target.name)
    return found


def names_of(engine):
    return names_of_vllm() if engine == "vllm" else names_of_sglang()


def hashes(source, names):
    """Name -> hash, of those names that a module's source has."""
    found = {}
    tree = ast.parse(source)
    for name in names:
        node = tree
        for part in name.split("."):
            node = node and next((each for each in node.body if getattr(each, "name", None) == part), None)
        if node is not None:
            apart = [other[len(name) + 1 :] for other in names if other.startswith(f"{name}.")]
            found[name] = hash_of_tree(node, apart)
    return found


def table(versions, modules):
    """versions: version -> what reads the source of a module there, or None."""
    known = {}
    for version, read in versions.items():
        for module, names in modules.items():
            source = read(module)
            for name, code in hashes(source, names).items() if source is not None else ():
                known.setdefault(module, {}).setdefault(name, {}).setdefault(code, []).append(version)
    return {
        module: {
            name: {code: ", ".join(of) for code, of in known[module][name].items()}
            for name in names
            if name in known[module]
        }
        for module, names in modules.items()
        if module in known
    }


def reader(place):
    """Of a folder or wheel: module -> source."""

    def read(module):
        path = module.replace(".", "/") + ".py"
        if place.is_dir():
            return (place / path).read_text(encoding="utf-8") if (place / path).exists() else None
        with zipfile.ZipFile(place) as wheel:
            return wheel.read(path).decode() if path in wheel.namelist() else None

    return read


def unknown(engine, place):
    """Says what in a folder is of no known version."""
    modules = names_of(engine)
    found = table({"here": reader(place)}, modules)
    known = importlib.import_module(f"ringcast.{engine}._known").KNOWN
    names = [
        f"{module}.{name}"
        for module in found
        for name, codes in found[module].items()
        if not set(codes) <= set(known.get(module, {}).get(name, ()))
    ]
    return f"code of no known version: {', '.join(names)}" if names else "all code is known"


def written(engine, known):
    lines = []
    for module, names in known.items():
        lines.append(f'    "{module}": {{')
        for name, codes in names.items():
            pairs = [f'"{code}": "{of}"' for code, of in codes.items()]
            line = f'        "{name}": {{{", ".join(pairs)}}},'
            lines += (
                [line]
                if len(line) <= COLUMNS
                else [line[: line.index("{") + 1], *(f"            {pair}," for pair in pairs), "        },"]
            )
        lines.append("    },")
    return HEAD.format(engine=engine) + "\n".join(lines) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("versions", nargs="+", metavar="VERSION=FOLDER", help="oldest first")
    arguments = parser.parse_args()
    versions = {}
    for pair in arguments.versions:
        version, _, place = pair.partition("=")
        versions[version] = reader(pathlib.Path(place))
    modules, engine = names_of(arguments.engine), {"vllm": "vLLM", "sglang": "SGLang"}[arguments.engine]
    file = ROOT / "python" / "ringcast" / arguments.engine / "_known.py"
    file.write_text(written(engine, table(versions, modules)), encoding="utf-8")
    for module, names in modules.items():
        for name in names:
            codes = table(versions, modules).get(module, {}).get(name, {})
            print(f"{module}.{name}: {' | '.join(codes.values()) or 'in none'}")


if __name__ == "__main__":
    main()
