# SPDX-License-Identifier: Apache-2.0
"""What vLLM has for its workers, over ringcast: the same names, arguments and results.

    from ringcast.vllm import MessageQueue      # for vllm.distributed.device_communicators.shm_broadcast's
"""

from ringcast.vllm.queue import Handle, MessageQueue

__all__ = ["Handle", "MessageQueue"]
