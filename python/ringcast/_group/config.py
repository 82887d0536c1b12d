# SPDX-License-Identifier: Apache-2.0
"""
Arguments, the environment, the rings by the environment's settings, and values that can't be sent:
the errors of each, and their texts.
"""

import errno
import math
import operator
import os
import platform
import sys
from typing import Any, Optional

import ringcast
from ringcast._options import SWITCHES, switch

# ---- Arguments and the environment ---------------------------------------------------------------


_AHEAD = 8


def whole(name: str, value: Any) -> int:
    """`value` as an int, by its __index__. TypeError: it has none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an int, not {type(value).__name__}: {value!r:.100}"
        ) from None


def choice(variable: str, *choices: str) -> str:
    """The environment's choice, by default the first of `choices`."""
    text = os.environ.get(variable) or choices[0]
    if text not in choices:
        raise ValueError(
            f"the environment's {variable} is {text!r}: it must be {' or '.join(sorted(choices))}"
        )
    return text


def _number(variable: str, kind: Any, least: float, most: float, what: str) -> Any:
    """The environment's number. None: not set."""
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"the environment's {variable} is {text!r}: it must be {what}")
    return value


def _bytes(variable: str) -> Optional[int]:
    value: Optional[int] = _number(
        variable, int, 1, math.inf, "a whole number of bytes, such as 16777216"
    )
    return value


def capacity() -> Optional[int]:
    """A ring's bytes. None: RINGCAST_CAPACITY is not set."""
    return _bytes("RINGCAST_CAPACITY")


def ahead() -> Optional[int]:
    """The most frames of a broadcast that a rank may have left to receive. None: no bound."""
    value = _number(
        "RINGCAST_AHEAD",
        int,
        0,
        (1 << 32) - 1,
        "a whole number of frames, such as 8, or 0 for no bound",
    )
    return _AHEAD if value is None else value or None


def on_death(group: Any) -> str:
    """The policy for a rank's death: as the switch of a drop-in says, else "evict" in an elastic
    group, else "fail"."""
    told = [values["on_death"] for _, values in map(switch, SWITCHES) if "on_death" in values]
    return told[0] if told else "evict" if is_elastic(group) else "fail"


def is_elastic(group: Any) -> bool:
    """
    Whether the backend of a ProcessGroup goes on without dead ranks: SGLang's --elastic-ep-backend
    mooncake.
    """
    return backend_of(group).startswith("mooncake")


def is_fake(group: Any) -> bool:
    """Whether what is in a CPU's memory would go by torch.distributed's "fake" backend."""
    try:
        return bool(group._get_backend(sys.modules["torch"].device("cpu")).name() == "fake")
    except RuntimeError:  # no backend for the CPU
        return False


def backend_of(group: Any) -> str:
    """
    The name of a ProcessGroup's backend. "": not a ProcessGroup, or one that torch.distributed does
    not know.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not isinstance(group, dist.ProcessGroup):
        return ""
    try:
        return str(dist.get_backend(group))
    except ValueError:
        return ""


def curve_is_on() -> bool:
    return choice("RINGCAST_CURVE", "1", "0") == "1"


def heartbeat_seconds() -> float:
    return _number("RINGCAST_HEARTBEAT", float, 0.01, 86400, "seconds, such as 5") or 5.0


def asks_for_pool() -> bool:
    """
    Whether tensors on a CUDA device go by the rings: by default they travel as without ringcast.
    """
    what = "a whole number of bytes, such as 268435456, or 0 for no pool"
    return bool(_number("RINGCAST_GPU_POOL_BYTES", int, 0, 1 << 40, what))


def machine() -> str:
    """The boot id: machines may share a name, and containers of a machine have different names."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


# ---- Rings ---------------------------------------------------------------------------------------


_MOST_READERS = 1024  # of one ring


def make_writer(capacity: Optional[int], readers: int, **options: Any) -> ringcast.Writer:
    """The Writer of a ring among the processes of a group or a queue. A group of many machines may
    have more readers than a ring; a ring serves those of one machine."""
    asks = asks_for_pool()
    writer = ringcast.Writer(capacity, min(readers, _MOST_READERS), wait=_wait(), **options)
    writer._takes_cuda = (
        asks  # else send() refuses tensors on a CUDA device, which the caller sends another way
    )
    return writer


def make_reader(handle: str, rank: int, spin: Optional[float] = None) -> ringcast.Reader:
    """`rank` names the reader in errors and warnings."""
    return ringcast.Reader(handle, name=name_of(rank), retain=True, wait=_wait(), spin=spin)


def queue_spin() -> Optional[float]:
    """Seconds that a wait of a queue spins, by vLLM's variable. None: not set, or RINGCAST_SPIN_US
    decides."""
    if os.environ.get("RINGCAST_SPIN_US"):
        return None
    value: Optional[float] = _number(
        "VLLM_SHM_BROADCAST_BUSY_LOOP_S", float, 0, 3600, "seconds, such as 0.002"
    )
    return value


def name_of(rank: int) -> str:
    return f"rank {rank}"


def _wait() -> str:
    """
    An engine's gaps vary by more than the default budget holds, and the engine's own queue spins on
    a whole CPU. With "balanced", RINGCAST_WAIT decides.
    """
    return "balanced" if os.environ.get("RINGCAST_WAIT") else "latency"


# ---- What can't be sent --------------------------------------------------------------------------

# Fits the smallest ring in UTF-8.
MOST_CHARACTERS = 400
# The second row is for devices; EPIPE at the sender is the end of a device's memory, not of a
# writer.
_OF_VALUES = (
    *(errno.EMSGSIZE, errno.ENOMEM, errno.ENOSPC),
    *(errno.EBUSY, errno.EIO, errno.ENODEV, errno.ENOTSUP, errno.EPIPE),
)


def is_of_value(error: BaseException, refused: bool) -> bool:
    """Whether the value can't be sent: for its type, its size or a device's failure. refused: the
    error came up where the value is encoded. False: the ring or a peer has failed, which the ring
    reports to the receivers; or a signal handler has raised the error."""
    if isinstance(error, ringcast.Error) and not isinstance(error, ringcast.PickleRefused):
        return error.errno in _OF_VALUES
    return refused and isinstance(error, Exception)


def is_ours(error: BaseException) -> bool:
    """Whether a function that ringcast has called raised the error. False: code of a value or of a
    signal handler did, which has a frame of its own in the traceback."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and str(traceback.tb_frame.f_globals.get("__name__")).startswith(
        "ringcast."
    )


def name_setting(
    error: Exception, where: str, what: str = "ring", capacity: bool = True
) -> Exception:
    """The same error; an error of size with the setting to change `where` before `what` is made.

    capacity: whether RINGCAST_CAPACITY counts there.
    """
    if not isinstance(error, ringcast.FrameTooLarge) or error.spill_bytes is None:
        return error
    too_large = str(error).partition(":")[0]
    how = f"set RINGCAST_SPILL_BYTES {where} to at least {error.spill_bytes}"
    if capacity and error.capacity is not None:
        how += f", or RINGCAST_CAPACITY to at least {error.capacity},"
    named = ringcast.FrameTooLarge(error.errno, f"{too_large}: {how} before the {what} is made")
    named.spill_bytes, named.capacity = error.spill_bytes, error.capacity
    return named


def text_of(operation: str, rank: int, error: BaseException) -> str:
    """The text of an error for the receivers: always there, and always in UTF-8."""
    try:
        why = str(error)
    except Exception:
        why = "(the error has no readable text)"
    text = f"{operation} failed at the source, rank {rank}: {type(error).__name__}: {why}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
