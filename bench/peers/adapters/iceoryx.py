# SPDX-License-Identifier: Apache-2.0
"""iceoryx2: slices of bytes by publish/subscribe, polled, or waited for by an event.

As in iceoryx2's own examples for Python (github.com/eclipse-iceoryx/iceoryx2, examples/python:
publish_subscribe_dynamic_data and event) and the benchmark of publish/subscribe: the receiver
polls. The overflow is off and the publisher waits for room: no message is lost. A reader reads in
the shared memory; a write is a copy into a loan, or no copy, in place.
"""

import ctypes
import gc
import os
from typing import Any

from adapters.base import Way

WAITING = 16  # messages in a reader's queue


class Iceoryx2(Way):
    """The readers poll, as in iceoryx2's benchmark."""

    family = "iceoryx2"
    requires = ("iceoryx2",)
    readings = ("bytes", "objects", "in-place")
    copying = False
    note = "readers poll, as in its own benchmark"
    sample: Any = None
    loan: Any = None

    def initialize(self) -> None:
        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Error)
        builder = iox2.NodeBuilder.new().signal_handling_mode(iox2.SignalHandlingMode.Disabled)
        self.node = builder.create(iox2.ServiceType.Ipc)
        if self.me.rank == 0:
            service = self.service(f"peers/{self.me.folder.name}", create=True)
            publisher = service.publisher_builder().initial_max_slice_len(self.me.largest)
            publisher = publisher.backpressure_strategy(
                iox2.BackpressureStrategy.RetryUntilDelivered
            )
            self.publisher = publisher.create()
            self.me.publish("service", f"peers/{self.me.folder.name}")
        else:
            service = self.service(self.me.wait_for("service"), create=False)
            self.subscriber = service.subscriber_builder().create()
        self.me.barrier("connected")
        if self.me.rank == 0:
            self.publisher.update_connections()

    def service(self, name: str, create: bool) -> Any:
        import iceoryx2 as iox2

        builder = self.node.service_builder(iox2.ServiceName.new(name))
        builder = builder.publish_subscribe(iox2.Slice[ctypes.c_uint8]).enable_safe_overflow(False)
        if not create:
            return builder.open()
        builder = builder.history_size(0).max_publishers(1).max_subscribers(self.me.readers)
        return (
            builder.subscriber_max_buffer_size(WAITING).subscriber_max_borrowed_samples(2).create()
        )

    def write(self, data: Any) -> None:
        self.reserve(len(data))[:] = data
        self.commit()

    def read(self) -> memoryview:
        self.sample = None
        return self.read_in_place()

    def reserve(self, size: int) -> memoryview:
        self.loan = self.publisher.loan_slice_uninit(size)
        return self.loan.payload().as_memory_view().cast("B")

    def commit(self) -> None:
        self.loan.assume_init().send()
        self.loan = None

    def read_in_place(self) -> memoryview:
        self.sample = self.next_sample()
        return self.sample.payload().as_memory_view().cast("B")

    def release(self) -> None:
        self.sample = None

    def next_sample(self) -> Any:
        receive, polls = self.subscriber.receive, 0
        while (sample := receive()) is None:
            polls += 1
            if polls % 64 == 0:
                os.sched_yield()
        return sample

    def cleanup(self) -> None:
        self.sample = None
        self.me.barrier("left")
        (self.subscriber if self.me.rank else self.publisher).delete()
        self.me.barrier("ports")
        self.subscriber = self.publisher = self.node = None  # the node's files go with the object
        gc.collect()


class Iceoryx2Event(Iceoryx2):
    """The readers sleep until the writer notifies the readers."""

    note = "the writer notifies each message, readers sleep"

    def initialize(self) -> None:
        super().initialize()
        import iceoryx2 as iox2

        builder = self.node.service_builder(
            iox2.ServiceName.new(f"peers-event/{self.me.folder.name}")
        ).event()
        if self.me.rank == 0:
            event = builder.max_notifiers(1).max_listeners(self.me.readers).create()
            self.notifier = event.notifier_builder().create()
            self.me.publish("event", "")
        else:
            self.me.wait_for("event")
            self.listener = builder.open().listener_builder().create()
        self.me.barrier("listening")

    def commit(self) -> None:
        super().commit()
        self.notifier.notify()

    def next_sample(self) -> Any:
        while (sample := self.subscriber.receive()) is None:
            self.listener.blocking_wait()
        return sample
