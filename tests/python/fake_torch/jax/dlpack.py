# SPDX-License-Identifier: Apache-2.0
import torch

import jax


def from_dlpack(source):
    return jax.Array(torch.from_dlpack(source))
