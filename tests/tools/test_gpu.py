# SPDX-License-Identifier: Apache-2.0
"""What ringcast doctor and ringcast perf say of a GPU, on the tests' own CUDA drivers."""

import os

from case import FAKES, Case, run


def fake(folder="new", **environment):
    """The environment in which a CUDA driver of the tests' own is found."""
    found = os.path.join(FAKES, folder), os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, found)), **environment}


# An environment; the line that it is about; its level; what is found; how to mend it.
DIAGNOSES = [
    (fake(RINGCAST_DISABLE="cuda"), "GPU", "note", "RINGCAST_DISABLE", ""),
    (fake(FAKE_CUDA_INIT="100"), "GPU", "note", "no device", ""),
    (fake(FAKE_CUDA_INIT="34"), "GPU", "note", "stub", ""),
    (fake(FAKE_CUDA_INIT="999"), "GPU", "note", "does not start", ""),
    (fake("old"), "GPU", "note", "too old", ""),
    (fake(), "GPU", "ok", "CUDA 13.0", ""),
    (fake(), "GPU 0", "ok", "Fake GPU 0, GPU-", ""),
    (fake(), "GPU tensors", "ok", "POOL", ""),
    (fake(FAKE_CUDA_DEVICES="2"), "GPU 0 to 1", "ok", "", ""),
    (fake(FAKE_CUDA_DEVICES="2", FAKE_CUDA_NO_PEER="1"), "GPU 0 to 1", "note", "217", ""),
    *(
        (fake(FAKE_CUDA_FAIL=fault), "GPU tensors", "note", "INLINE", mend)
        for fault, mend in (
            ("cuIpcGetMemHandle:0:801", "no process share"),
            ("cuMemHostRegister:0:2", "ulimit -l"),
            ("cuIpcOpenMemHandle:0:101", "CUDA_VISIBLE_DEVICES"),
            ("cuIpcOpenMemHandle:0:201", "PID namespace"),
            ("cuIpcOpenMemHandle:0:999", "docs/gpu.md"),
        )
    ),
    (fake(FAKE_CUDA_FAIL="cuDevicePrimaryCtxRetain:0:2"), "GPU tensors", "note", "MEMORY", ""),
    (fake(RINGCAST_GPU_POOL_BYTES="0"), "GPU tensors", "note", "RINGCAST_GPU_POOL_BYTES is 0", ""),
    (fake(RINGCAST_GPU_POOL_BYTES=str(1 << 36)), "GPU tensors", "note", "MEMORY", "smaller pool"),
]


class DoctorOfGpus(Case):
    def test_what_is_wrong_and_how_to_mend_it(self):
        """No GPU, nor what is wrong with one, is a problem: rings can be made."""
        for environment, name, level, found, mend in DIAGNOSES:
            with self.subTest(name=name, **environment):
                report = self.json("doctor", **environment)
                lines = {line["name"]: line for line in report["lines"]}
                line = lines[name]
                self.assertIs(report["healthy"], True)
                self.assertEqual(line["level"], level, line)
                self.assertIn(found, line["found"])
                self.assertIn(mend, line["mend"])
                if name == "GPU":
                    self.assertEqual(line["facts"]["ready"], level == "ok")
                    self.assertEqual("GPU tensors" in lines, level == "ok")

    def test_the_ways_of_the_tensors_are_counted(self):
        for environment, counts in ((fake(), (3, 1)), (fake(RINGCAST_GPU_POOL_BYTES="0"), (0, 4))):
            lines = self.json("doctor", **environment)["lines"]
            (facts,) = (line["facts"] for line in lines if line["name"] == "GPU tensors")
            self.assertEqual((facts["pool_frames"], facts["inline_frames"]), counts)

    def test_a_variable_that_is_no_number_is_a_problem(self):
        done = run("doctor", **fake(RINGCAST_GPU_POOL_BYTES="1G"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("unset RINGCAST_GPU_POOL_BYTES", done.stdout)


class PerfOfGpus(Case):
    SHORT = ["--sizes", "1K,64K", "--seconds", "0.02", "--capacity", "1M"]

    def test_both_ways_are_measured_beside_plain_copies(self):
        found = self.json("perf", "gpu", *self.SHORT, "--readers", "2", **fake())
        self.assertIs(found["pool"], True)
        self.assertEqual([size["bytes"] for size in found["sizes"]], [1024, 65536])
        for size in found["sizes"]:
            for way in ("pool", "inline", "device_to_device", "host_to_device"):
                for figure in ("send_us", "completion_us", "bytes_per_s"):
                    self.positive(size[way][figure])
        for copy in found["copies"]:
            slower = min(copy["writer_copy_bytes_per_s"], copy["reader_copy_bytes_per_s"])
            self.ratio(copy["ratio"], slower, copy["device_to_device_bytes_per_s"])
        self.assertGreater(found["ring_with_pool"]["writer"]["pool_frames"], 10)
        self.assertEqual(found["ring_without"]["writer"]["pool_frames"], 0)
        free = found["device_free_bytes"]
        self.assertEqual(free["after"], free["before"], "all is given back")

    def test_without_a_pool_only_what_there_is_is_measured(self):
        without = fake(FAKE_CUDA_FAIL="cuIpcOpenMemHandle:0:217")
        found = self.json("perf", "gpu", *self.SHORT, **without)
        self.assertIs(found["pool"], False)
        self.assertIn("PEER_ACCESS", found["why"])
        self.assertNotIn("pool", found["sizes"][0])
        self.positive(found["sizes"][0]["inline"]["completion_us"])

    def test_what_can_not_be_measured_is_said_by_name(self):
        spill = fake(RINGCAST_SPILL_BYTES=str(8 << 20))
        for size, environment, name in (
            ("1K", fake(RINGCAST_DISABLE="cuda"), "RINGCAST_DISABLE"),
            ("64M", spill, "RINGCAST_SPILL_BYTES"),
        ):
            done = run("perf", "gpu", "--sizes", size, **environment)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(name, done.stderr)
