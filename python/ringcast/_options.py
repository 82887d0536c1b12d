# SPDX-License-Identifier: Apache-2.0
"""The arguments of Writer(), Reader() and Tap(), checked, as the numbers that the library takes."""

import math
import operator
import os
import re
from typing import Any, Dict, Optional, Tuple

MEMORY = ("auto", "hugetlb", "shmem-huge", "pages")
_NUMA = ("local", "none", "interleaved")
_NUMA_NODE = 3
_POLICIES = ("fail", "evict")
_WAITS = ("balanced", "latency", "power")
_STARTS = ("next", "latest")
_MOST_TAG = (1 << 32) - 1
_MOST_BYTES = 1 << 40
_MOST_READERS = 1024
_MOST_LEASES = 64
_MOST_AHEAD = (1 << 32) - 1
_MOST_SECONDS = 3e9  # nanoseconds then fit in 64 bits
_NO_MEMORY = (1 << 64) - 1  # in place of spill_bytes and gpu_pool_bytes, where 0 is the default
_MAP_AS_SENT, _MAP_CPU, _MAP_CUDA = range(3)


def integer(name: str, value: Any, low: int, high: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value!r}")
    return number


def _bytes(name: str, value: Any) -> int:
    """None is the default, and 0 means none."""
    return 0 if value is None else integer(name, value, 0, _MOST_BYTES) or _NO_MEMORY


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = math.copysign(value, value)
    except TypeError:
        raise TypeError(
            f"{name} must be seconds as a number, or None, not {type(value).__name__}"
        ) from None
    except OverflowError:
        raise ValueError(f"{name} is out of range: {value!r}") from None
    if not seconds >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {value!r}")
    return seconds


def seconds_or_none(timeout: Any) -> Optional[float]:
    """A timeout, None for ever: also from a century on."""
    seconds = None if timeout is None else _seconds("timeout", timeout)
    return None if seconds is None or seconds > _MOST_SECONDS else seconds


def _nanoseconds(seconds: float) -> int:
    """At least 1: the library takes 0 for the default."""
    return max(int(seconds * 1e9), 1)


# What the switch of an engine's drop-in may say after 1 or strict, as in
# RINGCAST_VLLM=1,on_death=evict.
SWITCHES: Dict[str, Dict[str, Tuple[str, ...]]] = {
    "RINGCAST_VLLM": {"on_death": ("fail", "evict")},
    "RINGCAST_SGLANG": {"on_death": ("fail", "evict"), "share": ("local", "hash")},
}


def switch(variable: str) -> Tuple[str, Dict[str, str]]:
    """0, 1 or strict, and what follows. ValueError: anything else."""
    first, values = settings(variable, **SWITCHES[variable])
    if first not in ("", "0", "1", "strict"):
        raise ValueError(
            f"the environment's {variable} is {first!r:.40}: it must be 0, 1 or strict"
        )
    return first or "0", values


def settings(variable: str, **keys: Tuple[str, ...]) -> Tuple[str, Dict[str, str]]:
    """A variable of the environment as FIRST,key=value,...; keys: each with its values, () for any.
    ValueError: another key or value."""
    text = os.environ.get(variable, "")
    first, *rest = text.split(",")
    found = dict(part.partition("=")[::2] for part in rest)
    for key, value in found.items():
        if key not in keys or not value or keys[key] and value not in keys[key]:
            forms = [f"{name}={'|'.join(keys[name]) or '...'}" for name in keys]
            raise ValueError(
                f"the environment's {variable} is {text!r:.100}: after a comma it has "
                f"{' or '.join(forms)}"
            )
    return first, found


def _spin(value: Any) -> int:
    """None is the default, and 0 means never."""
    seconds = 0.0 if value is None else _seconds("spin", value)
    if seconds > _MOST_SECONDS:
        raise ValueError(f"spin is out of range: {value!r} seconds")
    return 0 if value is None else _nanoseconds(seconds) if seconds else -1


def _slow(value: Any) -> int:
    if value is None:
        return 0
    seconds = _seconds("slow", value)
    if not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(f"slow must be more than 0 seconds, or None for no limit, not {value!r}")
    return _nanoseconds(seconds)


def _index(name: str, value: Any, names: Tuple[str, ...]) -> int:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if value not in names:
        listed = ", ".join(map(repr, names[:-1])) + f" or {names[-1]!r}"
        if name == "wait":
            raise ValueError(f"wait is {value[:100]!r}: it must be {listed}")
        raise ValueError(f"{name} must be {listed}, not {value[:100]!r}")
    return names.index(value)


