# SPDX-License-Identifier: Apache-2.0
"""Written by tests/compat/known.py: what vLLM's code is in the known versions.

Module -> name -> hash (_syntax.py) -> versions. The hash of a class leaves out the methods with hashes of their own.
"""

from typing import Dict

KNOWN: Dict[str, Dict[str, Dict[str, str]]] = {
    "vllm.distributed.device_communicators.shm_broadcast": {
        "Handle": {"733457f4e697": "0.30.0, 0.31.0", "3114facea5c8": "0.32.0, 0.33.0"},
        "MessageQueue.__init__": {"18cd77edc71e": "0.30.0, 0.31.0", "c3b12c8ee909": "0.32.0, 0.33.0"},
        "MessageQueue.export_handle": {"91b05b0c4ea3": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "MessageQueue.create_from_handle": {"eb4741002338": "0.30.0, 0.31.0", "4cd497e81ef5": "0.32.0, 0.33.0"},
        "MessageQueue.wait_until_ready": {"682d9ff17220": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "MessageQueue.shutdown": {"4f18d227e119": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "MessageQueue.enqueue": {"27dc3dd5d362": "0.30.0, 0.31.0", "2f8c65a8b2d9": "0.32.0, 0.33.0"},
        "MessageQueue.dequeue": {"99cc0ca0031b": "0.30.0, 0.31.0", "c002b095de37": "0.32.0, 0.33.0"},
        "MessageQueue.broadcast_object": {"fd75c0f4d59a": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "MessageQueue.create_from_process_group": {"5cd120d2eb05": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "MessageQueue.create_from_process_group_single_reader": {"65e241c82e43": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "MessageQueue": {"2bd33f794cb9": "0.30.0, 0.31.0", "82e038fedf26": "0.32.0", "c2abf9942892": "0.33.0"},
    },
    "vllm.distributed.parallel_state": {
        "GroupCoordinator.broadcast": {"bb1f32b2b706": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.broadcast_object": {"dc6be067772b": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.broadcast_object_list": {"354ab76f70de": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.broadcast_tensor_dict": {"c6b1e86c4971": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.send_object": {"cef96f05263d": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.recv_object": {"fa10549e7d55": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.isend_object": {"82e2336e729b": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.send_tensor_dict": {"d03bd290f3b8": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.isend_tensor_dict": {"28d4c03c6c1b": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.recv_tensor_dict": {"5eb3d2c5fcb1": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator.irecv_tensor_dict": {"f4547adf8619": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "GroupCoordinator._should_use_all_gather": {"2259ae809616": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
        "_split_tensor_dict": {"b46c22c498d0": "0.30.0, 0.31.0, 0.32.0, 0.33.0"},
    },
    "vllm.v1.executor.multiproc_executor": {
        "WorkerProc.worker_busy_loop": {"42b8058e6323": "0.32.0", "aae8f4dd627c": "0.33.0"},
        "WorkerProc._execute_worker_rpc": {"9e6766315597": "0.32.0", "cfff88fc4bb6": "0.33.0"},
    },
}
