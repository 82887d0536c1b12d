# SPDX-License-Identifier: Apache-2.0
"""SGLang's MessageQueue (shm_broadcast.py, 0.5.23) over a ring: ringcast.vllm's, with SGLang's
arguments."""

from typing import Any, List, Optional

from ringcast._group import config
from ringcast.vllm._endpoints import Sender
from ringcast.vllm.queue import Handle
from ringcast.vllm.queue import MessageQueue as _MessageQueue

__all__ = ["Handle", "MessageQueue"]


class MessageQueue(_MessageQueue):
    """One end of a queue, as a ringcast.vllm.MessageQueue."""

    _engine = "sglang"

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: Optional[List[int]] = None,
        max_chunk_bytes: int = 10 << 20,
        max_chunks: int = 10,
        connect_ip: Optional[str] = None,
    ) -> None:
        super().__init__(
            n_reader, n_local_reader, local_reader_ranks, max_chunk_bytes, max_chunks, connect_ip
        )

    @classmethod
    def create_from_process_group(  # type: ignore[override]
        cls, pg: Any, max_chunk_bytes: int, max_chunks: int, writer_rank: int = 0
    ) -> "MessageQueue":
        """Collective: this rank's end of a queue. The writer is `writer_rank`, a rank in the group.
        The queue of an elastic group goes on after a reader's death."""
        queue = super().create_from_process_group(pg, max_chunk_bytes, max_chunks, writer_rank)
        assert isinstance(queue, MessageQueue)
        if isinstance(queue._end, Sender) and config.is_elastic(pg):
            queue._end.goes_on = True
        return queue
