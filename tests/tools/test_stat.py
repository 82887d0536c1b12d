# SPDX-License-Identifier: Apache-2.0
"""
ringcast stat: which reader holds a ring back, whatever state the reader is in and whatever it calls
itself.
"""

import json
import os
import re
import signal
import subprocess

from actors import Actor, await_until, scribble
from case import TOOL, Case, run

NAME = f"stat{os.getpid()}"
CAPACITY = 65536
# colour, quotes, a byte that is not UTF-8, CSI, right to left
HOSTILE = b'ra\x1b[31m"\\nk\xff\xc2\x9b\xe2\x80\xae'


def controls(text):
    """The characters of a text that control a terminal, but for the ends of lines."""
    return {
        c
        for c in text
        if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E)
    }


class Ring:
    """A ring with two readers: the first follows, the second takes nothing."""

    def __init__(self, name=NAME, first="rank 1", second="rank 2"):
        self.name = name
        self.writer, self.first, self.second = Actor(), Actor(), Actor()
        self.handle = self.writer.ring(name, CAPACITY)
        self.first.ask("follow", self.first.read(self.handle, first))
        self.slow = self.second.read(self.handle, second)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for actor in (self.writer, self.first, self.second):
            actor.__exit__()

    def fill(self):
        """
        Sends until there is no room, and further; there is no answer until the second reader goes
        on.
        """
        self.writer.tell("send", 0, 2 * CAPACITY // 1024, 1000)


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
        return text if re.search(wanted, text) else None

    return await_until(look, f"{' '.join(words)} does not say {wanted}")


class Stat(Case):
    def verdict(self, *words):
        """The first line, and what follows before the writer."""
        text = self.succeed("stat", NAME)
        for word in words:
            self.assertIn(str(word), text.split("\nwriter ")[0])
        return text

    def test_a_quiet_ring_is_held_back_by_none(self):
        with Actor() as writer, Actor() as reader:
            handle = writer.ring(NAME, CAPACITY)
            self.verdict(f"{NAME}@{writer.pid}: no reader")
            number = reader.read(handle, "rank 7")
            self.verdict("no reader")
            writer.ask("send", 0, 3, 1000)
            self.verdict("rank 7", reader.pid, "3 frames", "3.00 KiB")
            reader.ask("take", number, 2)
            self.verdict("rank 7", "1 frame,", "1.00 KiB")
            found = self.json("stat", NAME)
            self.assertEqual([found["held_back_by"], found["suspects"]], [None, []])
            told = {"frames": 3, "bytes": 3000, "waits_for_room": False}
            self.assertEqual({key: found["writer"][key] for key in told}, told)
            (peer,) = found["readers"]
            told = {"slot": 0, "name": "rank 7", "pid": reader.pid, "state": "active"}
            told |= {
                "lag_frames": 1,
                "lag_bytes": 1024,
                "blocked_ns": 0,
                "frames": 2,
                "bytes": 2000,
            }
            self.assertEqual({key: peer[key] for key in told}, told)

    def test_a_stopped_reader_is_named_until_it_goes_on(self):
        with Ring() as ring:
            ring.second.stop()
            ring.fill()
            found = await_held_back(self, NAME)
            by = found["held_back_by"]
            self.assertEqual(
                [by["name"], by["pid"], by["state"]], ["rank 2", ring.second.pid, "stopped"]
            )
            self.positive(by["blocked_ns"])
            self.assertIs(found["writer"]["waits_for_room"], True)
            self.assertEqual(by["lag_bytes"], 1024 * by["lag_frames"])
            self.positive(by["lag_frames"])
            self.assertEqual(by, {**found["readers"][1], "blocked_ns": by["blocked_ns"]})
            text = await_said(self, "held back by", "stat", NAME)
            for word in (
                "rank 2",
                f"{by['lag_frames']} frames",
                f"kill -CONT {ring.second.pid}",
                "waits for room",
            ):
                self.assertIn(word, text)
            ring.second.go_on()
            ring.second.ask("take", ring.slow, 2 * CAPACITY // 1024)
            self.assertEqual(ring.writer.process.stdout.readline(), "sent\n")
            self.assertIsNone(self.json("stat", NAME)["held_back_by"])
            self.verdict("no reader")

    def test_a_stopped_reader_is_named_where_the_writer_does_not_wait_for_room(self):
        """The writer of a lock-step engine waits for its workers' answers."""
        with Ring() as ring:
            ring.writer.ask("send", 0, 1, 1000)
            ring.second.stop()
            found = self.json("stat", NAME)
            self.assertEqual(
                [found["held_back_by"], found["writer"]["waits_for_room"]], [None, False]
            )
            self.assertEqual(found["suspects"], [found["readers"][1]])
            self.assertEqual(found["suspects"][0]["state"], "stopped")
            self.verdict("rank 2", "stopped", "1 frame,", f"kill -CONT {ring.second.pid}")
            ring.second.go_on()
            await_until(
                lambda: not self.json("stat", NAME)["suspects"],
                "the reader that goes on is a suspect",
            )
            self.verdict("no reader")

    def test_of_several_suspects_the_one_furthest_behind_is_named(self):
        with Ring() as ring, Actor() as third:
            third.read(ring.handle, "rank 3")
            ring.writer.ask("send", 0, 3, 1000)
            ring.second.ask("take", ring.slow, 1)
            await_until(
                lambda: not self.json("stat", NAME)["readers"][0]["lag_frames"],
                "the first reader lags",
            )
            for actor in (ring.first, ring.second, third):
                actor.stop()
            self.verdict("rank 3", f"kill -CONT {third.pid}", "2 more")
            self.assertEqual(len(self.json("stat", NAME)["suspects"]), 3)

    def test_a_suspect_beside_the_reader_that_holds_the_ring_back(self):
        with Ring() as ring:
            ring.fill()
            await_held_back(self, NAME)
            ring.first.stop()
            first, more, *_ = await_said(self, "held back by", "stat", NAME).splitlines()
            self.assertIn("rank 2", first)
            self.assertIn("1 more", more)

    def test_a_reader_that_was_evicted_is_named_after_the_dead(self):
        with Actor() as writer, Actor() as slow, Actor() as dead:
            handle = writer.ring(NAME, CAPACITY, slow_ns=1_000_000)
            slow.read(handle, "rank 1")
            writer.ask("send", 0, 2 * CAPACITY // 1024, 1000)
            self.verdict("rank 1", slow.pid, "evicted")
            dead.read(handle, "rank 2")
            dead.die()
            self.verdict("rank 2", "1 more")

    def test_a_running_reader_that_takes_nothing_is_named(self):
        with Ring(second=None) as ring:
            ring.fill()
            self.assertEqual(await_held_back(self, NAME)["held_back_by"]["state"], "active")
            await_said(
                self, rf"held back by reader 1 \(pid {ring.second.pid}, running", "stat", NAME
            )

    def test_a_dead_reader_is_shown_as_dead(self):
        with Ring() as ring:
            ring.writer.ask("send", 0, 3, 1000)
            ring.second.die()
            found = self.json("stat", NAME)
            self.assertEqual(
                [found["readers"][1]["state"], found["suspects"]], ["dead", [found["readers"][1]]]
            )
            text = self.verdict("rank 2", "dead", "3 frames")
            self.assertNotIn("kill -CONT", text)
            self.assertRegex(text, rf"(?m)^ +1  rank 2 +{ring.second.pid}  dead ")

    def test_a_stopped_writer_is_shown_as_stopped(self):
        with Actor() as writer:
            writer.ring(NAME)
            self.assertEqual(self.json("stat", NAME)["writer"]["state"], "running")
            writer.stop()
            self.assertEqual(self.json("stat", NAME)["writer"]["state"], "stopped")
            self.assertRegex(
                self.succeed("stat", NAME),
                rf"(?m)^writer +pid {writer.pid} \(ring_actor\), stopped$",
            )

    def test_a_name_of_several_rings_lists_them(self):
        with Actor() as one, Actor() as two:
            handles = [actor.ring(NAME) for actor in (one, two)]
            handles.append(two.ring(NAME))
            done = run("stat", NAME)
            self.assertEqual(done.returncode, 4)
            self.assertEqual(done.stdout, "")
            for words in (f"{NAME}@{one.pid}", handles[1], handles[2]):
                self.assertIn(words, done.stderr)
                found = self.json("stat", words)
                self.assertEqual([found["name"], found["ring"]], [NAME, words])
            for words in (f"{NAME}@{two.pid}", f"@{two.pid}"):
                done = run("stat", words)
                self.assertEqual(done.returncode, 4)
                for handle in handles[1:]:
                    self.assertIn(handle, done.stderr)

    def test_a_ring_that_there_is_not(self):
        with Actor() as writer:
            gone = writer.ring(NAME)
        for words in (NAME, f"{NAME}@1", "@1", gone):
            for options in ([], ["--watch"], ["--prometheus"], ["--format", "json"]):
                done = run("stat", words, *options)
                self.assertEqual(done.returncode, 3, done)
                self.assertEqual(done.stdout, "")

    def test_wrong_words_are_refused(self):
        self.refused("stat", says="say which ring; 'ringcast list' shows all")
        self.refused("stat", "a", "b", says="unexpected argument 'b'")
        self.refused("stat", "a", "--prometheus", "--watch", says="leave out --format and --watch")
        self.refused(
            "stat", "--prometheus", "--format", "json", says="leave out --format and --watch"
        )
        for value in ("0", "-1", "x", "nan", ""):
            self.refused(
                "stat",
                "a",
                f"--watch={value}",
                says=f"'{value}' is not valid for --watch: it takes a number",
            )
        self.assertEqual(run("stat", "no ring").returncode, 1)


class Hostile(Case):
    """A reader's name is any bytes that its process chooses, before and after it attached."""

    def check(self, name):
        text = self.succeed("stat", NAME)
        self.assertEqual(controls(text), set(), ascii(text))
        raw = subprocess.run(
            [TOOL, "stat", NAME, "--format", "json"], stdout=subprocess.PIPE, timeout=60, check=True
        )
        found = json.loads(raw.stdout.decode("utf-8", "strict"))
        self.assertEqual(controls(raw.stdout.decode()), set())
        self.assertEqual(found["readers"][0]["name"], name)
        prometheus = self.succeed("stat", NAME, "--prometheus")
        self.assertEqual(controls(prometheus), set(), ascii(prometheus))
        parse_prometheus(self, prometheus)
        return text

    def test_names_of_control_characters(self):
        with Actor() as writer, Actor() as reader:
            handle = writer.ring(NAME)
            reader.read(handle, "rank 1")
            self.check("rank 1")
            scribble(writer, b"rank 1", HOSTILE[:31])
            found = self.json("stat", NAME)["readers"][0]["name"]
            self.assertNotIn(
                "\x1b[", found, "the library shows no control characters of another process"
            )
            self.check(found)

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


def parse_prometheus(case, text):
    """{(name, labels): value}, once the text is found to be as the format asks."""
    types, samples, current = {}, {}, None
    case.assertTrue(text.endswith("\n"))
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            case.assertNotIn(current, types, "a metric's lines stand together")
            case.assertGreater(len(line.split(" ", 3)[3]), 3)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            case.assertEqual(name, current)
            case.assertEqual(kind, "counter" if name.endswith("_total") else "gauge")
            types[name] = kind
        else:
            name, labels, value = parse_sample(case, line)
            case.assertEqual(name, current)
            case.assertNotIn((name, labels), samples, "a series has one value")
            samples[name, labels] = float(value)
    case.assertTrue(all(name.startswith("ringcast_") for name in types))
    return samples


def parse_sample(case, line):
    name, rest = line.split("{", 1) if "{" in line else (line.split(" ")[0], None)
    if rest is None:
        return name, (), line.split(" ")[1]
    labels = []
    while not rest.startswith("} "):
        key, rest = rest.split('="', 1)
        value = ""
        while rest[0] != '"':
            if rest[0] == "\\":
                case.assertIn(rest[1], '"\\n')
                rest = rest[1:]
            value, rest = value + rest[0], rest[1:]
        labels.append((key.lstrip(","), value))
        rest = rest[1:]
    return name, tuple(labels), rest[2:]


class Prometheus(Case):
    def samples(self, *words):
        return parse_prometheus(self, self.succeed("stat", *words, "--prometheus"))

    def test_the_metrics_are_those_of_json(self):
        with Ring() as ring:
            ring.second.stop()
            ring.fill()
            await_held_back(self, NAME)
            metrics = await_said(
                self, r"_blocked_seconds\{.*\} .*[1-9]", "stat", NAME, "--prometheus"
            )
            samples, found = parse_prometheus(self, metrics), await_held_back(self, NAME)
            of_ring = (("ring", NAME), ("pid", str(ring.writer.pid)))
            for name, value in (
                ("ringcast_frames_total", found["writer"]["frames"]),
                ("ringcast_bytes_total", found["writer"]["bytes"]),
                ("ringcast_capacity_bytes", CAPACITY),
                ("ringcast_readers", 2),
                ("ringcast_writer_stopped", 0),
            ):
                self.assertEqual(samples[name, of_ring], value, name)
            self.assertEqual(samples["ringcast_up", of_ring], 1)
            self.assertEqual(
                samples["ringcast_writer_info", (*of_ring, ("command", "ring_actor"))], 1
            )
            self.assertEqual(samples["ringcast_rings", ()], 1)
            slow = (
                *of_ring,
                ("reader", "rank 2"),
                ("slot", "1"),
                ("reader_pid", str(ring.second.pid)),
            )
            by = found["held_back_by"]
            self.assertEqual(samples["ringcast_reader_lag_frames", slow], by["lag_frames"])
            self.assertEqual(samples["ringcast_reader_lag_bytes", slow], by["lag_bytes"])
            self.assertEqual(samples["ringcast_reader_stalls_total", slow], by["stalls"])
            self.assertEqual(samples["ringcast_reader_state", (*slow, ("state", "stopped"))], 1)
            blocked = samples["ringcast_reader_blocked_seconds", slow]
            self.assertTrue(0 < blocked <= by["blocked_ns"] / 1e9, "it was asked for before")

    def test_all_rings_and_each_series_once(self):
        with Actor() as one, Actor() as two, Actor() as reader:
            handles = [
                one.ring(NAME),
                one.ring(NAME),
                one.ring(),
                one.ring(),
                two.ring(NAME),
                two.ring(f"{NAME}.b"),
            ]
            for handle in handles:
                for _ in range(2):
                    reader.read(handle, "rank")
            samples = self.samples()
            own = {str(one.pid), str(two.pid)}
            up = [
                labels
                for name, labels in samples
                if name == "ringcast_up" and dict(labels)["pid"] in own
            ]
            self.assertEqual(len(up), len(handles))
            lags = [labels for name, labels in samples if name == "ringcast_reader_lag_frames"]
            self.assertEqual(
                len([labels for labels in lags if dict(labels)["pid"] in own]), 2 * len(handles)
            )

    def test_rings_of_an_incompatible_release_are_one_series(self):
        with Actor() as writer:
            for number in range(2):
                writer.ring(NAME)
                scribble(writer, 8, b"\x7f" * 4, number)  # the layout's fingerprint
            samples = self.samples()
            own = (("ring", f"@{writer.pid}"), ("pid", str(writer.pid)))
            self.assertEqual(samples["ringcast_up", own], 0)
            self.assertEqual(samples["ringcast_writer_info", (*own, ("command", "ring_actor"))], 1)


class Watch(Case):
    def watch(self, *words):
        return subprocess.Popen(
            [TOOL, "stat", NAME, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def read_until(self, process, wanted):
        """The lines up to the first that has `wanted`."""
        lines = []
        while not lines or wanted not in lines[-1]:
            line = process.stdout.readline()
            self.assertTrue(line, lines)
            lines.append(line)
        return "".join(lines)

    def test_blocks_have_rates_and_end_with_the_writer(self):
        with Ring() as ring:
            ring.second.ask("follow", ring.slow)
            ring.writer.ask("stream", 0, 1000, 1000)
            process = self.watch("--watch=0.05")
            self.assertNotIn("now ", self.read_until(process, "1  rank 2"))
            block = self.read_until(process, "1  rank 2")
            self.assertRegex(block, r"(?m)^now +[\d.]+ frames/s, [\d.]+ MB/s$")
            self.assertIn("FRAMES/S", block)
            ring.writer.die()
            _, said = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 5)
            self.assertEqual(said, f"ringcast: the writer of {NAME}@{ring.writer.pid} is gone\n")

    def test_a_ring_that_is_closed_ends_it_too(self):
        with Actor() as writer:
            writer.ring(NAME)
            process = self.watch("--watch=0.05")
            self.read_until(process, "memory")
            writer.ask("close", 0)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 5)

    def test_json_is_an_object_on_each_line(self):
        with Ring() as ring:
            ring.second.ask("follow", ring.slow)
            process = self.watch("--watch=0.05", "--format", "json")
            found = [json.loads(process.stdout.readline()) for _ in range(3)]
            self.assertNotIn("frames_per_s", found[0]["writer"])
            self.assertIn("frames_per_s", found[1]["writer"])
            self.assertIn("bytes_per_s", found[2]["readers"][1])
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)

    def test_an_interrupt_is_a_usual_end(self):
        with Actor() as writer:
            writer.ring(NAME)
            process = self.watch("--watch=3600")
            self.read_until(process, "memory")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            self.assertEqual([process.returncode, said], [0, ""])

    def test_a_closed_pipe_ends_it(self):
        for ignored in (False, True):
            with Actor() as writer, self.subTest(ignored=ignored):
                writer.ring(NAME)
                process = subprocess.Popen(
                    [TOOL, "stat", NAME, "--watch=0.05"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    restore_signals=not ignored,
                )
                process.stdout.readline()
                process.stdout.close()
                said = process.stderr.read()
                self.assertEqual(process.wait(timeout=60), 1 if ignored else -signal.SIGPIPE)
                self.assertIn(b"can't write" if ignored else b"", said)
                process.stderr.close()
