# SPDX-License-Identifier: Apache-2.0
"""
One engine, run one way through some cases, in the engine's Python. Appends a row of JSON for each
case to a file.

session.py ENGINE WAY MODEL FILE CASE...        by run.py, which sets the environment; -: the cases
on standard input
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import threading
import time

import registry
import usage

VICTIM = 1  # the rank that is stopped or killed
AFTER = 8  # the steps before that
STOPPED = 3.0
PROMPT = 32  # token ids of each prompt
# Seconds without an output beside a stop; in a soak, bytes that are no growth.
STALL, GROWTH = (
    10.0,
    32 << 20,
)
STOPS = 0.1, 3.0  # in a soak: the seconds of a stop, from and to


def prompts(count):
    """The same on each call; the first two ids of the vocabulary have a meaning of their own."""
    source = random.Random(count)
    return [[source.randrange(2, 2048) for _ in range(PROMPT)] for _ in range(count)]


def digest(tokens):
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:10]


def milliseconds(values, percent):
    """A percentile of seconds, in milliseconds."""
    if not values:
        return None
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))], 3)


def longest(generation):
    """Seconds without an output, from the start on."""
    times = [generation.began, *generation.arrivals]
    return max(later - earlier for earlier, later in zip(times, times[1:]))


def first(generation):
    """Seconds until the first output."""
    return generation.arrivals[0] - generation.began


def steps_of(generation):
    """Seconds between outputs, without the two at each end, in which requests join and leave."""
    gaps = [later - earlier for earlier, later in zip(generation.arrivals, generation.arrivals[1:])]
    return gaps[2:-2]


def generate(engine, count, tokens, each_step=None):
    """The Generation of `count` requests, each with all tokens."""
    found = engine.generate(prompts(count), tokens, each_step)
    lengths = [len(each) for each in found.tokens]
    if lengths != [tokens] * count:
        raise RuntimeError(f"{lengths} tokens, not {tokens} of each of {count} requests")
    return found


# ---- The cases: each gives the fields of its row that it knows -----------------------------------


def steps(engine, count, tokens):
    """`count` requests at a time."""
    generate(engine, count, 8)
    with usage.Meter(os.getpid()) as meter:
        generation = generate(engine, count, tokens)
    gaps = steps_of(generation)
    return {
        "p50_ms": milliseconds(gaps, 50),
        "p99_ms": milliseconds(gaps, 99),
        "tokens_per_s": round(
            sum(map(len, generation.tokens)) / (generation.arrivals[-1] - generation.began), 1
        ),
        "cpu_percent": meter.percent,
        "by_process": meter.by_process,
        "token_hash": digest(generation.tokens),
    }


def pauses(engine, seconds, times):
    """
    Single tokens, with a pause before each: how soon the token comes, the CPU of all of the time,
    and that of the pauses alone (idle_percent).
    """
    generate(engine, 1, 1)
    took, tokens, idle = [], [], []
    with usage.Meter(os.getpid()) as meter:
        for _ in range(times):
            with usage.Meter(os.getpid()) as pause:
                time.sleep(seconds)
            idle.append(pause.percent)
            generation = generate(engine, 1, 1)
            took.append(first(generation))
            tokens += generation.tokens
    return {
        "p50_ms": milliseconds(took, 50),
        "p99_ms": milliseconds(took, 99),
        "cpu_percent": meter.percent,
        "idle_percent": round(statistics.mean(idle), 2),
        "by_process": meter.by_process,
        "token_hash": digest(tokens),
    }


def stopped(engine, tokens):
    """A rank is stopped for STOPPED seconds in mid-generation: the same tokens, and steps as before
    soon after."""
    victim = engine.workers()[VICTIM]
    resume = threading.Timer(STOPPED, os.kill, (victim, signal.SIGCONT))

    def stop(step):
        if step == AFTER:
            os.kill(victim, signal.SIGSTOP)
            resume.start()

    generation = generate(engine, 8, tokens, stop)
    resume.join()
    gaps = steps_of(generation)
    return {
        "p50_ms": milliseconds(gaps, 50),
        "p99_ms": milliseconds(gaps, 99),
        "token_hash": digest(generation.tokens),
        "ok": STOPPED * 0.9 <= max(gaps) <= STOPPED + STALL,
        "note": f"longest step {max(gaps):.2f} s",
    }


def stopped_while_idle(engine, times):
    """
    While there is no request, a rank is stopped for STOPPED seconds, and goes on: the time to the
    first token after that, and in the note the time to those before. What other ranks sent
    meanwhile must not hold the token up.
    """
    generate(engine, 1, 1)
    victim, before, after, wrong = engine.workers()[VICTIM], [], [], set()
    for _ in range(times):
        time.sleep(0.5)
        before.append(generate(engine, 1, 1))
        os.kill(victim, signal.SIGSTOP)
        time.sleep(STOPPED)
        wrong |= set() if usage.is_stopped(victim) else {"the rank was not stopped"}
        os.kill(victim, signal.SIGCONT)
        after.append(generate(engine, 1, 1))
    tokens = [generation.tokens for generation in before + after]
    wrong |= set() if all(found == tokens[0] for found in tokens) else {"tokens differ"}
    wrong |= {"a token was held up"} if max(map(first, after)) > STALL else set()
    return {
        "p50_ms": milliseconds([*map(first, after)], 50),
        "p99_ms": milliseconds([*map(first, after)], 99),
        "token_hash": digest(tokens),
        "ok": not wrong,
        "note": "; ".join(
            [f"before: {milliseconds([*map(first, before)], 50)} ms", *sorted(wrong)]
        ),
    }


def killed(engine, tokens):
    """
    A rank is killed in mid-generation: an error of those that belong to this, in time; how soon is
    p50_ms.
    """
    errors, seconds = engine.errors, engine.error_seconds
    victim, at = engine.workers()[VICTIM], []

    def kill(step):
        if step == AFTER:
            at.append(time.perf_counter())
            os.kill(victim, signal.SIGKILL)

    try:
        engine.generate(prompts(8), tokens, kill)
    except Exception as error:
        took = time.perf_counter() - at[0] if at else 0
        kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        wrong = [] if at else ["before the rank was killed"]
        wrong += [] if set(kinds) & set(errors) else [f"not one of {', '.join(errors)}"]
        wrong += [f"after {took:.0f} s, not within {seconds} s"] if took > seconds else []
        note = "; ".join([f"{kinds[0]}: {error}"[:200], *wrong])
        return {"p50_ms": milliseconds([took], 50), "ok": not wrong, "note": note}
    return {"ok": False, "note": "generation went on to its end without the rank"}


def growth(used):
    """
    What grew, of (bytes, descriptors) at times of a soak: the least of the last half beside that of
    the first.
    """
    halves = used[: len(used) // 2], used[len(used) // 2 :]
    early, late = ([min(column) for column in zip(*half)] for half in halves)
    if not early:
        return ["too short to say what grows"]
    found = ["memory grew"] if late[0] > early[0] + GROWTH else []
    return found + (["descriptors grew"] if late[1] > early[1] else [])


def soak(engine, seconds):
    """
    Requests after pauses of 1 to 300 s; a rank is stopped in half of them, or in the pause before:
    the same tokens each time, and neither memory nor descriptors grow after the first tenth.
    p50_ms, p99_ms: the first token.
    """
    generate(engine, 8, 8)
    source, began, used = random.Random(0), time.monotonic(), []
    expected, took, stops, wrong = {}, [], 0, set()
    while (passed := time.monotonic() - began) < seconds:
        pause = min(source.choice((1, 1, 1, 5, 20, 60, 300)), seconds / 10)
        count, victim = source.choice((1, 8)), source.choice(engine.workers())
        stop_at = source.choice((None, None, 0, source.randint(1, 24)))  # 0: in the pause
        stop_for = source.uniform(*STOPS)
        resume = threading.Timer(stop_for, os.kill, (victim, signal.SIGCONT))

        def stop(step, victim=victim, stop_at=stop_at, resume=resume):
            if step == stop_at:
                os.kill(victim, signal.SIGSTOP)
                resume.start()

        stop(0)
        time.sleep(pause)
        generation = generate(engine, count, 32, stop)
        # The engine may have given several tokens at once, and too few steps.
        if resume.ident is not None:
            resume.join()
            stops += 1
        took.append(first(generation))
        found = digest(generation.tokens)
        if expected.setdefault(count, found) != found:
            wrong.add(f"tokens differ after {passed:.0f} s")
        if longest(generation) > stop_for + STALL:
            wrong.add(f"{longest(generation):.1f} s without an output after {passed:.0f} s")
        if passed > seconds / 10:
            used.append((usage.memory(os.getpid()), usage.descriptors(os.getpid())))
    wrong |= set(growth(used))
    told = [f"{len(took)} times, a rank stopped in {stops}"]
    if used:
        (memory, descriptors), (memory_now, descriptors_now) = used[0], used[-1]
        told += [
            f"{memory >> 20} to {memory_now >> 20} MiB, {descriptors} to {descriptors_now} "
            f"descriptors"
        ]
    return {
        "p50_ms": milliseconds(took, 50),
        "p99_ms": milliseconds(took, 99),
        "ok": not wrong,
        "note": "; ".join(told + sorted(wrong)),
    }


# The name in a row -> the case; quick: with fewer tokens.
CASES = {
    "1 request": lambda engine, quick: steps(engine, 1, 64 if quick else 256),
    "8 requests": lambda engine, quick: steps(engine, 8, 64 if quick else 256),
    "64 requests": lambda engine, quick: steps(engine, 64, 48 if quick else 128),
    "pauses of 0.5 s": lambda engine, quick: pauses(engine, 0.5, 8 if quick else 20),
    "pauses of 1.5 s": lambda engine, quick: pauses(engine, 1.5, 4 if quick else 10),
    "stopped for 3 s": lambda engine, quick: stopped(engine, 64),
    "stopped for 3 s while idle": lambda engine, quick: stopped_while_idle(
        engine, 1 if quick else 5
    ),
    "killed": lambda engine, quick: killed(engine, 512),
    "soak": lambda engine, quick: soak(engine, int(os.environ.get("SOAK_SECONDS", "600"))),
}
ENDS = ["killed"]  # the engine is of no use afterwards


def is_in_place(workers, way):
    """What is wrong with the rings of these processes, or None."""
    rings = [usage.has_ring(pid) for pid in workers]
    if len(rings) != registry.RANKS:
        return f"{len(rings)} ranks were found, not {registry.RANKS}"
    if way == "ringcast":
        return None if all(rings) else "a rank has no ring of ringcast's"
    return "a rank has a ring of ringcast's" if any(rings) else None


def begin(doc, engines=None, cases=None):
    """
    For each script of run.py: the arguments, and the function that appends a row to the file, with
    the segments that the processes of the script map then. engines, cases: of which the script
    takes one and some; None: any engine, no cases.
    """
    parser = argparse.ArgumentParser(description=doc.split("\n", maxsplit=1)[0])
    parser.add_argument("engine", choices=engines)
    parser.add_argument("way", choices=registry.WAYS)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    if cases:
        parser.add_argument("cases", nargs="+", choices=[*cases, "-"])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()

    def tell(case, **fields):
        segments = sorted(usage.mapped(usage.family(os.getpid())))
        with open(arguments.file, "a") as file:
            file.write(json.dumps({"case": case, **fields, "segments": segments}) + "\n")

    return arguments, tell


def started(tell, began, workers, way):
    """The row of the start, after the first call that needs the rings."""
    wrong = is_in_place(workers, way)
    tell("start", p50_ms=milliseconds([time.perf_counter() - began], 50), ok=not wrong, note=wrong)


def main():
    arguments, tell = begin(__doc__, cases=CASES)
    began = time.perf_counter()
    engine = registry.engine(arguments.engine).start(arguments.model)
    started(tell, began, engine.workers(), arguments.way)
    case = before = None
    for case in map(str.strip, sys.stdin) if arguments.cases == ["-"] else arguments.cases:
        tell(case, **{"ok": True, **CASES[case](engine, arguments.quick)})
        open_now = usage.descriptors(os.getpid())
        before = before or open_now
    if before is not None and case not in ENDS:
        tell(
            "descriptors",
            ok=open_now <= before,
            note=f"{before} after the first case, {open_now} after the last",
        )
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
