# SPDX-License-Identifier: Apache-2.0
"""ringcast replay at its pace and in parts, and what ringcast dump says of frames."""

import json
import os
import re
import time

from actors import state_of
from case import TOOL, run
from recordings import GO_ON, INTERRUPT, KILL, STOP, Recordings, of_type, until


class Replay(Recordings):
    def test_dump_tells_what_is_in_a_frame(self):
        self.record(count=3, least=8, most=8, tensors=1, name="a.name")
        lines = self.dump("--data")
        self.assertEqual(lines[0]["ring"], "a.name")
        frames = of_type(lines, "frame")
        self.assertEqual([frame["tag"] for frame in frames], [0, 1, 2])
        ids, step, text = frames[2]["items"]
        self.assertEqual(
            (ids["key"], ids["dtype"], ids["shape"], ids["bytes"]), ("ids", "int64", [2, 1], 16)
        )
        self.assertEqual((step["kind"], step["value"]), ("int", "2"))
        self.assertEqual(text["value"], r'"a\"b\x0a\x1b"')
        self.assertEqual(len(frames[0]["data"]), 2 * frames[0]["bytes"])
        shown = self.succeed("dump", str(self.file))
        self.assertIn('tag 2  "ids": int64[2, 1] 16 B, "step": 2, "text": "a\\"b\\x0a\\x1b"', shown)
        self.assertNotIn("\x1b", shown)

    def test_dump_of_a_ring(self):
        name = f"live.{os.getpid()}"
        writer = self.writer(gap_us=200, name=name)
        writer.tell()
        done = run("dump", name, "--frames", "5", "--format", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual((len(of_type(lines, "frame")), lines[-1]["frames"]), (5, 5))
        tap = self.process(TOOL, "dump", name, "--frames", "100000000")
        self.assertIn("seconds", tap.line())
        writer.tell()
        writer.line()
        writer.tell()
        self.assertEqual(tap.end()[0], 5)  # the writer is gone, and frames were asked for

    def test_what_a_dump_was_too_slow_for_is_told_and_an_interrupt_is_a_usual_end(self):
        writer = self.writer(count=1000, least=1000, most=1000, capacity=65536)
        dump = self.process(TOOL, "dump", writer.handle)
        self.assertIn("seconds", dump.line())  # the tap is there
        dump.kill(STOP)
        until(lambda: state_of(dump.popen.pid) == "T", "the stop")
        writer.tell()
        writer.line()
        dump.kill(GO_ON)
        lost = int(
            re.fullmatch(
                r" *(\d+) bytes of the ring were lost: the writer was faster .*", dump.line()
            )[1]
        )
        self.assertGreater(lost, 900 * 1000)
        dump.kill(INTERRUPT)
        status, out, _ = dump.end()
        self.assertEqual(status, 0)
        self.assertRegex(out, rf"^\d+ frames, {lost} bytes of the ring lost\n$")

    def test_a_replay_keeps_its_pace(self):
        def length_of_a_recording():
            self.file.unlink(missing_ok=True)
            self.record(count=20, gap_us=2000)
            frames = of_type(self.dump(), "frame")
            length = frames[-1]["time"] - frames[0]["time"]
            # Else the recorder stood still, and the frames have one time.
            return length > 0.03 and length

        length = until(length_of_a_recording, "a recording of some length")
        start = time.monotonic()
        self.succeed("replay", str(self.file), "--speed", "0.5")
        self.assertGreaterEqual(time.monotonic() - start, 2 * length)

    def test_parts_of_a_recording(self):
        self.record(count=2000, gap_us=100, most=50)
        times = [frame["time"] for frame in of_type(self.dump(), "frame")]
        for begin, end in (
            (0, times[-1] / 2),
            (times[700], times[-1] + 1),
            (times[900], times[1500]),
        ):
            _, summary = self.replay("--from", f"{begin:.9f}", "--to", f"{end:.9f}")
            near = 1e-8  # frames that came together have one time, and that is rounded
            self.assertGreaterEqual(
                summary["frames"], sum(begin + near <= at <= end - near for at in times)
            )
            self.assertLessEqual(
                summary["frames"], sum(begin - near <= at <= end + near for at in times)
            )
            self.assertGreater(summary["frames"], 0)
        self.assertEqual(self.replay("--from", "1e6")[1]["frames"], 0)

    def test_a_name_and_a_wait_for_readers_that_can_be_ended(self):
        self.record(count=1)
        replay = self.process(TOOL, "replay", self.file, "--name", "other.name", "--readers", "2")
        self.assertRegex(replay.line(), rf"^ring other\.name@{replay.popen.pid}, handle rc")
        replay.kill(INTERRUPT)
        self.assertEqual(replay.end()[0], 0)
        self.assertEqual(run("replay", str(self.file), "--name", "not a name").returncode, 1)

    def test_frames_larger_than_the_new_ring_are_told(self):
        self.record(count=2, least=300000, most=300000)
        done = run(
            "replay", str(self.file), "--fast", "--capacity", "64K", RINGCAST_SPILL_BYTES="0"
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("2 frames are larger than the ring", done.stderr)
        got, _ = self.replay("--capacity", "64K")
        self.assertEqual(int(got.split()[0]), 2)

    def test_a_reader_that_dies_does_not_end_a_replay(self):
        self.record(count=2000, most=3000)
        replay = self.process(
            TOOL, "replay", self.file, "--fast", "--readers", "2", "--capacity", "64K"
        )
        handle = replay.line().split()[-1]
        dead = self.reader(handle)
        dead.kill(STOP)
        reader = self.reader(handle)
        until(
            lambda: self.json("stat", handle)["held_back_by"],
            "the replay waits for the stopped reader",
        )
        dead.kill(KILL)
        self.assertEqual(replay.end()[0], 0)
        self.assertEqual(int(reader.line().split()[0]), 2000)

    def test_readers_get_all_of_it_after_the_end(self):
        self.record(count=50)
        replay = self.process(TOOL, "replay", self.file, "--fast", "--readers", "1")
        handle = replay.line().split()[-1]
        reader = self.reader(handle)
        self.assertEqual(replay.end()[0], 0)
        until(lambda: reader.popen.poll() is not None, "the reader's end")
        self.assertEqual(int(reader.end()[1].split()[0]), 50)
