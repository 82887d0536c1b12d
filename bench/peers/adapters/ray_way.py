# SPDX-License-Identifier: Apache-2.0
"""Ray: the shared-memory channel of compiled graphs.

As in Ray's documentation (docs.ray.io, "Ray Compiled Graph") and in ray/experimental/channel. Ray
makes channels between a driver and actors. The members of a group are processes of ours: rank 0
starts a Ray of the machine alone and is the driver; each reader is a further driver of the same
Ray, and registers as a reader of the channel. An actor stands in for each reader where Ray asks for
the readers' owners; no actor takes part in a message.
"""

import os
import secrets
from typing import Any

from adapters.base import Way

BUFFERS = 4  # messages in the channel
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_METRICS_EXPORT_INTERVAL_MS": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",
}


class RayChannel(Way):
    family = "ray"
    requires = ("ray",)
    seconds = 120.0
    serialiser = "own"
    note = "writer and readers are drivers of one Ray, not its actors"

    def initialize(self) -> None:
        if self.me.rank == 0:
            self.me.publish("token", secrets.token_hex(32))
        os.environ.update(QUIET, RAY_AUTH_TOKEN=self.me.wait_for("token"))
        import ray
        from ray import cloudpickle

        if self.me.rank == 0:
            room = (BUFFERS + 2) * self.me.largest + (256 << 20)
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=room,
                _node_ip_address="127.0.0.1",
                _temp_dir=f"{self.me.folder}/ray",
            )
            self.channel = self.made()
            self.me.publish("ray", ray.get_runtime_context().gcs_address)
            self.me.publish("channel", cloudpickle.dumps(self.channel).hex())
        else:
            address = self.me.wait_for("ray", self.seconds)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            self.channel = cloudpickle.loads(bytes.fromhex(self.me.wait_for("channel")))
            self.channel.ensure_registered_as_reader()
        self.me.barrier("registered", self.seconds)

    def made(self) -> Any:
        import ray
        from ray.experimental.channel.shared_memory_channel import BufferedSharedMemoryChannel

        @ray.remote(num_cpus=0)
        class StandIn:
            pass

        node = ray.get_runtime_context().get_node_id()
        readers = [(StandIn.remote(), node) for _ in range(self.me.readers)]
        return BufferedSharedMemoryChannel(None, readers, BUFFERS, self.me.largest + 4096)

    def write(self, data: Any) -> None:
        self.channel.write(data)

    def read(self) -> Any:
        return self.channel.read()

    write_object = write
    read_object = read

    def cleanup(self) -> None:
        import ray

        self.me.barrier("left", self.seconds)
        if self.me.rank:
            ray.shutdown()
        self.me.barrier("shut", self.seconds)
        if self.me.rank == 0:
            ray.shutdown()