def _numa(value: Any) -> Tuple[int, int]:
    if not isinstance(value, str):
        return _NUMA_NODE, integer("numa", value, 0, (1 << 32) - 1)
    if value not in _NUMA:
        raise ValueError(
            f"numa must be 'local', 'none', 'interleaved' or the number of a node, not {value!r}"
        )
    return _NUMA.index(value), 0


def _map(location: Any) -> Tuple[int, int]:
    """Where tensors arrive, and on which device; -1: the current one."""
    if location is None:
        return _MAP_AS_SENT, -1
    text = str(location)
    if text == "cpu":
        return _MAP_CPU, -1
    match = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", text)
    if not match or int(match[1] or 0) >= 1024:
        expected = "None, 'cpu', 'cuda', 'cuda:N' or such a torch.device"
        raise ValueError(f"map_location must be {expected}, not {location!r}")
    return _MAP_CUDA, int(match[1] or -1)


def _name(value: Any) -> None:
    if not isinstance(value, (str, type(None))):
        raise TypeError(f"name must be a str or None, not {type(value).__name__}")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")


def _handle(value: Any) -> str:
    if isinstance(value, str):
        return value
    kind = type(value)
    hint = f": pass {kind.__name__.lower()}.handle" if hasattr(value, "handle") else ""
    raise TypeError(f"handle must be a str, not {kind.__name__}{hint}")


def writer(
    capacity: Optional[int] = None,
    readers: int = 64,
    *,
    memory: str = "auto",
    spin: Optional[float] = None,
    numa: Any = "local",
    spill_bytes: Optional[int] = None,
    allow_pickle: Optional[bool] = None,
    on_death: str = "fail",
    on_slow: str = "fail",
    slow: Optional[float] = None,
    gpu_pool_bytes: Optional[int] = None,
    wait: str = "balanced",
    ahead: Optional[int] = None,
    name: Optional[str] = None,
) -> Tuple[Any, ...]:
    _name(name)
    if isinstance(capacity, str):
        raise TypeError("capacity must be an int, not str; a ring's name is given as name=...")
    evicts, slow_ns = _index("on_slow", on_slow, _POLICIES), _slow(slow)
    if evicts and not slow_ns:
        raise ValueError("on_slow='evict' needs slow, the seconds that a reader may be in the way")
    return (
        0 if capacity is None else integer("capacity", capacity, 1, _MOST_BYTES),
        integer("readers", readers, 1, _MOST_READERS),
        _index("memory", memory, MEMORY),
        _spin(spin),
        *_numa(numa),
        _bytes("spill_bytes", spill_bytes),
        _index("on_death", on_death, _POLICIES),
        evicts,
        slow_ns,
        _index("wait", wait, _WAITS),
        _bytes("gpu_pool_bytes", gpu_pool_bytes),
        0 if ahead is None else integer("ahead", ahead, 1, _MOST_AHEAD),
        allow_pickle,
        name,
    )


def reader(
    handle: str,
    *,
    name: Optional[str] = None,
    spin: Optional[float] = None,
    leases: int = 1,
    allow_pickle: Optional[bool] = None,
    retain: bool = False,
    map_location: Any = None,
    wait: str = "balanced",
    classes: Any = None,
    start: str = "next",
    tag: Optional[int] = None,
) -> Tuple[Any, ...]:
    _name(name)
    _flag("retain", retain)
    starts = _index("start", start, _STARTS)
    if tag is not None and not starts:
        raise ValueError(
            "tag needs start='latest': a Reader starts at the newest frame that has the tag"
        )
    return (
        _handle(handle),
        handle,
        name,
        _spin(spin),
        integer("leases", leases, 1, _MOST_LEASES),
        retain,
        *_map(map_location),
        _index("wait", wait, _WAITS),
        starts,
        0 if tag is None else integer("tag", tag, 1, _MOST_TAG),
        allow_pickle,
        classes,
    )


def tap(
    handle: str, *, allow_pickle: Optional[bool] = None, classes: Any = None
) -> Tuple[Any, ...]:
    return _handle(handle), handle, allow_pickle, classes


# For a TypeError that Python raises itself.
writer.__qualname__, reader.__qualname__, tap.__qualname__ = (
    "Writer",
    "Reader",
    "Tap",
)
