#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Runs vLLM's own tests of what ringcast replaces, with vLLM as it is and with ringcast in place, and
compares.

The real package is used: its source distribution, built for no device, on vLLM's CPU platform, with
its own conftest. Exit status 0: every test that judges behaviour passes with ringcast, or fails
without it too on this machine. A test that looks into what vLLM's queue is made of, and not at what
it does, is in PRIVATE, each with the reason; it must fail of that reason and no other.

python tests/compat/vllm.py [--version 0.33.0 --version ...] [--source FOLDER] [TEST...]
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import fetch

from ringcast._install import TESTED

VERSIONS = TESTED["vLLM"]
TESTS = ["test_shm_broadcast.py", "test_mq_connect_ip.py", "test_comm_ops.py"]
MORE_FOR_TESTS = ["httpx", "multiprocess", "pytest-asyncio", "ray", "tblib"]
TO_BUILD = [
    "jinja2",
    "packaging",
    "setuptools>=77,<81",
    "setuptools-rust",
    "setuptools_scm",
    "wheel",
]
SECONDS = 1800

# Test -> (an error that it must fail of, the reason). Without its parameters: all of them.
_SPIN = "sets and counts how vLLM's reader polls its ZeroMQ sockets (_spin_condition); ringcast waits in C, on a futex"
_SENT = "counts what goes by which of vLLM's ways (recv, _reduce_tensor, pickle's buffers); ringcast has one way"
_ARENA = "looks into the queue's tensor_arena; ringcast has none, its frames carry tensors outside of any pickle"
_ISEND = "gives the group no process groups, fakes torch.distributed's calls and counts them; ringcast has others"
_NO = "'MessageQueue' object has no attribute"
PRIVATE = {
    "test_message_queue_shutdown_busy": (f"{_NO} '_spin_condition'", _SPIN),
    "test_message_queue_shutdown_idle": (f"{_NO} '_spin_condition'", _SPIN),
    "test_message_queue_idle_wake": (f"{_NO} '_spin_condition'", _SPIN),
    "test_message_queue_busy_to_idle": (f"{_NO} '_spin_condition'", _SPIN),
    "test_reader_rechecks_shm_after_idle_wait_timeout_without_notify": (
        f"{_NO} 'local_socket'",
        _SPIN,
    ),
    "test_busy_reader_consumes_write_notifications": (f"{_NO} '_spin_condition'", _SPIN),
    "test_tensor_broadcast": ("has no attribute 'recv'", _SENT),
    "test_broadcast_retains_values_after_ring_reuse": ("has no attribute 'recv'", _SENT),
    "test_reader_timeout_caps_indefinite_waits": (
        "has no attribute 'ReadTimeoutWithWarnings'",
        "tests a class inside vLLM's queue that computes its poll timeouts; ringcast has none",
    ),
    "test_acquire_read_releases_slot_when_reader_raises": (
        f"{_NO} 'acquire_read'",
        "opens a block of vLLM's ring in place (acquire_read, acquire_write); a ring of ringcast "
        "has no blocks",
    ),
    "test_tensor_arena_registry_is_weak_and_survives_shutdown": (f"{_NO} 'tensor_arena'", _ARENA),
    "test_create_from_handle_tolerates_arena_attach_failure": (
        "cannot unpack non-iterable NoneType",
        _ARENA,
    ),
    "test_arena_broadcast": (f"{_NO} 'tensor_arena'", _ARENA),
    "test_irecv_tensor_dict_send_allgather_postprocess_binds_keys": (
        "weak reference to 'NoneType'",
        _ISEND,
    ),
    "test_isend_object_posts_size_then_object_and_releases_on_wait": (
        "weak reference to 'NoneType'",
        _ISEND,
    ),
    "test_isend_tensor_dict_includes_metadata_handle": ("weak reference to 'NoneType'", _ISEND),
    "test_isend_tensor_dict_self_retains_for_fire_and_forget": (
        "weak reference to 'NoneType'",
        _ISEND,
    ),
    "test_send_tensor_dict_sync_path_does_not_self_retain": (
        "weak reference to 'NoneType'",
        _ISEND,
    ),
}
# Parameter -> what would differ even if nothing private were looked into.
DIFFERENT = {
    "numpy_readonly": "; it also wants a read-only array to arrive read-only: with ringcast all "
    "are writable"
}
# These only set the private attribute, which says how to wait; once it is there, the rest judges
# behaviour.
STAND_INS = ["test_message_queue_shutdown_busy", "test_message_queue_shutdown_idle"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--version", action="append", help=f"default: {' and '.join(VERSIONS)}")
    parser.add_argument(
        "--source",
        type=pathlib.Path,
        help="an unpacked source distribution, in place of a download",
    )
    parser.add_argument(
        "tests", nargs="*", help="a test of vLLM's, as pytest's -k has it; default: all"
    )
    arguments = parser.parse_args()
    if arguments.source:
        return 1 if check(arguments.source.resolve(), arguments.tests) else 0
    return (
        1
        if sum([check(download(one), arguments.tests) for one in arguments.version or VERSIONS])
        else 0
    )


def check(source, tests):
    """How many tests fail."""
    ready(source)
    only = ["-k", " or ".join(tests)] if tests else []

    failed = in_place(source)
    runs = {which: run(source, which, only) for which in ("ringcast", "vllm")}
    stand_in = (
        run(source, "ringcast", ["-k", " or ".join(STAND_INS)], COMPAT_STAND_INS="1")
        if not only
        else {}
    )
    for which, outcomes in runs.items():
        outcomes.update(groups(source, which))
    failed += report(runs["vllm"], runs["ringcast"], stand_in)
    result = f"FAILED: {failed}" if failed else "all that judges behaviour passes"
    print(f"{source.name}: {result}")
    return len(failed)


# ---- Getting it ----------------------------------------------------------------------------------


def download(version):
    archive = fetch.DOWNLOADS / f"vllm-{version}.tar.gz"
    if not archive.exists():
        fetch.say(f"downloading vLLM {version}")
        fetch.install(TO_BUILD, "to-build")
        fetch.pip(
            *["download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"],
            *["-d", str(fetch.DOWNLOADS), f"vllm=={version}"],
            VLLM_TARGET_DEVICE="empty",
            # or its version has a suffix, which pip takes for another
            VLLM_VERSION_OVERRIDE=version,
        )
    return fetch.unpacked(archive, fetch.BUILD / f"vllm-{version}")


def ready(source):
    fetch.install(
        fetch.without_lower_bounds(source / "requirements" / "common.txt") + MORE_FOR_TESTS, "vllm"
    )


def environment(source, **more):
    # A platform without devices would do for the queue, but the tests ask it how many it has.
    return fetch.environment(
        fetch.PLUGIN, source, VLLM_TARGET_DEVICE="cpu", VLLM_LOGGING_LEVEL="WARNING", **more
    )


# ---- Running it ----------------------------------------------------------------------------------


def in_place(source):
    """install() and uninstall() in the real package, and what its own processes would do."""
    command = [fetch.python(), fetch.PLUGIN / "vllm_in_place.py"]
    result = subprocess.run(command, env=environment(source), timeout=SECONDS, check=False)
    return [] if result.returncode == 0 else ["in place"]


def run(source, which, options, **more):
    """Test -> (outcome, why)."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = pathlib.Path(folder, "outcomes")
        outcomes.touch()
        log = fetch.BUILD / f"vllm-{which}{'-stand-ins' if more else ''}.log"
        fetch.say(f"vLLM's tests, with {which}; log in {log.relative_to(fetch.ROOT)}")
        command = [
            fetch.python(),
            "-m",
            "pytest",
            "-p",
            "ringcast_compat",
            "-p",
            "no:cacheprovider",
            "-q",
            *options,
        ]
        command += [str(pathlib.Path("tests", "distributed", test)) for test in TESTS]
        with open(log, "w") as file:
            subprocess.run(
                command,
                cwd=source,
                env=environment(source, COMPAT_WITH=which, COMPAT_OUTCOMES=str(outcomes), **more),
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        found = read(outcomes.read_text())
    if not found:
        raise SystemExit(f"compat: no test ran; see {log}")
    return found


def read(lines):
    found = {}
    for line in lines.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            found[entry["test"].rpartition("/")[2]] = entry["outcome"], entry["why"]
    return found


def groups(source, which):
    """Each function of GroupCoordinator, 2 and 4 ranks; the worst of the ranks."""
    worst = {}
    for world in 2, 4:
        fetch.say(f"vLLM's GroupCoordinator, {world} ranks, with {which}")
        ranks = fetch.run_ranks("vllm_groups.py", which, world, SECONDS, **environment(source))
        for rank, (status, out, errors) in enumerate(ranks):
            for test, (outcome, why) in read(out).items():
                if worst.get(test, ("passed", ""))[0] == "passed":
                    worst[test] = outcome, why
            if status:
                worst[f"rank {rank} of {world}"] = "failed", errors
    return worst


# ---- Telling it ----------------------------------------------------------------------------------


def report(before, after, stand_in):
    """Prints a line for each test; returns those that judge behaviour and fail."""
    failed = []
    width = max(map(len, [*before, *after]))
    print(f"\n{'test':{width}}  vLLM     ringcast verdict")
    for test in {**before, **after}:
        (one, _), (other, why) = before.get(test, ("not run", "")), after.get(test, ("not run", ""))
        good, verdict = judge(test, one, other, why)
        if not good:
            failed.append(test)
        print(f"{test:{width}}  {one:8} {other:8} {verdict}")
        if not good:
            print(why)
    for test, (outcome, why) in stand_in.items():
        print(
            f"{test:{width}}  {'':8} {outcome:8} with an empty object in place of the private "
            f"attribute"
        )
        if outcome != "passed":
            failed.append(test + " with a stand-in")
            print(why)
    return failed


def errors(why):
    """
    The errors among what a test, and the processes that it started, printed; not the source lines
    beside them.
    """
    return [line for line in why.splitlines() if re.match(r"E  |\S*(Error|Exception):", line)]


def judge(test, before, after, why):
    """Whether it is as it should be, and what to say of it."""
    name = test.rpartition("::")[2].partition("[")[0]
    needed, reason = PRIVATE.get(name, (None, None))
    if reason is not None:
        reason += "".join(text for parameter, text in DIFFERENT.items() if parameter in test)
    if after == "skipped":
        return before == "skipped", f"SKIPPED: {why.partition('Skipped: ')[2] or why}"
    if after == "passed":
        return True, "" if reason is None else f"in the list of private ones, but passes: {reason}"
    if reason is not None:
        if after == "failed" and any(needed in line for line in errors(why)):
            return True, f"private: {reason}"
        return False, f"FAILED, and not of what it is in the list for: {needed}"
    if before == "failed" and after == "failed":
        return True, "fails on this machine without ringcast too"
    return False, "FAILED"


if __name__ == "__main__":
    raise SystemExit(main())
