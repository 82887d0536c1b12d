# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run on each claim of docs/claims.md. The page has the claims in words, each with a block for
figures: <!-- measured: claim NAME -->. CLAIMS has, by NAME, a function of the rows that gives (holds, figures).
"""

import collections
import re

from report_rows import best, in_process, lossy, one_state, ours, select, shown, three, value_of


class Missing(Exception):
    """A figure is missing; the text is the reason."""


def reason(rows, peer):
    """Why there is no figure of a way."""
    mine = [row for row in rows if row["peer"] == peer]
    said = sorted({str(row["status"]) for row in mine})
    return f"`{peer}`: {'; '.join(said)}" if said and "ok" not in said else f"the run has no such row of `{peer}`"


def told(found, figure, name=str):
    return ", ".join(f"{name(key)} {shown(value, figure)}" for key, value in found.items())


def figures_of(rows, ways, figure, **wanted):
    rows = one_state(select(rows, floors=True, peer=ways, **{"processes": 2, **wanted}))
    found = {way: best([row for row in rows if row["peer"] == way], figure) for way in ways}
    return {way: value_of(row, figure) for way, row in found.items() if row}


def compare(ways, figure, holds, wanted):
    """A claim about some ways in a cell; `holds` is a function of {way: figure}."""

    def look(rows):
        found = figures_of(rows, ways.split(), figure, **wanted)
        return holds(found), told(dict(sorted(found.items(), key=lambda way: way[1])), figure, "`{}`".format)

    return look


def shares(one, other, holds, cells):
    """A claim about the ratio of two ways' times in several cells {name: cell}; `holds`: of [share]."""

    def look(rows):
        found = {}
        for name, cell in cells.items():
            times = figures_of(rows, [one, other], "p50_us", scenario="one-way", reading="objects", **cell)
            if len(times) == 2:
                found[name] = times[one] / times[other]
        if not found:
            raise Missing(reason(rows, one))
        words = ", ".join(f"{name} {share:.2f}" for name, share in found.items())
        return holds(list(found.values())), f"time of `{one}` to that of `{other}`: {words}"

    return look


def over(way, key, holds, wanted):
    """A claim about a way over several sizes or groups; `holds` is a function of {size: p50}."""

    def look(rows):
        found = [row for row in select(rows, peer=way, **wanted) if row.get("p50_us") is not None]
        if not found:
            raise Missing(reason(rows, way))
        times = {row[key]: row["p50_us"] for row in sorted(found, key=lambda row: row[key])}
        return holds(times), f"`{way}`, by {key}: {told(times, 'p50_us')}"

    return look


# ---- Claims about several cells -------------------------------------------------------------------------------------


def pickle_share(rows):
    (way,) = figures_of(rows, ["gloo-object"], "p50_us", scenario="one-way", payload="features").values() or [None]
    codec = best(select(rows, peer="codec-pickle5", payload="features"), "spent_us")
    if way is None or codec is None:
        raise Missing(reason(rows, "gloo-object" if way is None else "codec-pickle5"))
    time = value_of(codec, "spent_us")
    words = f"pickle and unpickle {shown(time, 'spent_us')}, {100 * time / way:.0f} % of the time of `gloo-object`"
    return time >= 0.5 * way, f"{words}, {shown(way, 'p50_us')}"


def gil_held(rows):
    found = {row["peer"]: row["gil_share"] for row in select(rows, scenario="gil", payload="features")}
    found = {way: share for way, share in found.items() if share is not None}
    if not found:
        raise Missing("the run has no share of the GIL")
    words = told(dict(sorted(found.items(), key=lambda way: way[1])), "gil_share", "`{}`".format)
    return max(found.values()) >= 0.5, f"share of a write of the features: {words}"


def delivery(rows):
    found = {row["peer"]: row.get("note") for row in select(rows, scenario="stream") if lossy(row)}
    if not found:
        raise Missing("the run has no stream of a way that may lose messages")
    notes = "; ".join(f"`{peer}`: {note or 'lossy'}" for peer, note in sorted(found.items()))
    return False, f"ways that lose messages in a stream, with the counted losses: {notes}"


def upper_bcast(rows):
    cell = {"scenario": "one-way", "reading": "objects"}
    found = figures_of(rows, ["mpi4py-bcast"], "p50_us", payload="records-10000", **cell)
    found.update(figures_of(rows, ["mpi4py-Bcast"], "p50_us", payload="records-10000-array", **cell))
    gain = 1 - found["mpi4py-Bcast"] / found["mpi4py-bcast"]
    return gain >= 0.8, f"{told(found, 'p50_us', '`{}`'.format)}: {100 * gain:.0f} % less"


