# SPDX-License-Identifier: Apache-2.0
"""
SGLang on CPUs (PyPI's sglang, with stand-ins for its GPU kernels), in the calling process and those
it starts.
"""

import os
import time

import registry
import usage

VERSION = "0.5.23"
VARIABLE = "RINGCAST_SGLANG"
# SGLang ends its processes by SIGKILL. Both ways leave what ranks tell of their loads and
# multiprocessing's semaphores, which carry no messages between ranks. SGLang's own way also leaves
# its queues, which ringcast replaces.
OTHERS = r"sglang_loads_[0-9a-f]+_[0-9a-f]+\.shm|sem\.mp-\w{8}"
SEGMENTS = {"own": rf"sgl_shm_mq_\d+_[0-9a-f]+|{OTHERS}", "ringcast": OTHERS}
SCRIPTS = {}
WITHOUT = ["killed"]  # when a rank dies, SGLang kills the calling process
VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": registry.cpus(registry.RANKS),
}
OPTIONS = {
    "load_format": "dummy",
    "device": "cpu",
    "tp_size": registry.RANKS,
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.2,
    "max_total_tokens": 32768,
    "context_length": 2048,
    "max_running_requests": 64,
    "skip_server_warmup": True,
    "random_seed": 0,
    "sleep_on_idle": True,  # else the first scheduler looks for requests without a pause, both ways
}


class Engine:
    def __init__(self, model):
        import sglang

        self.engine = sglang.Engine(model_path=str(model), **OPTIONS)

    def generate(self, prompts, tokens, each_step=None):
        began = time.perf_counter()
        params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        outputs = self.engine.generate(
            input_ids=[list(prompt) for prompt in prompts], sampling_params=params, stream=True
        )
        arrivals, found = [], {}
        for output in outputs:
            found[output.get("index", 0)] = list(output["output_ids"])
            if output["meta_info"]["completion_tokens"] > len(arrivals):
                arrivals.append(time.perf_counter())
                if each_step:
                    each_step(len(arrivals))
        return registry.Generation(
            [found[number] for number in range(len(prompts))], began, arrivals
        )

    def workers(self):
        named = {usage.name(pid): pid for pid in usage.family(os.getpid())}
        return [pid for name, pid in sorted(named.items()) if "scheduler" in name]

    def close(self):
        self.engine.shutdown()


def start(model):
    return Engine(model)
