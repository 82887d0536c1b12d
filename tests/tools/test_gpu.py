# SPDX-License-Identifier: Apache-2.0
"""What ringcast doctor and ringcast perf say of a GPU, on the tests' own CUDA drivers."""

import json
import os

from case import FAKES, Case, run


def fake(folder="new", **environment):
    """The environment in which a CUDA driver of the tests' own is found."""
    path = os.pathsep.join(filter(None, [os.path.join(FAKES, folder), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path, **environment}


class DoctorOfGpus(Case):
    """No GPU, nor what is wrong with one, is a problem: rings can be made."""

    def gpu_lines(self, **environment):
        found = self.json("doctor", **environment)
        self.assertIs(found["healthy"], True)
        return {line["name"]: line for line in found["lines"] if line["name"].startswith("GPU")}

    def inline(self, says, name="GPU tensors", **environment):
        lines = self.gpu_lines(**fake(**environment))
        line = lines[name]
        self.assertEqual(line["level"], "note", line)
        self.assertTrue(line["found"].startswith("INLINE: 4 tensors"), line)
        self.assertIn(says, line["found"])
        self.assertEqual((line["facts"]["pool_frames"], line["facts"]["inline_frames"]), (0, 4))
        return lines

    def test_a_device_is_told_and_tensors_of_it_go_by_the_pool(self):
        lines = self.gpu_lines(**fake())
        self.assertEqual(list(lines), ["GPU", "GPU 0", "GPU tensors"])
        self.assertEqual({line["level"] for line in lines.values()}, {"ok"})
        self.assertEqual({line["mend"] for line in lines.values()}, {""})
        self.assertEqual(lines["GPU"]["found"], "1 device, a driver for CUDA 13.0")
        self.assertEqual(lines["GPU"]["facts"], {"ready": 1, "version": 13000, "devices": 1, "result": 0})
        self.assertRegex(lines["GPU 0"]["found"], r"^Fake GPU 0, GPU-[0-9a-f]{8}$")
        facts = lines["GPU tensors"]["facts"]
        self.assertEqual((facts["pool_frames"], facts["inline_frames"], facts["registered"]), (3, 1, 1))
        self.assertIn("POOL: of 4 tensors, 3 went", lines["GPU tensors"]["found"])
        self.assertIn("RINGCAST_GPU_POOL_BYTES above 0 asks", lines["GPU tensors"]["found"])

    def test_why_there_is_no_gpu_is_a_note(self):
        for says, environment in (
            ("switched off by RINGCAST_DISABLE=cuda", fake(RINGCAST_DISABLE="cuda")),
            ("the driver finds no device", fake(FAKE_CUDA_INIT="100")),
            ("is a toolkit's stub", fake(FAKE_CUDA_INIT="34")),
            ("the driver does not start", fake(FAKE_CUDA_INIT="999")),
            ("the driver is too old", fake("old")),
        ):
            with self.subTest(says=says):
                lines = self.gpu_lines(**environment)
                self.assertEqual(list(lines), ["GPU"])
                self.assertEqual(lines["GPU"]["level"], "note")
                self.assertTrue(lines["GPU"]["found"].startswith("none is used: "), lines)
                self.assertIn(says, lines["GPU"]["found"])
                self.assertEqual(lines["GPU"]["facts"]["ready"], 0)

    def test_two_devices_are_tried_with_each_other(self):
        lines = self.gpu_lines(**fake(FAKE_CUDA_DEVICES="2"))
        self.assertEqual(list(lines), ["GPU", "GPU 0", "GPU 1", "GPU tensors", "GPU 0 to 1"])
        self.assertEqual(lines["GPU 0 to 1"]["level"], "ok")
        lines = self.inline("217", name="GPU 0 to 1", FAKE_CUDA_DEVICES="2", FAKE_CUDA_NO_PEER="1")
        self.assertEqual(lines["GPU tensors"]["level"], "ok")

    def test_how_to_mend_it_is_told_by_what_the_driver_said(self):
        for fault, mend in (
            ("cuIpcGetMemHandle:0:801", "no process share"),
            ("cuMemHostRegister:0:2", "ulimit -l"),
            ("cuIpcOpenMemHandle:0:101", "CUDA_VISIBLE_DEVICES"),
            ("cuIpcOpenMemHandle:0:201", "PID namespace"),
            ("cuIpcOpenMemHandle:0:999", "docs/gpu.md"),
        ):
            with self.subTest(fault=fault):
                self.assertIn(mend, self.inline("", FAKE_CUDA_FAIL=fault)["GPU tensors"]["mend"])

    def test_the_environment_is_checked_as_the_library_does(self):
        lines = self.gpu_lines(**fake(RINGCAST_GPU_POOL_BYTES="0"))
        self.assertEqual((lines["GPU tensors"]["level"], lines["GPU tensors"]["mend"]), ("note", ""))
        self.assertIn("RINGCAST_GPU_POOL_BYTES is 0", lines["GPU tensors"]["found"])
        done = run("doctor", "--format", "json", **fake(RINGCAST_GPU_POOL_BYTES="1G"))
        self.assertEqual(done.returncode, 1)
        (line,) = (line for line in json.loads(done.stdout)["lines"] if line["name"] == "GPU tensors")
        self.assertEqual(line["level"], "problem")
        self.assertIn("unset RINGCAST_GPU_POOL_BYTES", line["mend"])
        lines = self.gpu_lines(**fake(RINGCAST_GPU_POOL_BYTES="2097152"))
        self.assertEqual(lines["GPU tensors"]["facts"]["pool_bytes"], 1 << 21)
        lines = self.inline("CUDA_ERROR_OUT_OF_MEMORY", RINGCAST_GPU_POOL_BYTES=str(1 << 36))  # of 16 GiB
        self.assertIn("a smaller pool by RINGCAST_GPU_POOL_BYTES", lines["GPU tensors"]["mend"])

    def test_a_device_that_can_not_be_used_is_a_note(self):
        lines = self.gpu_lines(**fake(FAKE_CUDA_FAIL="cuDevicePrimaryCtxRetain:0:2"))
        self.assertEqual(lines["GPU tensors"]["level"], "note")
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", lines["GPU tensors"]["found"])


class PerfOfGpus(Case):
    SHORT = ["--sizes", "1K,64K", "--seconds", "0.02", "--capacity", "1M"]

    def test_both_ways_are_measured_beside_plain_copies(self):
        found = self.json("perf", "gpu", *self.SHORT, "--readers", "2", **fake())
        self.assertEqual((found["measurement"], found["readers"], found["pool"]), ("gpu", 2, True))
        self.assertEqual([size["bytes"] for size in found["sizes"]], [1024, 65536])
        for size in found["sizes"]:
            for way in ("pool", "inline", "device_to_device", "host_to_device"):
                for figure in ("send_us", "completion_us", "bytes_per_s"):
                    self.positive(size[way][figure])
        for copy in found["copies"]:
            slower = min(copy["writer_copy_bytes_per_s"], copy["reader_copy_bytes_per_s"])
            self.ratio(copy["ratio"], slower, copy["device_to_device_bytes_per_s"])
        writer, reader = found["ring_with_pool"]["writer"], found["ring_with_pool"]["readers"]
        self.assertGreater(writer["pool_frames"], 10)
        self.assertEqual(reader["opens"], 2, "each reader opens the pool once")
        self.assertLessEqual(writer["syncs"], writer["inline_frames"], "only what goes INLINE waits for the device")
        self.assertEqual(found["ring_without"]["writer"]["pool_frames"], 0)
        free = found["device_free_bytes"]
        self.assertEqual(free["after"], free["before"], "all is given back")

    def test_without_a_pool_only_what_there_is_is_measured(self):
        found = self.json("perf", "gpu", *self.SHORT, **fake(FAKE_CUDA_FAIL="cuIpcOpenMemHandle:0:217"))
        self.assertIs(found["pool"], False)
        self.assertIn("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", found["why"])
        self.assertNotIn("pool", found["sizes"][0])
        self.positive(found["sizes"][0]["inline"]["completion_us"])

    def test_without_a_gpu_nothing_is_measured_and_it_says_why(self):
        done = run("perf", "gpu", *self.SHORT, RINGCAST_DISABLE="cuda")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn("nothing was measured, as no GPU is used: switched off by RINGCAST_DISABLE=cuda", done.stderr)

    def test_a_tensor_that_does_not_fit_is_told(self):
        done = run("perf", "gpu", "--sizes", "64M", **fake(RINGCAST_SPILL_BYTES=str(8 << 20)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("RINGCAST_SPILL_BYTES", done.stderr)