def arrays(rows):
    cell = {"scenario": "call", "reading": "objects"}
    (one, other) = (
        figures_of(rows, ["zmq-push"], "spent_us", payload=payload, **cell)["zmq-push"]
        for payload in ("records-10000", "records-10000-array")
    )
    return other < 0.5 * one, f"`zmq-push`: the dict {shown(one, 'spent_us')}, the array {shown(other, 'spent_us')}"


def batches(rows):
    mine = [row for row in select(rows, language="c", payload="bytes-64") if ours(row)]
    rates = [best([row for row in mine if row["scenario"] == name], "messages_per_s") for name in ("batch", "stream")]
    if None in rates:
        raise Missing("the run has no batches, or no stream of single messages of 64 B")
    gain = rates[0]["messages_per_s"] / rates[1]["messages_per_s"]
    return gain > 1.2, f"64 B by ringcast in batches: {three(gain)} times the messages/s of single messages"


def in_one_process(rows):
    found = [row for row in select(rows, language="c", payload="bytes-64") if in_process(row)]
    row = best([row for row in found if row["scenario"] in ("headline", "one-way")], "p50_us")
    if row is None:
        raise Missing("the run has no queue within one process")
    return row["p50_us"] <= 0.2, f"`{row['peer']}` {shown(row['p50_us'], 'p50_us')} one way"


P50 = "p50_us"
ONE = {"scenario": "one-way"}
METADATA = {**ONE, "payload": "metadata", "reading": "objects"}
FEATURES = {**ONE, "payload": "features", "reading": "objects"}
SMALL = {**ONE, "payload": "bytes-64", "reading": ["bytes", None]}
HEADLINE = {"scenario": "headline", "payload": "bytes-64"}
CALL = {"scenario": "call", "payload": "records-10000", "reading": "objects"}
EVERY25 = {"scenario": "every25", "reading": "objects"}
CODEC = {"scenario": "codec", "payload": "records-10000", "processes": [1, 2, None]}
STREAM = {"scenario": "stream", "payload": "bytes-64", "reading": "bytes"}
SEED = "zmq-push mpi4py-bcast lmdb mp-shared-memory mpi4py-pkl5"  # the ways of the IPC comparison
CODECS = "codec-pickle5 codec-msgpack codec-msgspec codec-pyfory codec-ringcast"
RECORDS = {f"records-{count}": {"payload": f"records-{count}"} for count in (10, 100, 1000, 10000)}
GROUPS = {f"{count} processes": {"payload": "metadata", "processes": count} for count in (2, 4, 8)}
FAR = 1.5  # the factor up to which a time of a different machine holds
PKL5 = "mpi4py-pkl5", "mpi4py-bcast", lambda found: min(found) >= 0.95


def at_most(way, limit):
    return lambda found: found[way] <= limit


def under(one, other, share):
    return lambda found: found[one] <= share * found[other]


def alike(found):
    return found["zmq-push"] and max(found.values()) <= 1.05 * min(found.values())


def binary(found):
    return min(found.get(way, found["codec-pickle5"]) for way in CODECS.split()[1:4]) < found["codec-pickle5"]


def even(found):
    return max(time for size, time in found.items() if size <= 4 << 20) <= 2 * found[64]


def flat(first, last, limit):
    """Every size between the two takes at most the limit, in us."""
    return lambda found: max(time for size, time in found.items() if first <= size <= last) <= limit


