# SPDX-License-Identifier: Apache-2.0
"""What `make gpu-test` has found, held against what a GPU must show: a line for each, with the
figures.

    verdict.py FOLDER [--strict]
    verdict.py --table FOLDER

reads doctor.json, probes.jsonl, perf.json and python.jsonl there, as far as they are. "met", "NOT
MET", "not run" (what is missing). A figure of speed that is not met is told and no more; a count
that is wrong, or bytes that are, or a probe that failed, make the exit status 1. --strict: so does
what was not run, but for what needs torch. --table: what the probes of the first minute have found.
"""

import json
import os
import re
import sys

MOST_HOST_US = 5.0
LEAST_RATIO, RATIO_FROM = 0.95, 16 << 20
FEW = (  # names of probes, or what they begin with: two processes, and four
    "tensors behind a kernel come whole to one reader, main",
    "tensors behind a kernel come whole to one reader, legacy",
)
MANY = (
    "tensors behind a kernel come whole to three readers",
    "tensors in a row come whole to three readers",
)


class Missing(Exception):
    """The text says what was not measured."""


class Wrong(Exception):
    """A count, or bytes: the text says which."""


class Slow(Exception):
    """The figure."""


# ---- What there is -------------------------------------------------------------------------------


class Found:
    def __init__(self, folder):
        self.folder = folder
        self.probes, self.tensors = self.lines("probes.jsonl"), self.lines("python.jsonl")

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return ""

    def lines(self, name):
        found = {}
        for line in self.read(name).splitlines():
            try:
                entry = json.loads(line)
                found[entry["probe"]] = entry
            except (ValueError, KeyError, TypeError):
                continue  # cut off when the time was up
        return found

    def probe(self, name, probes=None):
        """Its figures, if it went well."""
        if probes is None:
            probes, name = self.probes, f"scenario probes: {name}"
        if name not in probes:
            raise Missing(f"{name} did not run")
        entry = probes[name]
        if entry["result"] == "skipped":
            raise Missing(f"{name} was skipped: {entry['why']}")
        if entry["result"] != "ok":
            raise Wrong(f"{name} {entry['result']}: {entry['why']}")
        return entry["figures"]

    def perf(self, readers):
        for run in self.perfs():
            if run["readers"] == readers:
                return run
        raise Missing(f"no perf gpu with {readers} readers")

    def perfs(self):
        """Those that came to an end: the last may be cut off."""
        text, runs = self.read("perf.json"), []
        for start in [0, *(at.start() + 1 for at in re.finditer(r"\n\{", text))]:
            try:
                runs.append(json.JSONDecoder().raw_decode(text, start)[0])
            except ValueError:
                continue
        if not runs:
            raise Missing("no perf gpu")
        return runs

    def pools(self):
        runs = self.perfs()
        for run in runs:
            if not run["pool"]:
                raise Missing(f"no pool: {run['why']}")
        return runs


# ---- What must be shown --------------------------------------------------------------------------


def went_well(found, *names):
    for name in names:
        found.probe(name)
    return "; ".join(names)


def two_processes(found):
    return went_well(found, *FEW)


def four_processes(found):
    return went_well(found, *MANY)


def delayed_producer(found):
    told = went_well(found, *FEW, MANY[0])
    torch = found.tensors.get("torch_written_to_again_at_once")
    return told + (f"; torch: {torch['result']}" if torch else "")


def host_cost(found):
    told, slow = [], False
    for run in found.pools():
        send = max(size["pool"]["send_us"] for size in run["sizes"])
        receive = max(size["pool"]["receive_us"] for size in run["sizes"])
        slow |= max(send, receive) > MOST_HOST_US
        told.append(f"{run['readers']} readers: send {send:.2f} us, receive {receive:.2f} us")
    text = "medians at the worst size, " + "; ".join(told)
    if slow:
        raise Slow(text)
    return text


