# SPDX-License-Identifier: Apache-2.0
"""ringcast record, replay and dump, with a program at the other end of the ring.

test_record.py <path of the tool> <folder of the CUDA drivers> <path of record_peer> [unittest's
arguments]
"""

import json
import os
import pathlib
import resource
import stat
import tempfile
import unittest

from case import TOOL, run
from recordings import GO_ON, INTERRUPT, KILL, STOP, TERMINATE, Recordings, of_type, until
from test_damage import Damage  # noqa: F401
from test_replay import Replay  # noqa: F401

# Frames of every size: of batches, of tensors, larger than a chunk, than the recorder's memory,
# than the ring.
SOURCES = (
    {"count": 3000, "most": 5000},
    {"count": 3000, "most": 300, "batch": 40},
    {"count": 300, "least": 100, "most": 9000, "tensors": 1},
    {"count": 20, "least": 10000, "most": 400000},
    {"count": 4, "least": 1000000, "most": 3000000, "capacity": 65536},
    {"count": 1, "least": 0, "most": 0},
)


def cpu_seconds():
    """The time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Record(Recordings):
    def test_what_is_recorded_comes_again(self):
        for source in SOURCES:
            for buffer in ("64K", "64M"):
                with self.subTest(source=source, buffer=buffer):
                    self.file.unlink(missing_ok=True)
                    options = ["--buffer", buffer]
                    sent, summary = self.record(*options, **source)
                    frames, size, _ = sent.split()
                    self.assertEqual(
                        (summary["frames"], summary["bytes"]), (int(frames), int(size))
                    )
                    self.assertEqual((summary["gaps"], summary["ended_by"]), (0, "writer gone"))
                    lines = self.dump()
                    self.assertEqual(len(of_type(lines, "frame")), int(frames))
                    self.assertEqual(lines[-1]["state"], "ended well")
                    got, again = self.replay()
                    self.assertEqual(got, sent)
                    self.assertEqual(
                        {summary["hash"], lines[-1]["hash"], again["hash"]}, {summary["hash"]}
                    )

    def test_nothing_is_printed_into_a_recording_where_the_caller_has_closed_0_to_2(self):
        self.file.unlink(missing_ok=True)
        writer = self.writer(count=3)
        command = [
            "sh",
            "-c",
            'exec "$@" <&- >&- 2>&-',
            "-",
            TOOL,
            "record",
            writer.handle,
            self.file,
            "--lossless",
        ]
        recorder = self.process(*command)
        until(lambda ring=writer.handle: self.json("stat", ring)["readers"], "the recorder")
        links = pathlib.Path(f"/proc/{recorder.popen.pid}/fd")
        for number in "012":
            self.assertEqual(os.readlink(links / number), "/dev/null")
        writer.tell()
        writer.line()
        writer.tell()
        recorder.popen.wait(60)
        lines = self.dump()
        self.assertEqual((len(of_type(lines, "frame")), lines[-1]["state"]), (3, "ended well"))

    def test_a_killed_recorder_leaves_all_whole_frames(self):
        source = {"most": 60000, "gap_us": 200}
        for frames in (1, 300, 1000):
            with self.subTest(frames=frames):
                self.file.unlink(missing_ok=True)
                writer = self.writer(**source)
                recorder = self.recorder(writer.handle, "--buffer", "4M")
                writer.tell()
                until(lambda least=frames: self.dump()[-1]["frames"] >= least, "a written frame")
                recorder.kill(KILL)
                self.assertEqual(recorder.end()[0], -KILL)
                # The kernel ends the writes that are under way, and gives up the file's lock, soon
                # after.
                until(lambda: self.dump()[-1]["state"] == "not ended", "the end of the last writes")
                summary = self.dump()[-1]
                self.assertEqual(summary["damages"], 0)
                self.assertGreaterEqual(summary["frames"], frames)
                got, again = self.replay()
                self.assertEqual(again["hash"], summary["hash"])
                if summary["missing_frames"] + summary["gaps"] == 0:
                    self.assertEqual(got, self.expected(summary["frames"], **source))
                writer.tell()  # it was never held up
                self.assertRegex(writer.line(), r"^\d+ \d+ ")
                writer.tell()
                self.assertEqual(writer.end()[0], 0)

    def test_a_stopped_recorder_never_ends_the_writer_and_marks_the_gap(self):
        for source in ({"timeout_ms": 1, "slow_ms": 1}, {"slow_ms": 20}, {}):
            with self.subTest(source=source):
                self.file.unlink(missing_ok=True)
                writer = self.writer(most=2000, gap_us=20, capacity=65536, **source)
                recorder = self.recorder(writer.handle)
                writer.tell()
                until(lambda: self.dump()[-1]["frames"] > 10, "a written frame")
                recorder.kill(STOP)
                place = self.position(writer)
                until(
                    lambda since=place, of=writer: self.position(of) > since + 200000,
                    "the writer's next lap",
                )
                recorder.kill(GO_ON)
                after = until(
                    lambda since=place: self.gap_with_frames_behind(since), "a frame behind the gap"
                )
                writer.tell()
                self.assertRegex(writer.line(), r"^\d+ \d+ ")
                writer.tell()
                self.assertEqual(writer.end()[0], 0)
                summary = self.finish(recorder)
                self.assertGreaterEqual(summary["gaps"], 1)
                gap = next(
                    gap for gap in of_type(self.dump(), "gap") if gap["from"] == after["from"]
                )
                self.assertEqual(
                    (gap["to"], gap["bytes"]), (after["to"], after["to"] - after["from"])
                )
                self.assertGreater(gap["bytes"], 65536)
                self.assertIn("faster", gap["reason"])
                self.check_gaps(self.dump())

    def test_an_evicted_lossless_recorder_ends_and_its_file_is_whole(self):
        writer = self.writer(most=2000, gap_us=20, capacity=65536, slow_ms=20, evicts=1)
        recorder = self.recorder(writer.handle, "--lossless")
        writer.tell()
        until(lambda: self.dump()[-1]["frames"] > 10, "a written frame")
        recorder.kill(STOP)
        place = self.position(writer)
        until(lambda: self.position(writer) > place + 200000, "the writer's next lap")
        recorder.kill(GO_ON)
        summary = self.finish(recorder, status=1)
        self.assertEqual((summary["ended_by"], summary["gaps"]), ("ring failed", 0))
        lines = self.dump()
        self.assertEqual((lines[-1]["state"], lines[-1]["hash"]), ("ended well", summary["hash"]))
        self.assertEqual(self.replay()[0], self.expected(summary["frames"], most=2000))

    def check_gaps(self, lines):
        """A gap lasts from the frame before to the frame after."""
        for before, gap, after in zip(lines, lines[1:], lines[2:], strict=False):
            if (before["type"], gap["type"], after["type"]) == ("frame", "gap", "frame"):
                self.assertAlmostEqual(gap["time"], before["time"], 8)
                self.assertAlmostEqual(gap["time"] + gap["seconds"], after["time"], 8)

    def test_a_recording_of_many_frames_is_read_while_it_grows(self):
        writer = self.writer(count=200000, most=100, capacity=1 << 20)
        recorder = self.recorder(writer.handle, "--lossless")  # a tap may lose most of them
        writer.tell()
        writer.line()
        until(
            lambda: self.dump("--frames", "1")[-1]["state"] == "recorder still writing", "the file"
        )
        times = []  # of a CPU
        for state in ("recorder still writing", "ended well"):
            before = cpu_seconds()
            self.assertEqual(self.dump()[-1]["state"], state)
            times.append(cpu_seconds() - before)
            if recorder.popen.poll() is None:
                recorder.kill(INTERRUPT)
                self.assertGreater(self.finish(recorder)["frames"], 180000)
        self.assertLess(times[0], 2 * times[1] + 1)

    def position(self, writer):
        return of_type(self.json_lines("dump", writer.handle, "--frames", "1"), "frame")[0][
            "position"
        ]

    def json_lines(self, *arguments):
        return [
            json.loads(line) for line in self.succeed(*arguments, "--format", "json").splitlines()
        ]

    def gap_with_frames_behind(self, place):
        """The gap at this place. A recorder that had no CPU leaves gaps elsewhere too."""
        lines = self.dump()
        gaps = [gap for gap in of_type(lines, "gap") if gap["from"] < place < (gap["to"] or 0)]
        return lines[-2]["type"] == "frame" and gaps and gaps[0]

    def test_a_tap_takes_no_place_and_a_lossless_recorder_takes_a_readers(self):
        writer = self.writer(count=500, capacity=8 << 20, readers=1)
        taps = [self.recorder(writer.handle, file=self.folder / name) for name in ("a", "b", "c")]
        self.assertEqual(self.json("stat", writer.handle)["readers"], [])
        lossless = self.recorder(writer.handle, "--lossless")
        self.assertEqual(
            [reader["name"] for reader in self.json("stat", writer.handle)["readers"]], ["recorder"]
        )
        writer.tell()
        sent = writer.line()
        writer.tell()
        recorded = [self.finish(recorder) for recorder in (lossless, *taps)]
        self.assertEqual((recorded[0]["frames"], recorded[0]["gaps"]), (int(sent.split()[0]), 0))
        for summary in recorded[1:]:
            self.assertTrue(summary["gaps"] or summary["hash"] == recorded[0]["hash"])

    def test_a_writer_that_dies_is_an_end(self):
        writer = self.writer(count=700)
        recorder = self.recorder(writer.handle, "--lossless")
        writer.tell()
        sent = writer.line()
        writer.kill(KILL)
        summary = self.finish(recorder)
        self.assertEqual(summary["ended_by"], "writer gone")
        self.assertEqual(self.replay()[0], sent)

    def test_a_disk_without_room_ends_with_what_fits(self):
        source = {"most": 3000, "gap_us": 10}
        for room in (4096 * 5, (1 << 20) + 4096, (3 << 20) + 512):
            with self.subTest(room=room):
                self.file.unlink(missing_ok=True)
                writer = self.writer(**source)

                def limit(most=room):
                    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

                recorder = self.recorder(
                    writer.handle, "--lossless", "--buffer", "1M", preexec_fn=limit
                )
                writer.tell()
                code, out, err = recorder.end()
                self.assertEqual((code, out), (1, ""))
                self.assertIn("can't write", err)
                summary = self.dump()[-1]
                self.assertEqual((summary["state"], summary["damages"]), ("not ended", 0))
                self.assertGreater(summary["frames"], 0)
                self.assertEqual(self.replay()[0], self.expected(summary["frames"], **source))
                writer.tell()
                self.assertRegex(writer.line(), r"^\d+ \d+ ")

    def test_a_disk_without_room_for_a_frame_leaves_the_name_free(self):
        writer = self.writer(gap_us=100)
        writer.tell()
        for room in (0, 512, 4096):
            recorder = self.process(
                *(TOOL, "record", writer.handle, self.file),
                preexec_fn=lambda most=room: resource.setrlimit(
                    resource.RLIMIT_FSIZE, (most, most)
                ),
            )
            code, _, err = recorder.end()
            self.assertEqual((code, self.file.exists()), (1, False))
            self.assertIn(str(self.file), err)

    def test_a_recording_is_for_its_user_alone(self):
        writer = self.writer(gap_us=100)
        writer.tell()
        recorder = self.recorder(writer.handle, "--frames", "3", umask=0)
        self.finish(recorder)
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        link = self.folder / "link"
        link.symlink_to(self.folder / "elsewhere")
        done = run("record", writer.handle, str(link), "--frames", "3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("exists", done.stderr)
        self.assertFalse((self.folder / "elsewhere").exists())

    def test_a_recording_never_takes_the_number_of_a_closed_stream(self):
        writer = self.writer(gap_us=100)
        writer.tell()
        # Takes a write of any length, also with O_DIRECT.
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        for number in (0, 1, 2):
            file = f"{folder.name}/{number}"
            command = [TOOL, "record", writer.handle, file, "--frames", "3"]
            recorder = self.process(*command, preexec_fn=lambda closed=number: os.close(closed))
            recorder.end()
            self.assertEqual(self.dump(file=file)[-1]["frames"], 3)

    def test_limits_and_signals_end_a_recording(self):
        writer = self.writer(gap_us=100)
        ends = (
            (["--frames", "7"], None, "limit"),
            (["--bytes", "20K"], None, "limit"),
            (["--seconds", "0.05"], None, "limit"),
            ([], INTERRUPT, "stopped"),
            ([], TERMINATE, "stopped"),
        )
        writer.tell()
        for number, (options, signal, end) in enumerate(ends):
            file = self.folder / str(number)
            recorder = self.recorder(writer.handle, *options, file=file)
            if signal:
                recorder.kill(signal)
            summary = self.finish(recorder)
            self.assertEqual(summary["ended_by"], end)
            lines = self.dump(file=file)
            self.assertEqual(
                (lines[-1]["state"], lines[-1]["hash"]), ("ended well", summary["hash"])
            )
            if options[:1] == ["--frames"]:
                self.assertEqual(summary["frames"], 7)
            if options[:1] == ["--bytes"]:
                self.assertGreaterEqual(summary["bytes"], 20480)
                self.assertLess(summary["bytes"], 20480 + 5000)

    def test_files_that_exist_are_refused(self):
        writer = self.writer()
        self.file.write_text("mine")
        done = run("record", writer.handle, str(self.file))
        self.assertEqual(done.returncode, 1)
        self.assertIn("exists", done.stderr)
        self.assertEqual(self.file.read_text(), "mine")
        done = run("record", writer.handle, str(self.folder / "none" / "file"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("can't make", done.stderr)

    def test_rings_that_are_not_there(self):
        for command in (["record", "no.such.ring", str(self.file)], ["dump", "no.such.ring"]):
            done = run(*command)
            self.assertEqual(done.returncode, 3, done.stderr)
        self.assertFalse(self.file.exists())

    def test_a_name_that_stands_for_several(self):
        writers = [self.writer(name="twice.here") for _ in range(2)]
        done = run("record", "twice.here", str(self.file))
        self.assertEqual(done.returncode, 4)
        for writer in writers:
            self.assertIn(f"twice.here@{writer.popen.pid}", done.stderr)
        one = f"twice.here@{writers[1].popen.pid}"
        recorder = self.recorder(one)
        recorder.kill(INTERRUPT)
        self.finish(recorder)
        self.assertEqual(self.dump()[0]["ring"], "twice.here")

    def test_usage(self):
        for words in (["record"], ["record", "a"], ["replay"], ["dump"]):
            self.refused(*words, says="say which")
        self.refused("record", "a", "b", "c", says="unexpected argument 'c'")
        for command in ("record", "replay", "dump"):
            self.refused(command, "--frobnicate", says="--frobnicate")
            self.refused(command, "--format", "xml", says="text or json")
            self.assertIn(f"usage: ringcast {command}", self.succeed(command, "--help"))
        self.refused("record", "a", "b", "--buffer", "1K", says="64K to 4G")
        self.refused("replay", "a", "--fast", "--speed", "2", says="exclude")


if __name__ == "__main__":
    unittest.main()
