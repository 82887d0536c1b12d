# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages that SGLang imports and, on a CPU without AMX and without images, does not
call: every submodule is found, and every attribute is a mock."""

import importlib.abc
import importlib.machinery
import sys
import types
from unittest import mock


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, mock.MagicMock(name=f"{self.__name__}.{name}"))
        return vars(self)[name]


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package):
        self.package = package

    def find_spec(self, fullname, path, target=None):
        if not fullname.startswith(self.package + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def stand_in_for(package):
    sys.meta_path.append(_Submodules(package))
    sys.modules[package].__class__ = _Module
