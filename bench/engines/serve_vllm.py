# SPDX-License-Identifier: Apache-2.0
"""
`vllm serve` and an HTTP client: a stream, and SIGTERM. Runs in vLLM's Python, and appends a row for
each.

serve_vllm.py ENGINE WAY MODEL FILE [--quick]        by run.py
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import engine_vllm
import session
import usage

READY = 600  # seconds that the server may take to start
SEED = 7
# Whatever the environment says.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port():
    with contextlib.closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def options():
    """The options of engine_vllm as those of the command line."""
    for name, value in engine_vllm.OPTIONS.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            yield option if value else option.replace("--", "--no-", 1)
        else:
            yield from (option, str(value))


class Server:
    def __init__(self, model):
        self.port, self.model = free_port(), str(model)
        command = [pathlib.Path(sys.executable).parent / "vllm", "serve", self.model, *options()]
        self.process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(self.port)])

    def request(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        where = f"http://127.0.0.1:{self.port}{path}"
        return OPENER.open(urllib.request.Request(where, data, headers), timeout=120)

    def is_ready(self):
        try:
            with self.request("/health") as response:
                return response.status == 200
        except OSError:
            return False

    def wait(self):
        """The server tells nothing by itself, so it is asked again."""
        end = time.monotonic() + READY
        while not self.is_ready():
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode}")
            if time.monotonic() > end:
                raise SystemExit(f"the server was not ready within {READY} s")
            time.sleep(0.05)

    def stream(self, tokens):
        """The token ids of a streamed completion and the times of its chunks."""
        body = {
            "model": self.model,
            "prompt": session.prompts(1)[0],
            "max_tokens": tokens,
            "temperature": 1.0,
            "seed": SEED,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        ids, arrivals = [], []
        with self.request("/v1/completions", body) as response:
            for line in response:
                text = line.decode().strip().removeprefix("data: ")
                if text and text != "[DONE]":
                    arrivals.append(time.perf_counter())
                    ids += json.loads(text)["choices"][0]["token_ids"] or []
        return ids, arrivals


def stream(server, tokens):
    began = time.perf_counter()
    ids, arrivals = server.stream(tokens)
    gaps = [later - earlier for earlier, later in zip(arrivals, arrivals[1:])]
    return {
        "p50_ms": session.milliseconds(gaps, 50),
        "p99_ms": session.milliseconds(gaps, 99),
        "tokens_per_s": round(len(ids) / (arrivals[-1] - began), 1),
        "token_hash": session.digest(ids),
        "ok": len(ids) == tokens,
        "note": None if len(ids) == tokens else f"{len(ids)} tokens, not {tokens}",
    }


def main():
    arguments, tell = session.begin(__doc__, ["vllm"])
    server = Server(arguments.model)
    try:
        began = time.perf_counter()
        server.wait()
        session.started(tell, began, engine_vllm.workers(server.process.pid), arguments.way)
        tokens = 48 if arguments.quick else 200
        server.stream(8)
        tell("stream", **stream(server, tokens))
        began = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(120)
        took = session.milliseconds([time.perf_counter() - began], 50)
        tell("SIGTERM", p50_ms=took, ok=status in (0, -signal.SIGTERM), note=f"status {status}")
    finally:
        for pid in usage.family(server.process.pid) if server.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
