# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins share: rings among the ranks of a torch.distributed group."""
