# SPDX-License-Identifier: Apache-2.0
"""
What tests are given: rings, peers, processes with a device. And every test must leave the process
as it found it: no descriptor, no mapping of a ring, no process.
"""

import gc
import inspect
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
from multiprocessing import forkserver, resource_tracker

import pytest
from peers import Peer, descriptors, ring_mappings, still_works, what_is_left  # noqa: F401

import ringcast

# A shell ignores SIGINT for what it starts in the background, and so would Python: tests interrupt
# waits by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The classes of all tests are as an engine's: frames may name them where pickles are turned off.
ringcast.allow(*(path.stem for path in pathlib.Path(__file__).parent.glob("*.py")))


@pytest.fixture(scope="module", autouse=True)
def what_is_there_already():
    """
    Modules, torch's above all, and what pytest notes down are many objects that no test drops: to
    look through them twice a test would take more time than the tests. More come with each file of
    tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left():
    gc.collect()
    before = what_is_left()
    yield
    gc.collect()
    assert what_is_left() == before


@pytest.fixture(scope="session", autouse=True)
def multiprocessings_own():
    """
    multiprocessing starts two processes with the first of ours, and keeps pipes to them. Ours are
    forked from one of the two, which needs seconds to import what each of ours would import.
    """
    resource_tracker.ensure_running()
    forkserver.set_forkserver_preload(["_dist", "dropins", "torch.distributed"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.path.dirname(__file__), prepend=os.pathsep)
        forkserver.ensure_running()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine runs in the event loop that its argument `loop` names; one marked
    on_ranks(number), on each of so many ranks; one with the argument `gpu`, in a process that has a
    device (device_peers.Gpu)."""
    marker = pyfuncitem.get_closest_marker("on_ranks")
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if "gpu" in arguments:
        from device_peers import run

        arguments.pop("gpu").call(run, pyfuncitem.function, arguments)
    elif marker:
        pyfuncitem.funcargs["ranks"].run(*marker.args, pyfuncitem.function, *arguments.values())
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        from loops import run

        run(arguments["loop"], pyfuncitem.obj(**arguments))
    else:
        return None
    return True


def pytest_itemcollected(item):
    if item.get_closest_marker("on_ranks"):
        item.fixturenames.insert(0, "ranks")


@pytest.fixture(scope="session")
def ranks():
    """Four processes that run functions as the ranks of gloo groups."""
    from _dist import Ranks

    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.fixture
def mortals():
    """The same for one test, to be killed."""
    from _dist import Ranks

    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def crew():
    """Three processes that read, started once."""
    peers = [Peer() for _ in range(3)]
    yield peers
    for peer in peers:
        peer.stop()


@pytest.fixture
def peer():
    """A process for one test, to be killed or to be waited for."""
    peer = Peer()
    yield peer
    peer.stop()


@pytest.fixture
def ring():
    """A ring of 1 MiB and one reader, in this process."""
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        yield writer, reader


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory):
    """
    The folder of a CUDA driver without a GPU, for LD_LIBRARY_PATH: that of the preset dev, if it is
    built.
    """
    import device_peers

    root = pathlib.Path(__file__).parents[2]
    folder = root / "build" / "dev" / "tests" / "fake_cuda" / "new"
    files = list((root / "tests" / "fake_cuda").glob("*.[ch]"))
    built = folder / "libcuda.so.1"
    if built.exists() and built.stat().st_mtime > max(path.stat().st_mtime for path in files):
        device_peers.serve(folder)
        return folder
    folder = tmp_path_factory.mktemp("cuda")
    sources = [str(path) for path in files if path.suffix == ".c"]
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no compiler to make it with")
    command = [
        *compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-std=gnu11",
        "-fvisibility=hidden",
        f"-I{root}",
        *sources,
    ]
    subprocess.run(
        [*command, "-o", str(folder / "libcuda.so.1"), "-pthread", "-Wl,-z,nodelete"], check=True
    )
    device_peers.serve(folder)
    return folder


def processes(count, **names):
    import device_peers

    peers = [device_peers.start(**names) for _ in range(count)]
    yield peers
    for peer in peers:
        peer.stop()


@pytest.fixture(scope="session")
def gpus(fake_driver):
    """Five processes with one CUDA device, on which things take their time."""
    yield from processes(5, FAKE_CUDA_JITTER="7")


@pytest.fixture(scope="session")
def two_devices(fake_driver):
    """Three processes with two."""
    yield from processes(3, FAKE_CUDA_DEVICES="2", FAKE_CUDA_JITTER="3")


@pytest.fixture(scope="session")
def no_gpu(fake_driver):
    """A process that has one but may not use it."""
    for peers in processes(1, RINGCAST_DISABLE="cuda"):
        yield peers[0]


@pytest.fixture
def gpu(request, gpus):
    """The process that such a test runs in. With a parameter it is a new one, which has these
    variables of the environment."""
    if not hasattr(request, "param"):
        yield gpus[0]
        return
    for (peer,) in processes(1, **request.param):
        yield peer


@pytest.fixture
def mortal(fake_driver):
    """A process with a device for one test, to be killed."""
    import device_peers

    peer = device_peers.start()
    yield peer
    peer.stop()


@pytest.fixture
def rings(gpus):
    """Makes a ring from the first process to as many others."""
    import device_peers

    made = []

    def make(readers=1, options=None, reader_options=None):
        writer, others = gpus[0], gpus[1 : 1 + readers]
        made.extend([writer, *others])
        handle = writer.call(device_peers.make_writer, options)
        for reader in others:
            reader.call(device_peers.attach, handle, reader_options)
        return writer, others

    yield make
    for peer in reversed(made):
        peer.call(device_peers.close)
    for peer in made:
        assert peer.call(device_peers.left) == (0, 0, 0)


@pytest.fixture(scope="module")
def distrustful():
    """A ring whose reader loads no pickles: what is damaged of one it may look at."""
    with (
        ringcast.Writer(1 << 24) as writer,
        ringcast.Reader(writer.handle, allow_pickle=False) as reader,
    ):
        assert still_works(writer, reader)  # a first wait opens descriptors
        yield writer, reader