CLAIMS = {
    "pickle-share": pickle_share,
    "gil-held": gil_held,
    "ipc-cost": compare("ringcast", P50, lambda found: found["ringcast"] > 8000, FEATURES),
    "nccl-400": compare("nccl-object", P50, at_most("nccl-object", FAR * 400), METADATA),
    "gloo-300": compare("gloo-object ringcast", P50, at_most("gloo-object", FAR * 300), METADATA),
    "padded-100": compare("gloo-padded gloo-object ringcast", P50, under("gloo-padded", "gloo-object", 0.5), METADATA),
    "queue-solves": compare("vllm-queue gloo-object", P50, under("vllm-queue", "gloo-object", 0.5), METADATA),
    "within-5": compare(SEED, "read_us", alike, CALL),
    "zmq-first": compare(SEED, "read_us", lambda found: found["zmq-push"] == min(found.values()), CALL),
    "units": compare("zmq-push", "read_us", at_most("zmq-push", 57), CALL),
    "delivery": delivery,
    "pkl5-dict": shares(*PKL5, RECORDS),
    "pkl5-buffers": shares(*PKL5, {"features": {"payload": "features"}}),
    "upper-bcast": upper_bcast,
    "sends": shares("mpi4py-send", "mpi4py-bcast", lambda found: max(found) <= 0.9, GROUPS),
    "binary": compare(CODECS, "spent_us", binary, CODEC),
    "arrays": arrays,
    "batches": batches,
    "iceoryx2-flat": over("iceoryx2", "bytes", even, {"scenario": "in-place", "processes": 2}),
    "aeron": compare("c-aeron-ipc c-cache-line", P50, under("c-aeron-ipc", "c-cache-line", 1.2), HEADLINE),
    "ecal-flat": over("ecal", "bytes", flat(1 << 10, 32 << 20, FAR * 3), {**ONE, "reading": "bytes", "processes": 2}),
    "zenoh": compare("zenoh-shm", P50, at_most("zenoh-shm", 90), {**SMALL, "payload": "bytes-1Ki"}),
    "mengrao": over("c-spmc-queue", "processes", lambda found: found[2] <= FAR * 0.0957, SMALL),
    "atomic-queue": in_one_process,
    "faster-fifo": compare(
        "faster-fifo mp-queue", "messages_per_s", lambda found: found["faster-fifo"] >= 1e6 / (FAR * 4.3), STREAM
    ),
    "ray": compare("ray-channel", P50, at_most("ray-channel", 50), SMALL),
    "gloo-150": compare("gloo-broadcast", P50, at_most("gloo-broadcast", FAR * 150), SMALL),
    "vllm-spin": compare("vllm-queue ringcast", "cpu", lambda found: found["vllm-queue"] >= 80, EVERY25),
    "vllm-2ms": compare(
        "vllm-queue-2ms vllm-queue ringcast", "cpu", under("vllm-queue-2ms", "vllm-queue", 0.5), EVERY25
    ),
    "vllm-2ms-price": compare(
        "vllm-queue-2ms vllm-queue ringcast", P50, under("vllm-queue-2ms", "vllm-queue", 1.2), EVERY25
    ),
    "vllm-arena": compare(
        "vllm-queue-arena vllm-queue ringcast", P50, under("vllm-queue-arena", "vllm-queue", 1), FEATURES
    ),
}


# ---- The page --------------------------------------------------------------------------------------------------------

WORDS = {True: "Holds", False: "Does not hold", None: "Not tested"}


def judged(rows, name):
    """Whether a claim holds, if tested, and the figures."""
    try:
        return CLAIMS[name](rows)
    except Missing as missing:
        return None, str(missing)
    except KeyError as missing:
        return None, reason(rows, missing.args[0])


def block(rows, name):
    holds, text = judged(rows, name)
    return f"**{WORDS[holds]}.** {text[:1].upper()}{text[1:]}."


def lines_of(rows):
    """The verdicts for the terminal: a line for each tested claim, then the names of the rest."""
    found = {name: judged(rows, name) for name in CLAIMS}
    lines = [f"{name}: {WORDS[holds].lower()}: {text}" for name, (holds, text) in found.items() if holds is not None]
    rest = [name for name, (holds, _) in found.items() if holds is None]
    return lines + [f"not tested: {', '.join(rest)}"] * bool(rest)


VERDICTS = "Holds", "Holds in part", "Does not hold", "Not tested"
SHORT = 100  # letters of the figures in the summary


def clipped(text):
    """The figures of a claim's block, up to the comma before the limit."""
    text = text.strip().removesuffix(".").partition("\n")[0]
    return text if len(text) <= SHORT else text[:SHORT].rpartition(", ")[0] + ", ..." * (", " in text[:SHORT])


def summary(page):
    """(a line for each claim of the page: claim, verdict and the measured figures; the counts)"""
    lines, counts = [], collections.Counter()
    for section in re.split(r"^### ", page, flags=re.M)[1:]:
        title = section.partition("\n")[0]
        verdict = re.search(rf"\*\*({'|'.join(VERDICTS)})\.\*\*", section)
        measured = re.search(r"<!-- measured: claim [\w-]+ -->\n\*\*[\w ]+\.\*\* (.*)", section)
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        figure = clipped(measured[1]) if measured and verdict[1] != "Not tested" else ""
        lines.append([f"[{title}](#{anchor})", verdict[1].lower() if verdict else "not measured yet", figure])
        counts[verdict[1] if verdict else "Not measured yet"] += 1
    told = [f"{word.lower()}: {counts[word]}" for word in (*VERDICTS, "Not measured yet") if counts[word]]
    return lines, f"Of {len(lines)} claims: {', '.join(told)}."
