# SPDX-License-Identifier: Apache-2.0
"""A ring, of a module of its own: what is found out once of torch is found out anew."""

import contextlib
import gc
import importlib.util


class Link:
    """A ring to oneself, of a module that has not looked for torch yet."""

    def __init__(self):
        spec = importlib.util.find_spec("ringcast._ringcast")
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.writer = self.module.Writer(1 << 22)
        self.reader = self.module.Reader(self.writer.handle)

    def __call__(self, value):
        self.writer.send(value, 0)
        return self.reader.recv(0)

    def close(self):
        self.reader.close()
        self.writer.close()


@contextlib.contextmanager
def linked():
    link = Link()
    try:
        yield link
    finally:
        link.close()
        del link
        gc.collect()
