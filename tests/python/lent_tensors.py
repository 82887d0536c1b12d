# SPDX-License-Identifier: Apache-2.0
"""What the tests of lent tensors (test_device_lend.py, test_device_loans.py) lend, and have run in their processes."""

import gc

import device_peers as peers
import numpy as np
from device_peers import COPIES
from peers import WATCHDOG

LARGE = np.arange(700000, dtype=np.float64)  # more than the pool has, and the ring
SMALL = np.arange(24, dtype=np.float32).reshape(4, 6)
LITTLE = {"capacity": peers.MEGABYTE, "gpu_pool_bytes": 2 * peers.MEGABYTE, "spill_bytes": 0}


def lend(state, array, name="x", ordinal=0):
    """Keeps what is lent in the Loan alone."""
    tensor = state["torch"].segment(array, ordinal)
    state.setdefault("loans", {})[name] = state["writer"].lend(tensor)
    state.setdefault("parts", {})[name] = tensor.shape, tensor.dtype, tensor.data_ptr()


class Pointer:
    """Memory that somebody else keeps."""

    def __init__(self, address, ordinal=0):
        self.pointer, self.device = address, ordinal


def part(state, name="x", how=None):
    """A tensor over it that does not keep it."""
    shape, kind, address = state["parts"][name]
    tensor = state["torch"].Tensor._made(Pointer(address), kind, shape, state["torch"]._strides(shape))
    return tensor.as_strided(how["shape"], how["strides"], how.get("offset", 0)) if how else tensor


def send_of(state, values, others=None, timeout=WATCHDOG):
    """values: {key: (name, how)}. The copies that the writer has made for it."""
    made = {key: part(state, *value) for key, value in values.items()}
    before = peers.calls(*COPIES)
    state["writer"].send({**made, **(others or {})}, timeout)
    return [now - then for now, then in zip(peers.calls(*COPIES), before)]


def loan_do(state, what, *args, name="x"):
    return getattr(state["loans"][name], what)(*args)


def loan_is(state, what, name="x"):
    return getattr(state["loans"][name], what)


def prepare(state):
    return state["reader"].prepare_gpu()


def segments(state):
    """How many there are."""
    gc.collect()
    torch = state["torch"]
    return sum(type(thing) is torch._Segment for thing in gc.get_objects())


def forget(state):
    state.pop("loans", None)
    state.pop("parts", None)
    gc.collect()


def close_loans(state):
    for loan in state.get("loans", {}).values():
        loan.close(WATCHDOG)
    forget(state)


def close_reader(state):
    state.pop("reader").close()


def view(state):
    with state["reader"].view(WATCHDOG) as value:
        state["kept"] = value["x"]
    return {"x": peers.seen(state.pop("kept"))}


def synchronize(state):
    state["torch"].cuda.synchronize()


def imports(state):
    return peers.live("imports")


def raises_timeout(state, what, timeout, name="x"):
    try:
        loan_do(state, what, timeout, name=name)
    except TimeoutError as error:
        return str(error)
