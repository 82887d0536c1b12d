#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Whether each ordering is there in the machine code for 64-bit Arm, since no test that x86 runs could
miss it.

arm.py COMPILER: compiles without the assertions, for the architecture's version 8.1, and looks at
the instructions that order memory in each function, in their order. docs/arm.md says what they are
for.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORDERING = re.compile(
    r"\t(ldar|ldapu?r|stlu?r|dmb|ld(?:set|add|clr)\w*|cas\w*|swp\w*)[bh]?\t+([^\n]*)"
)

# What must occur in a function, in this order, with whatever between. "a|b": in one of them, as the
# compiler inlines.
EXPECTED = {
    "tests/lint/arm_probe.c": {
        "probe_commit": ["stlr", "stlr", "stlr"],  # W2, N0, W3
        "probe_next": ["ldar", "ldar"],  # R1, R2
        "probe_release": ["dmb ishld", "stlr"],  # A0, A1
        "probe_is_asleep": ["dmb ish", "ldar"],  # E5, E6
        "probe_is_asleep_unfenced": ["ldar"],  # E6
        "probe_announce": ["ldaddal"],  # E1
        "probe_advance": ["casal"],  # E7
    },
    "ring/ring.c": {
        "rc_ring_lowest": ["dmb ish", "ldar", "ldar"],  # G0, G1, G2
        "grant|ensure|rc_ring_reserve_slowly": ["dmb ish"],  # L1
        "rc_ring_read": ["ldar"],  # R1, and T1
        "rc_ring_next": ["dmb ishld"],  # R3
    },
    "ring/held.c": {
        "rc_ring_release": ["dmb ishld"],  # A0, before the call of advance_cursor
        "advance_cursor": ["stlr"],  # A1
    },
    "ring/slot.c": {
        "rc_slot_claim": ["casal"],  # J1
        "rc_slot_activate": [
            "dmb ish",
            "ldar",
            "ldar",
            "stlr",
            "casal",
        ],  # J2, J3, what stands at the tail, cursor, J4
        "rc_slot_reap": ["casal"],
        "rc_slot_evict": ["casal"],  # V1
    },
    "ring/newest.c": {
        "rc_newest_note": ["dmb ish", "stlr"],  # N2, N4
        "place_in|look_up|find_tagged|rc_newest_find": ["ldar", "dmb ishld"],  # N5, N7
        "find_newest|rc_newest_find": ["ldar"],  # J5
    },
    "ring/tap.c": {
        "try_copy|rc_tap_next": ["dmb ishld", "ldar", "dmb ishld", "dmb ishld"]
    },  # T2, T3, T2 and T5
}


def functions(compiler, source):
    """The text of each function, by its name."""
    flags = [
        "-std=gnu11",
        "-O2",
        "-DNDEBUG",
        "-march=armv8.1-a",
        "-fno-inline-functions-called-once",
        f"-I{ROOT}",
    ]
    command = [compiler, *flags, f"-I{ROOT}/include", "-S", "-o", "-", str(ROOT / source)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    parts = re.split(r"^(\w[\w.]*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def orderings(body):
    """What orders memory in it; of an operand only the kind of barrier."""
    return [
        f"dmb {what}" if name == "dmb" else name.replace("stlur", "stlr")
        for name, what in ORDERING.findall(body)
    ]


def has(found, expected):
    """Whether all of `expected` come in `found`, in that order."""
    rest = iter(found)
    return all(any(want == have for have in rest) for want in expected)


def main(compiler):
    wrong = 0
    for source, expected in EXPECTED.items():
        bodies = functions(compiler, source)
        for names, wanted in expected.items():
            found = {name: orderings(bodies[name]) for name in names.split("|") if name in bodies}
            if not any(has(each, wanted) for each in found.values()):
                print(
                    f"{source}: {names}: expected, in this order, {wanted}; found "
                    f"{found or 'no such function'}"
                )
                wrong += 1
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