def bandwidth(found):
    run = found.pools() and found.perf(1)
    copies = [copy for copy in run["copies"] if copy["bytes"] >= RATIO_FROM]
    if not copies:
        raise Missing("no copies of 16 MiB or more, alone")
    told, slow = [], False
    for copy in copies:
        slow |= copy["ratio"] < LEAST_RATIO
        told.append(
            f"{copy['bytes'] >> 20} MiB {copy['ratio']:.3f} (in "
            f"{copy['writer_copy_bytes_per_s'] / 1e9:.0f}, "
            f"out {copy['reader_copy_bytes_per_s'] / 1e9:.0f}, "
            f"plain {copy['device_to_device_bytes_per_s'] / 1e9:.0f} GB/s)"
        )
    if slow:
        raise Slow("; ".join(told))
    return "; ".join(told)


def one_open(found):
    told = []
    for run in found.pools():
        readers, opens = run["readers"], run["ring_with_pool"]["readers"]["opens"]
        frames = run["ring_with_pool"]["writer"]["pool_frames"]
        if opens != readers:
            raise Wrong(f"perf: {opens} opens of {readers} readers")
        told.append(f"{opens} of {readers} readers in {frames} frames")
    return ", ".join(told)


def no_waiting(found):
    told = []
    for run in found.pools():
        ring = run["ring_with_pool"]
        writer, readers = ring["writer"], ring["readers"]
        if writer["syncs"] > writer["inline_frames"] or (
            readers["registered"] and readers["syncs"] > 0
        ):
            raise Wrong(
                f"perf: the writer waited for the device {writer['syncs']} times with "
                f"{writer['inline_frames']} frames "
                f"INLINE, the readers {readers['syncs']} times"
            )
        told.append(f"{run['readers']} readers: 0 in {writer['pool_frames']} frames by the pool")
    return ", ".join(told)


def pinned(found):
    """INLINE frames without pinned memory wait for the device, on either side."""
    told, slow = [], False
    for run in found.perfs():
        for side, name in (("writer", "the writer"), ("readers", f"{run['readers']} readers")):
            ring = run["ring_without"][side]
            slow |= not ring["registered"]
            how = "by pinned memory" if ring["registered"] else "NOT by pinned memory"
            told.append(f"{name} {how}, {ring['syncs']} waits in {ring['inline_frames']} frames")
    if slow:
        raise Slow(", ".join(told))
    return ", ".join(told)


def memory(found):
    figures = found.probe("what contexts of other processes cost")
    each = (figures["free_mib_alone"] - figures["free_mib_with_three"]) / 3
    told = f"a context takes {each:.0f} MiB and {figures['open_us_p50'] / 1000:.0f} ms"
    for run in found.perfs():
        free = run["device_free_bytes"]
        told += (
            f"; with {run['readers']} readers {(free['before'] - free['open']) >> 20} MiB in all"
        )
    return told


def woken_by_the_host(found):
    """The question that ../docs/gpu.md's design rests on."""
    figures = found.probe("a store of the host ends a wait")
    median, most = figures["store_to_write_us_p50"], figures["store_to_write_us_max"]
    return f"a CPU's store ends a stream's wait: {median:.1f} us (at most {most:.0f})"


def pool_and_inline(found):
    run = found.pools() and found.perf(1)
    told = [
        f"{size['bytes']} {size['pool']['completion_us']:.0f}/{size['inline']['completion_us']:.0f}"
        for size in run["sizes"]
    ]
    shared = f"one device shared by {run['device_shared_by']}: no threshold follows; bytes and us of completion: "
    return shared + ", ".join(told)


def of_python(found):
    if not found.tensors:
        raise Missing("no python.jsonl")
    told = {}
    for name, entry in found.tensors.items():
        told.setdefault(entry["result"], []).append(name)
        if entry["result"] not in ("ok", "skipped"):
            found.probe(name, found.tensors)
    if "ok" not in told:
        raise Missing(
            f"all {len(told['skipped'])} were skipped: {found.tensors[told['skipped'][0]]['why']}"
        )
    return f"{len(told['ok'])} probes" + (
        f", skipped: {' '.join(told['skipped'])}" if "skipped" in told else ""
    )


