# SPDX-License-Identifier: Apache-2.0
"""Event loops for the tests: asyncio's own, and uvloop's where it is installed."""

import asyncio
import os

import pytest
from peers import WATCHDOG

try:
    import uvloop
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    uvloop = None

LOOPS = [
    "asyncio",
    pytest.param(
        "uvloop", marks=pytest.mark.skipif(uvloop is None, reason="uvloop is not installed here")
    ),
]


def new_loop(kind):
    return uvloop.new_event_loop() if kind == "uvloop" else asyncio.SelectorEventLoop()


if uvloop is not None:
    new_loop("uvloop").close()  # the first one opens a pipe that the process keeps


def run_in(loop, coroutine):
    return loop.run_until_complete(asyncio.wait_for(coroutine, WATCHDOG))


def run(kind, coroutine):
    """In a loop of its own, at whose end nothing may be left in it."""
    loop = new_loop(kind)
    try:
        return run_in(loop, coroutine)
    finally:
        loop.close()


async def waits(owner, tasks=1):
    """Until so many tasks wait for a Reader or Writer, and the descriptor is in the loop."""
    while not (owner._watch and owner._watch.registered and len(owner._watch.line) == tasks):
        await asyncio.sleep(0)


async def is_let_go(owner):
    """Until the descriptor, for which nobody waits, is not in the loop any more."""
    assert not owner._watch.line
    while owner._watch.registered:
        await asyncio.sleep(0)


def is_out_of(loop, fd):
    return not loop.remove_reader(fd)  # whether there was anything to remove


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)
