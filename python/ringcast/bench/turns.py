# SPDX-License-Identifier: Apache-2.0
"""Ways of doing the same, measured in turns: whatever else the machine does meets all of them alike."""

import gc
import time
from typing import Any, Callable, Dict, List

TURNS = 40  # of each way, in the time that there is
LEAST = 2  # rounds of a turn
UNCOUNTED = 2  # turns that warm up, and tell how many rounds fill a turn


class Failed(Exception):
    """A measurement can't go on; the text says what is known."""


def in_turns(ways: Dict[str, Callable[[int], Any]], seconds: float) -> Dict[str, List[Any]]:
    """What each way(rounds) gave, turn by turn, for some `seconds` in all; at least one turn of each. The number of
    rounds is such that the ways get the same time."""
    share = seconds / TURNS / len(ways)
    rounds = dict.fromkeys(ways, LEAST)
    results: Dict[str, List[Any]] = {name: [] for name in ways}
    order = list(ways)
    gc.collect()
    end = time.perf_counter() + seconds
    turn = 0
    while turn <= UNCOUNTED or time.perf_counter() < end:
        for name in order:
            start = time.perf_counter()
            result = ways[name](rounds[name])
            took = time.perf_counter() - start
            if turn >= UNCOUNTED:
                results[name].append(result)
            rounds[name] = max(LEAST, int(rounds[name] * min(100.0, share / took)))
        order.reverse()
        turn += 1
    return results
