# SPDX-License-Identifier: Apache-2.0
"""
SGLang's broadcasts among the ranks of one machine, through shared memory. docs/sglang.md tells all.

    import ringcast.sglang
    ringcast.sglang.install()          # in each process of SGLang; or RINGCAST_SGLANG=1

broadcast_pyobj and broadcast_tensor_dict have the contracts of SGLang's functions of the same names
(August 2026), and install() replaces SGLang's functions. For multimodal inputs: share_hash has each
feature hashed by one of the ranks, which all have the features; share_once has one rank compute,
and all other ranks get the tensors and the hashes.
"""

try:
    import numpy  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"ringcast.sglang needs {error.name}: python -m pip install {error.name}"
    ) from error

import ringcast
from ringcast.sglang._install import install, uninstall
from ringcast.sglang.pyobj import broadcast_pyobj, broadcast_tensor_dict
from ringcast.sglang.sharing import Shared, SharedHashes, feature_hash, share_hash, share_once

# Where pickles are turned off, frames may name SGLang's own classes.
ringcast.allow("sglang")

__all__ = [
    "Shared",
    "SharedHashes",
    "broadcast_pyobj",
    "broadcast_tensor_dict",
    "feature_hash",
    "install",
    "share_hash",
    "share_once",
    "uninstall",
]
