# SPDX-License-Identifier: Apache-2.0
"""Readers in processes of their own, and that all has gone to them by the pool."""

import contextlib
import multiprocessing
import traceback

from probe import FIGURES, LIMIT, expect, no_pool


def _receive(handle, pipe, options, check, module, views):
    """
    Receives until the writer closes, and says of each what `check`, a function of a module, finds
    wrong with it.
    """
    if module == "torch":
        import torch

        torch.cuda.init()
    import ringcast

    with ringcast.Reader(handle, **options) as reader:
        pipe.send("attached")
        for number in range(pipe.recv()):
            try:
                if views:
                    with reader.view(LIMIT) as value:
                        wrong = check(number, value)
                else:
                    wrong = check(number, reader.recv(LIMIT))
                pipe.send(wrong)
            except Exception:
                pipe.send(traceback.format_exc())
        pipe.recv()
        pipe.send(reader.gpu and reader.gpu._asdict())


def must_have_gone_by_pool(writer, readers, waits=False):
    """Each reader has opened the pool once, and no call has waited for the device but for what went
    INLINE. waits: it may have waited, as it copies to the host."""
    FIGURES.update(writer=writer and writer._asdict(), readers=readers)
    expect(writer, "nothing that was sent was on a device")
    why = next((reader["why"] for reader in readers if reader and reader["why"]), writer.why)
    if writer.way != "pool" or not writer.pool_frames:
        no_pool(writer, why)
    waited = writer.syncs, writer.inline_frames
    expect(
        waited[0] == waited[1],
        "the writer waited for the device %d times, with %d frames INLINE" % waited,
    )
    for reader in readers:
        expect(
            reader and reader["way"] == "pool",
            f"a reader has it by {reader and reader['way']}: {why}",
        )
        expect(reader["opens"] == 1, f"a reader has opened {reader['opens']} handles")
        few = waits or not reader["registered"] or reader["syncs"] == 0
        expect(few, f"a reader has waited for the device {reader['syncs']} times")


@contextlib.contextmanager
def receivers(writer, check, count, number=1, module="torch", views=False, **options):
    context = multiprocessing.get_context("spawn")
    pairs = []
    for _ in range(number):
        ours, theirs = context.Pipe()
        arguments = (writer.handle, theirs, options, check, module, views)
        process = context.Process(target=_receive, args=arguments, daemon=True)
        process.start()
        theirs.close()
        pairs.append((process, ours))
    try:
        for _, pipe in pairs:
            expect(pipe.recv() == "attached", "a receiver does not attach")
            pipe.send(count)
        yield [pipe for _, pipe in pairs]
        gpu, readers = writer.gpu, []
        for process, pipe in pairs:
            pipe.send("end")
            readers.append(pipe.recv())
            process.join(LIMIT)
            expect(process.exitcode == 0, f"a receiver ended with {process.exitcode}")
        must_have_gone_by_pool(gpu, readers, waits=options.get("map_location") == "cpu")
    finally:
        for process, _ in pairs:
            process.kill()


def hear(pipes):
    for pipe in pipes:
        wrong = pipe.recv()
        expect(wrong is None, wrong)


def broadcast(values, check, **options):
    import ringcast

    with ringcast.Writer() as writer, receivers(writer, check, len(values), **options) as pipes:
        for value in values:
            writer.send(value, LIMIT)
            hear(pipes)