def calls(found):
    figures, ending = found.probe("what each call costs"), "_host_us_p50"
    names = [name.removesuffix(ending) for name in figures if name.endswith(ending)]
    told = [(name, figures[name + ending], figures.get(name + "_device_us_p50")) for name in names]
    return "us of the host/the device: " + ", ".join(
        f"{name} {host:.2f}" + (f"/{device:.2f}" if device is not None else "")
        for name, host, device in told
    )


def depth(found):
    figures = found.probe("how many operations a stream takes")
    if not figures["a_call_blocked"]:
        return f"more than {figures['operations']}"
    return f"{figures['operations']}, then a call blocks" + (
        ", and calls on other streams with it" if figures["another_stream_blocked_too"] else ""
    )


def faults(found):
    return went_well(found, "a kernel of the writer faults", "a kernel of a reader faults")


def scenarios(found):
    names = [name for name in found.probes if not name.startswith("scenario probes:")]
    if not names:
        raise Missing("no scenario ran")
    for name in names:
        found.probe(name, found.probes)
    return f"{len(names)} come out as with the tests' own driver"


def every_probe(found):
    bad = [
        f"{name} {entry['result']}: {entry['why']}"
        for name, entry in found.probes.items()
        if entry["result"] not in ("ok", "skipped") and not entry.get("only_measures")
    ]
    if bad:
        raise Wrong("; ".join(bad))
    if not found.probes:
        raise Missing("no probes.jsonl")
    return f"{len(found.probes)} have run"


MUST_SHOW = [
    ("two processes on the device", two_processes),
    ("four processes on the device", four_processes),
    ("right under a delayed producer", delayed_producer),
    ("host cost of a tensor, 5 us at most", host_cost),
    ("0.95 of a plain copy's bandwidth", bandwidth),
    ("one open for each reader", one_open),
    ("no call waits for the device", no_waiting),
    ("INLINE by pinned memory", pinned),
    ("memory and contexts", memory),
    ("a store ends a wait, how soon", woken_by_the_host),
    ("POOL beside INLINE", pool_and_inline),
    ("cost of each call", calls),
    ("operations behind a wait", depth),
    ("a kernel that faults", faults),
    ("scenarios of the library's tests", scenarios),
    ("every probe", every_probe),
    ("tensors through Python", of_python),
]


RECON = (
    "the driver and what the library finds",
    "streams of two processes wait for each other",
    "all that the library does goes on beside a capture",
    "what the device says of itself",
)


def table(folder):
    found = Found(folder)
    for name in RECON:
        entry = found.probes.get(
            f"scenario probes: {name}", {"result": "not run", "why": "", "figures": {}}
        )
        print(f"{name:52} {entry['result']:10} {entry['why']}")
        numbered = [f"{key}={value}" for key, value in entry["figures"].items() if key.isdigit()]
        for key, value in entry["figures"].items():
            if not key.isdigit():
                print(f"    {key:36} {value}")
        if numbered:
            print("    others:", " ".join(numbered))
    return 0


def main(folder, *flags):
    if folder == "--table":
        return table(*flags)
    found, status = Found(folder), 0
    for what, look in MUST_SHOW:
        try:
            verdict, text = "met", look(found)
        except Missing as missing:
            verdict, text = "not run", str(missing)
            status |= flags == ("--strict",) and look is not of_python
        except Slow as figure:
            verdict, text = "NOT MET", str(figure)
        except Wrong as wrong:
            verdict, text, status = "NOT MET", str(wrong), 1
        except (KeyError, TypeError, IndexError) as error:
            verdict, text, status = "NOT MET", f"what was found is not as expected: {error!r}", 1
        print(f"{what:36} {verdict:13} {text}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
