# SPDX-License-Identifier: Apache-2.0
"""
ringcast stat: which reader holds a ring back, whatever state the reader is in and whatever it calls
itself.
"""

import json
import os
import re
import subprocess

from actors import Actor, await_until, scribble
from case import TOOL, Case, run

NAME = f"stat{os.getpid()}"
CAPACITY = 65536
# colour, quotes, a byte that is not UTF-8, CSI, right to left
HOSTILE = b'ra\x1b[31m"\\nk\xff\xc2\x9b\xe2\x80\xae'
CONTROL = re.compile("[\0-\t\v-\x1f\x7f-\x9f\u202a-\u202e]")


class Ring:
    """A ring with two readers: the first follows, the second takes nothing."""

    def __init__(self, name=NAME, first="rank 1", second="rank 2", slow_ns=0):
        self.name = name
        self.writer, self.first, self.second = self.actors = [Actor(), Actor(), Actor()]
        self.handle = self.writer.ring(name, CAPACITY, slow_ns)
        self.label = f"{name}@{self.writer.pid}"
        self.first.ask("follow", self.first.read(self.handle, first))
        self.slow = self.second.read(self.handle, second)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for actor in self.actors:
            actor.__exit__()

    def send(self, frames):
        self.writer.ask("send", 0, frames, 1000)

    def fill(self):
        """
        Sends until there is no room, and further; there is no answer until the second reader goes
        on.
        """
        self.writer.tell("send", 0, 2 * CAPACITY // 1024, 1000)

    def join(self, name):
        self.actors.append(Actor())
        self.actors[-1].read(self.handle, name)
        return self.actors[-1]


def await_held_back(case, name):
    """
    The JSON, once the second reader holds a `Ring` back, and the first reader has read all frames.
    """

    def look():
        found = case.json("stat", name)
        return found if found["held_back_by"] and not found["readers"][0]["lag_frames"] else None

    return await_until(look, "no reader holds the ring back")


def await_said(case, wanted, *words):
    """
    The command's text, once the pattern is in the text. A writer without a CPU for a second is not
    seen to wait.
    """

    def look():
        text = case.succeed(*words)
        return text if re.search(wanted, text, re.S) else None

    return await_until(look, f"{' '.join(words)} does not say {wanted}")


def stop_three(ring):
    third = ring.join("rank 3")
    ring.send(3)
    ring.second.ask("take", ring.slow, 1)
    await_until(
        lambda: not ring.case.json("stat", NAME)["readers"][0]["lag_frames"],
        "the first reader lags",
    )
    for actor in ring.actors[1:]:
        actor.stop()
    return third


# What happens (last: who is named), the state of the reader that holds the ring back, the states of
# the suspects, and what stands before the line of the writer. PID: of the one who is named.
STATES = (
    (lambda ring: ring.second.ask("follow", ring.slow), None, [], "no reader"),
    (lambda ring: ring.send(3), None, [], "rank 2.* 3 frames.*3.00 KiB"),
    (lambda ring: (ring.send(1), ring.second.stop()), None, ["stopped"],
     "rank 2.*stopped.* 1 frame,.*kill -CONT PID"),
    (lambda ring: (ring.send(3), ring.second.die()), None, ["dead"], "rank 2.*dead.* 3 frames"),
    (lambda ring: ring.fill(), "active", [], r"held back by reader 1 'rank 2' \(pid PID, running"),
    (lambda ring: (ring.second.stop(), ring.fill()), "stopped", ["stopped"],
     r"held back by.*rank 2.* \d+ frames.*kill -CONT PID"),
    (lambda ring: (ring.fill(), await_held_back(ring.case, NAME), ring.first.stop()), "active",
     ["stopped"], "held back by.*rank 2.*1 more"),
    (stop_three, None, ["stopped"] * 3, "rank 3.*kill -CONT PID.*2 more"),
)  # fmt: skip


class Stat(Case):
    def check_state(self, ring, pid, held_back, suspects, said):
        def is_so():
            found = self.json("stat", NAME)
            by = found["held_back_by"]
            states = [peer["state"] for peer in found["suspects"]]
            return [by and by["state"], states] == [held_back, suspects]

        await_until(is_so, f"not {held_back}, {suspects}")
        await_said(self, said.replace("PID", str(pid)) + r".*\nwriter ", "stat", NAME)

    def test_the_reader_to_look_at_is_named(self):
        for happens, *told in STATES:
            with self.subTest(told=told), Ring() as ring:
                ring.case = self
                named = happens(ring)
                pid = named.pid if isinstance(named, Actor) else ring.second.pid
                self.check_state(ring, pid, *told)

    def test_an_evicted_reader_is_named_after_the_dead(self):
        with Ring(slow_ns=1_000_000) as ring:
            ring.send(2 * CAPACITY // 1024)
            self.check_state(ring, ring.second.pid, None, ["evicted"], "rank 2.*PID.*evicted")
            ring.join("rank 3").die()
            self.check_state(ring, 0, None, ["evicted", "dead"], "rank 3.*1 more")

    def test_figures(self):
        with Ring() as ring:
            ring.send(3)
            ring.second.ask("take", ring.slow, 2)
            found = self.json("stat", NAME)
            writer = {"frames": 3, "bytes": 3000, "waits_for_room": False, "state": "running"}
            self.assertEqual(found["writer"], found["writer"] | writer)
            reader = {"slot": 1, "name": "rank 2", "pid": ring.second.pid, "state": "active"}
            reader |= {"lag_frames": 1, "lag_bytes": 1024, "blocked_ns": 0}
            reader |= {"frames": 2, "bytes": 2000}
            self.assertEqual(found["readers"][1], found["readers"][1] | reader)

    def test_a_stopped_reader_holds_the_ring_back_until_it_goes_on(self):
        with Ring() as ring:
            ring.second.stop()
            ring.fill()
            found = await_held_back(self, NAME)
            by = found["held_back_by"]
            self.positive(by["blocked_ns"])
            self.assertIs(found["writer"]["waits_for_room"], True)
            self.assertEqual(by["lag_bytes"], 1024 * by["lag_frames"])
            self.assertEqual(by, {**found["readers"][1], "blocked_ns": by["blocked_ns"]})
            ring.second.go_on()
            ring.second.ask("take", ring.slow, 2 * CAPACITY // 1024)
            self.assertEqual(ring.writer.process.stdout.readline(), "sent\n")
            self.check_state(ring, 0, None, [], "no reader")

    def test_a_stopped_writer_is_shown_as_stopped(self):
        with Actor() as writer:
            writer.ring(NAME)
            writer.stop()
            self.assertEqual(self.json("stat", NAME)["writer"]["state"], "stopped")
            self.assertRegex(self.succeed("stat", NAME), rf"\nwriter .*{writer.pid}.* stopped\n")

    def test_a_name_of_several_rings_lists_them(self):
        with Actor() as one, Actor() as two:
            handles = [actor.ring(NAME) for actor in (one, two, two)]
            own, others = f"{NAME}@{one.pid}", (f"{NAME}@{two.pid}", f"@{two.pid}")
            for words, listed in (NAME, [own, *handles[1:]]), *((x, handles[1:]) for x in others):
                done = run("stat", words)
                self.assertEqual([done.returncode, done.stdout], [4, ""])
                for alone in listed:
                    self.assertIn(alone, done.stderr)
                    self.assertEqual(self.json("stat", alone)["ring"], alone)

    def test_a_ring_that_there_is_not(self):
        with Actor() as writer:
            gone = writer.ring(NAME)
        for words in (NAME, f"{NAME}@1", "@1", gone):
            for options in ([], ["--watch"], ["--prometheus"], ["--format", "json"]):
                done = run("stat", words, *options)
                self.assertEqual([done.returncode, done.stdout], [3, ""])
        self.assertEqual(run("stat", "no ring").returncode, 1)

    def test_wrong_words_are_refused(self):
        self.refused("stat", says="which ring")
        self.refused("stat", "a", "b", says="'b'")
        self.refused("stat", "a", "--prometheus", "--watch", says="--watch")
        self.refused("stat", "--prometheus", "--format", "json", says="--format")
        for value in ("0", "-1", "x", "nan", ""):
            self.refused("stat", "a", f"--watch={value}", says=f"'{value}' is not valid")


class Hostile(Case):
    """A reader's name is any bytes that its process chooses, before and after it attached."""

    def check(self, name):
        text, prometheus = self.succeed("stat", NAME), self.succeed("stat", NAME, "--prometheus")
        words = [TOOL, "stat", NAME, "--format", "json"]
        raw = subprocess.run(words, stdout=subprocess.PIPE, timeout=60, check=True).stdout.decode()
        for shown in (text, prometheus, raw):
            self.assertIsNone(CONTROL.search(shown), ascii(shown))
        parse_prometheus(self, prometheus)
        self.assertEqual(json.loads(raw)["readers"][0]["name"], name)
        return text

    def test_names_of_control_characters(self):
        with Actor() as writer, Actor() as reader:
            reader.read(writer.ring(NAME), "rank 1")
            scribble(writer, b"rank 1", HOSTILE[:31])
            self.check(self.json("stat", NAME)["readers"][0]["name"])

    def test_names_are_shown_as_the_library_makes_them_printable(self):
        for given, shown in (
            ('say "no"', 'say "no"'),
            ("back\\slash", "back\\slash"),
            ("a\x9bb\u202eb", "a\\xc2\\x9bb\\xe2\\x80\\xaeb"),
            ("\u00e9\u4e2d\U0001f600", "\u00e9\u4e2d\U0001f600"),
            (b"\xff\xc0\x80\xed\xa0\x80", "\\xff\\xc0\\x80\\xed\\xa0\\x80"),
        ):
            with self.subTest(name=given), Actor() as writer, Actor() as reader:
                reader.read(writer.ring(NAME), given)
                self.assertIn(shown, self.check(shown))


LABEL = r'(\w+)="((?:[^"\\]|\\["\\n])*)"'
SAMPLE = re.compile(rf"(ringcast_\w+)(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")


def parse_prometheus(case, text):
    """{(name, labels): value}, once the text is found to be as the format asks."""
    samples, kinds = {}, set()
    for metric in re.split(r"^(?=# HELP )", text, flags=re.M)[1:]:
        head = re.match(r"# HELP (\w+) \S.*\n# TYPE \1 (counter|gauge)\n", metric)
        name, kind = head.groups()
        case.assertNotIn(name, kinds, "a metric's lines stand together")
        case.assertEqual(kind == "counter", name.endswith("_total"))
        kinds.add(name)
        for line in metric[head.end() :].splitlines():
            found = SAMPLE.fullmatch(line)
            case.assertTrue(found and found[1] == name, line)
            labels = re.findall(LABEL, found[2] or "")
            key = name, tuple((key, re.sub(r"\\(.)", r"\1", value)) for key, value in labels)
            case.assertNotIn(key, samples, "a series has one value")
            samples[key] = float(found[found.lastindex])
    case.assertTrue(text.startswith("# HELP ") and text.endswith("\n"))
    return samples


class Prometheus(Case):
    def samples(self, *words):
        return parse_prometheus(self, self.succeed("stat", *words, "--prometheus"))

    def test_the_metrics_are_those_of_json(self):
        with Ring() as ring:
            ring.second.stop()
            ring.fill()
            await_held_back(self, NAME)
            blocked = r"_blocked_seconds\{[^\n]*\} [^\n]*[1-9]"
            metrics = await_said(self, blocked, "stat", NAME, "--prometheus")
            samples, found = parse_prometheus(self, metrics), await_held_back(self, NAME)
            by, of_ring = found["held_back_by"], (("ring", NAME), ("pid", str(ring.writer.pid)))
            pid = ("reader_pid", str(ring.second.pid))
            slow = (*of_ring, ("reader", "rank 2"), ("slot", "1"), pid)
            for name, labels, value in (
                ("frames_total", of_ring, found["writer"]["frames"]),
                ("bytes_total", of_ring, found["writer"]["bytes"]),
                ("capacity_bytes", of_ring, CAPACITY),
                ("readers", of_ring, 2),
                ("writer_stopped", of_ring, 0),
                ("up", of_ring, 1),
                ("writer_info", (*of_ring, ("command", "ring_actor")), 1),
                ("rings", (), 1),
                ("reader_lag_frames", slow, by["lag_frames"]),
                ("reader_lag_bytes", slow, by["lag_bytes"]),
                ("reader_stalls_total", slow, by["stalls"]),
                ("reader_state", (*slow, ("state", "stopped")), 1),
            ):
                self.assertEqual(samples[f"ringcast_{name}", labels], value, name)
            seconds = samples["ringcast_reader_blocked_seconds", slow]
            self.assertTrue(0 < seconds <= by["blocked_ns"] / 1e9, "it was asked for before")

    def test_all_rings_and_each_series_once(self):
        with Actor() as one, Actor() as two, Actor() as reader:
            handles = [one.ring(name) for name in (NAME, NAME, None, None)]
            handles += [two.ring(name) for name in (NAME, f"{NAME}.b")]
            for handle in 2 * handles:
                reader.read(handle, "rank")
            own, samples = {str(one.pid), str(two.pid)}, self.samples()
            series = [name for name, labels in samples if dict(labels).get("pid") in own]
            self.assertEqual(series.count("ringcast_up"), len(handles))
            self.assertEqual(series.count("ringcast_reader_lag_frames"), 2 * len(handles))

    def test_rings_of_an_incompatible_release_are_one_series(self):
        with Actor() as writer:
            for number in range(2):
                writer.ring(NAME)
                scribble(writer, 8, b"\x7f" * 4, number)  # the layout's fingerprint
            samples = self.samples()
            own = (("ring", f"@{writer.pid}"), ("pid", str(writer.pid)))
            self.assertEqual(samples["ringcast_up", own], 0)
            self.assertEqual(samples["ringcast_writer_info", (*own, ("command", "ring_actor"))], 1)
