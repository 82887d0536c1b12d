# SPDX-License-Identifier: Apache-2.0
"""Figures and tables as Markdown has them, and the tables of docs/benchmarks.md that Google Benchmark's cases fill: for
report.py and peers/report.py."""

# Head, the case to compare with, and the cases with their labels.
CASES = {
    "halves": (
        ["40 B, one process, no peer", "time"],
        None,
        {"alone/reserve_commit": "reserve + commit", "alone/next_release": "next + release"},
    ),
    "room": (
        ["1 KiB", "per frame", "to memcpy"],
        "full/memcpy",
        {
            "full/room_enough": "room enough (the default ring)",
            "full/room_short": "room for three frames: the writer waits for the reader",
            "full/memcpy": "memcpy into three places, read by the other",
        },
    ),
    "spill": (
        ["a ring of 1 MiB", "per frame", "to memcpy"],
        "spill/memcpy",
        {
            "spill/in_the_ring": "the largest that fits in",
            "spill/beside_the_ring": "4 KiB more",
            "spill/memcpy": "memcpy, read by the other",
        },
    ),
    **{
        f"batch-{size}": (
            [f"{size} B, in a stream", "per message", "to memcpy"],
            f"batch/{size}_memcpy",
            {
                f"batch/{size}_one_by_one": "one by one",
                **({f"batch/{size}_by_16": "in batches of 16"} if size == 16 else {}),
                f"batch/{size}_by_256": "in batches of 256",
                f"batch/{size}_memcpy": "memcpy, read by the other",
            },
        )
        for size in (16, 64, 256)
    },
    "frames": (
        ["a dict of 6 small tensors and 6 numbers; a text of some KiB", "time"],
        None,
        {
            "codec/write": "the dict, built in memory",
            "codec/read": "the dict, read in place",
            "packed/built_in_each": "the dict to three rings: built in each",
            "packed/built_once": "built once, sent three times",
            "packed/sent_again": "sent three times",
            "estimate/estimated": "numbers of variable length: reserved by estimate, written in place",
            "estimate/measured": "measured, reserved, written in place",
            "estimate/written_and_sent": "written elsewhere, then sent",
        },
    ),
    **{
        f"compose-{size}": (
            [f"{size} MiB, one process", "time", "to the kernels"],
            f"compose/kernels_{size}M",
            {
                f"compose/in_place_{size}M": "written in the frame, read there",
                f"compose/by_copies_{size}M": "sent, and copied out",
                f"compose/kernels_{size}M": "the two kernels alone, without a frame",
            },
        )
        for size in (1, 10)
    },
    **{
        f"stores-{mib}": (
            [f"{mib} MiB", "per frame", "to memcpy"],
            f"stores/{mib}_in_memcpy",
            {
                f"stores/{mib}_in_memcpy": "in by memcpy, read in place",
                f"stores/{mib}_in_past": "in past the cache, read in place",
                f"stores/{mib}_out_memcpy": "in and out by memcpy, the copy read",
                f"stores/{mib}_out_past": "in by memcpy, out past the cache, the copy read",
            },
        )
        for mib in (1, 4, 16, 64, 256)
    },
    "pages": (
        ["a ring of 64 MiB of", "64 KiB, per frame", "to small pages"],
        "pages/small",
        {f"pages/{kind}": kind for kind in ("hugetlb", "shmem-huge", "small")},
    ),
    "tap": (
        ["40 B, watched by", "per frame", "to none"],
        "tap/nobody",
        {"tap/nobody": "none", "tap/tap": "a tap", "tap/reader": "a reader", "tap/reader_and_tap": "reader and tap"},
    ),
}


# ---- Words and numbers ----------------------------------------------------------------------------------------------


def three(value):
    """Three digits: 1.23, 12.3, 123, 1,230."""
    if value == 0:
        return "0"
    power = int(f"{value:e}".split("e")[1])
    return f"{round(value, 2 - power):,.{max(0, 2 - power)}f}"


def ns(value):
    for unit, scale in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        if value < 1000 * scale:
            return f"{three(value / scale)} {unit}"
    return f"{three(value / 1e9)} s"


def us(value):
    return f"{three(value)} us"


def gb(value):
    return f"{value / 1e9:.2f}"


ratio = "{:.2f}".format
percent = "{:.3f} %".format


def size_of(count):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if int(count) >= 1 << shift and int(count) % (1 << shift) == 0:
            return f"{int(count) >> shift} {unit}"
    return f"{count} B"


def rate_of(per_second):
    return f"{three(per_second / 1e6)} million" if per_second >= 1e6 else three(per_second)


def table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def fill(text, blocks):
    """The page's text with the blocks, by name, in place. A block without its one place is a ValueError."""
    for name, block in blocks.items():
        new = f"<!-- measured: {name} -->\n{block}\n<!-- end -->"
        text, count = re.subn(rf"<!-- measured: {name} -->.*?<!-- end -->", lambda _, new=new: new, text, flags=re.S)
        if count != 1:
            raise ValueError(f"{count} places for the block '{name}'")
    return text
