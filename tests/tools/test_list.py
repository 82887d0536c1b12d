# SPDX-License-Identifier: Apache-2.0
"""ringcast list. Other tests make rings meanwhile: each test looks at its own."""

import os

from actors import Actor, scribble
from case import Case, run

NAME = f"list{os.getpid()}"
SEVERAL = f"list{os.getpid()}-two"


class List(Case):
    def rings_of(self, *actors):
        """What JSON has of the rings of these processes."""
        pids = {actor.pid for actor in actors}
        return [ring for ring in self.json("list")["rings"] if ring["pid"] in pids]

    def names(self):
        return self.succeed("list", "--names").splitlines()

    def test_each_ring_has_its_name_process_readers_and_memory(self):
        with Actor() as writer, Actor() as reader:
            handle = writer.ring(NAME, 1 << 20)
            reader.read(handle, "rank 1")
            reader.read(handle, "rank 2")
            (ring,) = self.rings_of(writer)
            told = {"ring": f"{NAME}@{writer.pid}", "name": NAME, "handle": handle}
            told |= {"command": "ring_actor", "readers": 2, "capacity": 1 << 20, "slots": 64}
            self.assertEqual(ring, ring | told)
            self.assertIn(ring["memory"], ("hugetlb", "shmem-huge", "pages"))
            text = self.succeed("list")
            self.assertRegex(
                text, rf"(?m)^{NAME} +{writer.pid} +ring_actor +2 +1.00 MiB +{ring['memory']}$"
            )

    def test_rings_come_and_go(self):
        with Actor() as writer:
            self.assertEqual(self.rings_of(writer), [])
            writer.ring(NAME)
            self.assertEqual(len(self.rings_of(writer)), 1)
            self.assertIn(NAME, self.names())
            writer.ask("close", 0)
            self.assertEqual(self.rings_of(writer), [])
            writer.ring(NAME)
            writer.die()
            self.assertEqual(self.rings_of(writer), [])
            self.assertNotIn(NAME, self.names())

    def test_names_are_what_the_other_commands_take(self):
        with Actor() as one, Actor() as two, Actor() as three, Actor() as unnamed:
            handles = {one.ring(NAME): NAME}
            handles |= {actor.ring(SEVERAL): f"{SEVERAL}@{actor.pid}" for actor in (one, two)}
            handles |= {handle: handle for handle in (three.ring(SEVERAL), three.ring(SEVERAL))}
            handles[unnamed.ring()] = f"@{unnamed.pid}"
            listed = self.names()
            for handle, name in handles.items():
                self.assertIn(name, listed)
                self.assertEqual(self.json("stat", name)["handle"], handle)
            self.assertNotIn(SEVERAL, listed)
            text = self.succeed("list")
            self.assertRegex(text, rf"(?m)^- +{unnamed.pid} ")
            for ring in self.rings_of(three):
                self.assertRegex(text, rf"(?m)^{SEVERAL} +{three.pid} .* {ring['handle']}$")
            self.assertRegex(text, r"\ANAME .* HANDLE\n")
            self.assertRegex(text, rf"(?m)^{NAME} +{one.pid} .*[^ ]$")

    def test_a_ring_of_an_incompatible_release_is_told(self):
        with Actor() as writer:
            writer.ring(NAME)
            scribble(writer, 8, b"\x7f" * 4)  # the layout's fingerprint
            (ring,) = self.rings_of(writer)
            self.assertIn("incompatible release", ring["error"])
            self.assertEqual([ring["ring"], ring["command"]], [f"@{writer.pid}", "ring_actor"])
            self.assertRegex(self.succeed("list"), rf"(?m)^@{writer.pid}: .*incompatible release")
            self.assertNotIn(f"@{writer.pid}", self.names())

    def test_a_name_that_is_none_is_not_shown(self):
        """The writer's process can put any bytes into its control page."""
        with Actor() as writer:
            writer.ring(NAME)
            scribble(writer, NAME.encode(), b"\x1b[2J\n\"'")
            (ring,) = self.rings_of(writer)
            self.assertEqual(ring["name"], "?")
            self.assertIn(ring["ring"], self.names())
            self.assertNotIn("\x1b", self.succeed("list"))
            self.assertEqual(self.json("stat", ring["ring"])["writer"]["pid"], writer.pid)

    def test_a_process_that_calls_itself_by_control_characters(self):
        with Actor() as writer:
            writer.ring(NAME)
            writer.ask("call", b'\x1b[2J"\xff)\t'.hex())
            (ring,) = self.rings_of(writer)
            self.assertEqual(ring["command"], '\\x1b[2J"\\xff)\\x09')
            self.assertIn('\\x1b[2J"\\xff)\\x09', self.succeed("list"))

    def test_wrong_words_are_refused(self):
        self.refused("list", "camera", says="unexpected argument 'camera'")
        self.refused("list", "--names", "--format", "json", says="--names prints names alone")

    def test_output_that_can_not_be_written_is_a_failure(self):
        for words in ([], ["--names"]):
            with Actor() as writer, open("/dev/full", "w", encoding="utf-8") as full:
                writer.ring(NAME)
                done = run("list", *words, stdout=full)
            self.assertEqual(done.returncode, 1)
            self.assertIn("can't write", done.stderr)
