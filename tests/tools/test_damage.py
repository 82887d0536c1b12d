# SPDX-License-Identifier: Apache-2.0
"""Recordings that are torn, damaged, or made to do harm."""

import fcntl
import json
import random

from case import TOOL, run
from recordings import Recordings, of_type

BLOCK = 4096


class Damage(Recordings):
    def write(self, data):
        self.file.write_bytes(data)
        return self

    def test_a_file_torn_at_every_byte_of_the_last_record(self):
        data, places, _ = self.whole(count=5, least=100, most=260)
        start, end = places[-1]
        before = self.dump()[-1]
        for cut in range(start, end + 1):
            found = self.write(data[:cut]).dump()[-1]
            is_whole = cut == end
            self.assertEqual((found["frames"], found["state"]), (4 + is_whole, "not ended"), cut)
            self.assertEqual(found["torn_bytes"], 0 if is_whole else cut - start)
            self.assertEqual((found["damages"], found["missing_frames"]), (0, 0))
        self.assertEqual(found["hash"], before["hash"])

    def test_a_torn_file_whose_rest_is_zeros(self):
        data, places, _ = self.whole(count=5, least=3000, most=9000)
        start, end = places[-1]
        for cut in range(start, end, 509):
            found = self.write(data[:cut] + bytes(1 << 20)).dump()[-1]
            self.assertEqual((found["frames"], found["damages"]), (4, 0))
            # Only zeros: nothing is torn.
            self.assertEqual(found["torn_bytes"] == 0, cut == start)
            self.assertEqual(self.replay()[1]["frames"], 4)

    def test_blocks_that_were_never_written_are_no_damage_of_a_file_without_an_end(self):
        data, places, _ = self.whole(count=60, least=1000, most=3000)
        end = places[-1][1]
        hole = data[: 5 * BLOCK] + bytes(3 * BLOCK) + data[8 * BLOCK : end]
        found = self.write(hole).dump()[-1]
        self.assertEqual((found["damages"], found["frames"] + found["missing_frames"]), (0, 60))
        self.assertGreater(found["unwritten_bytes"], 3 * BLOCK - 1)
        self.write(hole + data[end:]).dump(status=1)  # with an end it is
        self.file.unlink()
        data, places, _ = self.whole(count=5, least=50000, most=50000)
        hole = (places[2][0] // BLOCK + 3) * BLOCK  # within a frame
        lines = self.write(data[:hole] + bytes(BLOCK) + data[hole + BLOCK : places[-1][1]]).dump()
        kinds = [line["type"] for line in lines[1:-1]]
        self.assertEqual(kinds, ["frame", "frame", "unwritten", "frame", "frame"])
        self.assertEqual((lines[-1]["damages"], lines[-1]["missing_frames"]), (0, 1))

    def test_damage_in_the_middle_costs_only_what_is_damaged(self):
        data, places, _ = self.whole(count=40, least=200, most=3000)
        whole = self.dump()
        chance = random.Random(1)
        for round in range(60):
            number = chance.randrange(1, 39)
            start, end = places[number]
            size = whole[1 + number]["bytes"]
            hash_at = start + 48 + (size + 7) // 8 * 8
            within = chance.choice([(start, start + 48 + size), (hash_at, hash_at + 8)])
            lines = self.flipped(data, chance.randrange(*within), chance.randrange(8)).dump(
                status=1
            )
            found = [(at["offset"], at["bytes"], at["frames"]) for at in of_type(lines, "damage")]
            self.assertEqual(found, [(start, end - start, 1)], round)
            self.assertEqual(self.positions(lines), self.positions(whole, {number}))
            self.assertEqual(lines[-1]["missing_frames"], 1)
        got, summary = self.replay(status=1)
        self.assertEqual((int(got.split()[0]), summary["damages"]), (39, 1))

    def flipped(self, data, place, bit=0):
        """The file with one bit changed."""
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        return self.write(changed)

    def positions(self, lines, without=()):
        frames = of_type(lines, "frame")
        return [frame["position"] for number, frame in enumerate(frames) if number not in without]

    def test_blocks_that_are_gone_or_swapped(self):
        data, places, _ = self.whole(count=200, least=10, most=1500)
        whole = self.dump()
        inner = data[6 * BLOCK : 9 * BLOCK]
        swapped = data[: 6 * BLOCK] + inner[BLOCK:] + inner[:BLOCK] + data[9 * BLOCK :]
        lost = {n for n, (start, end) in enumerate(places) if end > 6 * BLOCK and start < 9 * BLOCK}
        lines = self.write(swapped).dump(status=1)
        self.assertEqual(self.positions(lines), self.positions(whole, lost))
        self.assertEqual(lines[-1]["missing_frames"], len(lost))
        gone = data[: 6 * BLOCK] + data[7 * BLOCK :]  # from here on no record is in its place
        lost = {n for n, (_, end) in enumerate(places) if end > 6 * BLOCK}
        lines = self.write(gone).dump()
        self.assertEqual(self.positions(lines), self.positions(whole, lost))

    def test_a_recording_within_a_recording_is_payload(self):
        inner, _, _ = self.whole(count=20, most=200)
        self.file.unlink()
        data, places, _ = self.whole(count=3, least=50000, most=50000)
        changed = bytearray(data)
        start, end = places[1]
        changed[start + 64 : start + 64 + len(inner) - BLOCK] = inner[BLOCK:]
        changed[start] ^= 1  # so that the payload is searched for records
        lines = self.write(changed).dump(status=1)
        self.assertEqual([line["bytes"] for line in of_type(lines, "frame")], [50000, 50000])
        self.assertEqual(of_type(lines, "damage")[0]["bytes"], end - start)

    def test_a_damaged_header_that_the_records_agree_with(self):
        data, _, _ = self.whole(count=5)
        self.assertEqual(self.flipped(data, 70).dump(status=1)[-1]["frames"], 5)  # the name
        done = run("dump", str(self.flipped(data, 24).file))  # the id
        self.assertEqual(done.returncode, 1)
        self.assertIn("first block", done.stderr)

    def test_the_capacity_in_the_file_takes_no_memory(self):
        data, _, _ = self.whole(count=5)
        self.write(data[:32] + (1 << 31).to_bytes(8, "little") + data[40:])
        replay = self.process(TOOL, "replay", self.file, "--readers", "1", "--format", "json")
        self.assertLessEqual(
            self.json("stat", json.loads(replay.line())["handle"])["capacity"], 128 << 20
        )

    def test_a_lock_that_any_user_can_take_makes_no_recorder(self):
        data, places, _ = self.whole(count=5)
        self.write(data[: places[-1][1]])
        with open(self.file, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_SH)
            self.assertEqual(self.dump()[-1]["state"], "not ended")

    def test_names_of_files_do_not_control_the_terminal(self):
        data, _, _ = self.whole(count=5)
        file = self.folder / "\u202egnp\u2028\x9b2J\x1b[2J.rcrec"
        missing = file.with_name(file.name + "\U000e0041")
        file.write_bytes(data[:-100])
        for name in (file, missing):
            for command in ("dump", "replay"):
                for words in ([command], [command, "--format", "json"]):
                    done = run(*words, str(name))
                    text = (done.stdout + done.stderr).replace("\n", "")
                    self.assertTrue(text.isprintable(), (words, text))
                    self.assertIn("gnp" if name == missing else "", text)
        self.assertEqual(self.dump(file=file)[0]["file"], str(file))

    def test_other_files(self):
        for data, words in (
            (b"", "not a recording"),
            (b"RCREC", "not a recording"),
            (b"RCREC\r\n\x1a" + bytes(100), "cut off"),
            (bytes(10000), "not a recording"),
        ):
            for command in ("dump", "replay"):
                done = run(command, str(self.write(data).file))
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, done.stderr)
        for command in ("dump", "replay"):
            self.assertIn("is not a file", run(command, str(self.folder) + "/").stderr)
            self.assertIn("No such file", run(command, str(self.folder / "none")).stderr)

    def test_mutations_never_end_a_command_by_a_signal(self):
        data, _, _ = self.whole(count=30, least=50, most=600, tensors=1)
        chance = random.Random(2)
        for round in range(150):
            changed = bytearray(data)
            for _ in range(chance.choice((1, 2, 10, 100))):
                anywhere = chance.randrange(len(changed))
                place = chance.choice((anywhere, chance.randrange(24)))
                kind = chance.random()
                if kind < 0.6:
                    changed[place] ^= 1 << chance.randrange(8)
                elif kind < 0.7:
                    del changed[place + 1 : place + chance.randrange(200)]
                elif kind < 0.8:
                    changed[place:place] = changed[place : place + chance.randrange(200)]
                else:
                    words = bytes(8), b"\xff" * 8, b"\x00" * 7 + b"\x7f"
                    changed[place : place + 8] = chance.choice(words)
            self.write(changed)
            for command in (["dump", "--data"], ["replay", "--fast"]):
                done = run(*command, str(self.file))
                self.assertIn(done.returncode, (0, 1), (round, command, done.stderr))
