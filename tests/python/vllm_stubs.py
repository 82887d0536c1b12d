# SPDX-License-Identifier: Apache-2.0
"""
vLLM's modules as stubs, with the names and signatures that install() looks for, and nothing else.
"""

import importlib
import inspect
import sys

import ringcast.vllm._install as ins

QUEUES = "vllm.distributed.device_communicators.shm_broadcast"
GROUPS = "vllm.distributed.parallel_state"
EXECUTOR = "vllm.v1.executor.multiproc_executor"
NEWEST, OLDEST = -1, 0


def stub(name, which):
    """
    A function or method with the signature that SIGNATURES has, the newest or the oldest of them.
    """
    signature = ins.SIGNATURES[name][which]
    static = "" if signature.startswith("(self") else "    @staticmethod\n"
    return f"{static}    def {name.partition('.')[2]}{signature}: return 'vllm'\n"


def sources(which):
    def methods(owner):
        return "".join(stub(name, which) for name in ins.SIGNATURES if name.startswith(owner + "."))

    fields = ins.SIGNATURES["Handle"][which][1:-1].split(", ")
    (attributes,) = ins.SIGNATURES["GroupCoordinator"]
    return {
        "vllm.__init__": "__version__ = '0.33.0+cpu'\n",
        QUEUES: (
            "from dataclasses import dataclass\n@dataclass\nclass Handle:\n"
            + "".join(f"    {field}: object = None\n" for field in fields)
            + f"class MessageQueue:\n{methods('MessageQueue')}"
        ),
        GROUPS: (
            "class GroupCoordinator:\n"
            + "".join(f"    {name}: object\n" for name in attributes[1:-1].split(", "))
            + methods("GroupCoordinator")
        ),
        EXECUTOR: (f"from {QUEUES} import Handle, MessageQueue, MessageQueue as Queue\n"),
        "vllm.v1.late": f"from {QUEUES} import MessageQueue\n",
        "vllm.stateless": (
            f"from {GROUPS} import GroupCoordinator\nclass Stateless(GroupCoordinator):\n"
            "    def broadcast_object(self, obj=None, src=0): return 'stateless'\n"
            "class Grandchild(Stateless): pass\nclass Plain(GroupCoordinator): pass\n"
        ),
    }


def write(folder, modules):
    for name, text in modules.items():
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for parent in file.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def package(tmp_path, monkeypatch):
    """
    For a fixture. Makes the package: make(modules) -> the folder. At the end vLLM is as it was, and
    not loaded.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ins, "_warned", False)

    def make(modules):
        write(tmp_path, modules)
        importlib.invalidate_caches()
        return tmp_path

    try:
        yield make
    finally:
        ins.uninstall()
        forget()
        assert not [
            finder for finder in sys.meta_path if type(finder).__module__.startswith("ringcast")
        ]


def state():
    """All that install() could change: who holds what by which name, and what is in which class."""
    modules = [
        module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "vllm"
    ]
    found = {}
    for module in modules:
        for name, value in vars(module).items():
            if not name.startswith("__"):
                found[module.__name__, name] = value
                if inspect.isclass(value) and value.__module__.startswith("vllm."):
                    found.update(
                        {(value.__qualname__, key): inner for key, inner in vars(value).items()}
                    )
    return found


def load(*names):
    return [importlib.import_module(name) for name in names]


def ringcast_queue():
    import ringcast.vllm

    return ringcast.vllm.MessageQueue
