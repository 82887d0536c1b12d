# SPDX-License-Identifier: Apache-2.0
"""Written by tests/compat/known.py: what SGLang's code is in the known versions.

Module -> name -> hash (_syntax.py) -> versions. The hash of a class leaves out the methods with hashes of their own.
"""

from typing import Dict

KNOWN: Dict[str, Dict[str, Dict[str, str]]] = {
    "sglang.srt.utils.common": {
        "broadcast_pyobj": {"7afed72f8e2c": "0.5.21, 0.5.22, 0.5.23"},
        "point_to_point_pyobj": {"bed303910253": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.multimodal_gen.runtime.distributed.utils": {
        "broadcast_pyobj": {"763cc96be90e": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.srt.distributed.parallel_state": {
        "GroupCoordinator.broadcast_tensor_dict": {"c6b1e86c4971": "0.5.21, 0.5.22, 0.5.23"},
        "GroupCoordinator.broadcast_object": {"dc6be067772b": "0.5.21, 0.5.22, 0.5.23"},
        "GroupCoordinator.all_gather_object": {"3f82e9d3d4b3": "0.5.21, 0.5.22, 0.5.23"},
        "GroupCoordinator.barrier": {"be7a98540670": "0.5.21, 0.5.22, 0.5.23"},
        "_split_tensor_dict": {"b46c22c498d0": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.multimodal_gen.runtime.distributed.group_coordinator": {
        "GroupCoordinator.broadcast_tensor_dict": {"21451517d39f": "0.5.21, 0.5.22, 0.5.23"},
        "GroupCoordinator.broadcast_object": {"cc59c1ee0029": "0.5.21, 0.5.22, 0.5.23"},
        "GroupCoordinator.barrier": {"be7a98540670": "0.5.21, 0.5.22, 0.5.23"},
        "_split_tensor_dict": {"6f23799e341e": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.srt.distributed.device_communicators.shm_broadcast": {
        "MessageQueue": {"20af32875125": "0.5.21", "db23c73974a2": "0.5.22, 0.5.23"},
        "Handle": {"3610e06b5353": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.export_handle": {"91b05b0c4ea3": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.create_from_handle": {"520b8c206df4": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.wait_until_ready": {"682d9ff17220": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.enqueue": {"b28ccb9a9321": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.dequeue": {"b2c931768a8c": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.broadcast_object": {"d967ec9de10d": "0.5.21, 0.5.22, 0.5.23"},
        "MessageQueue.create_from_process_group": {"dc92f4acbaec": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.srt.elastic_ep.elastic_ep": {
        "_maybe_create_message_queue": {"ecb0a20b34b2": "0.5.21, 0.5.22, 0.5.23"},
        "_try_recover_world": {"0ce38d8bce8c": "0.5.21, 0.5.22, 0.5.23"},
        "_join_world_group": {"724eff2ab862": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.srt.managers.scheduler": {
        "Scheduler._process_and_broadcast_mm_inputs": {"859338337dca": "0.5.21, 0.5.22, 0.5.23"},
        "Scheduler.process_input_requests": {
            "8d3c6169e990": "0.5.21",
            "789c0573d6d3": "0.5.22",
            "ae89a00e01f7": "0.5.23",
        },
    },
    "sglang.srt.managers.mm_utils": {
        "hash_feature": {"c2c93b4bde8d": "0.5.21, 0.5.22, 0.5.23"},
    },
    "sglang.srt.managers.scheduler_components.request_receiver": {
        "SchedulerRequestReceiver._finalize_shm_features": {"630df4c326e2": "0.5.21", "5d1f356cc63e": "0.5.22, 0.5.23"},
    },
}
