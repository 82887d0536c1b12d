# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` and an HTTP client: a stream, one that the client leaves in the middle, and a stream after that. Runs in
vLLM's Python, and appends a row for each.

serve_vllm.py ENGINE WAY MODEL FILE [--quick]        by run.py
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import engine_vllm
import session
import usage

READY = 600  # seconds that the server may take to start
LEFT = 8  # the chunks after which the client leaves
GONE = 30  # seconds within which the server has ended what the client left
SEED = 7


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

    def get(self, path):
        """Status and text, or None while nothing listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
            except ConnectionRefusedError:
                return None
            response = connection.getresponse()
            return response.status, response.read().decode()

    def wait_until(self, is_true, seconds):
        """Whether it became true in time. The server tells nothing by itself, so it is asked again."""
        end = time.monotonic() + seconds
        while not is_true() and time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode}")
            time.sleep(0.05)
        return bool(is_true())

    def is_ready(self):
        found = self.get("/health")
        return found and found[0] == 200

    def running(self):
        """How many requests the engine works on, as the server's metrics say."""
        text = self.get("/metrics")[1]
        return sum(float(number) for number in re.findall(r"(?m)^vllm:num_requests_running\S* (\S+)$", text))

    def stream(self, tokens, most=None, before_leaving=lambda: None):
        """The token ids of a streamed completion and the times of its chunks; leaves after `most` chunks."""
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            ids, arrivals = [], []
            for line in iter(response.readline, b""):
                text = line.decode().strip().removeprefix("data: ")
                if not text or text == "[DONE]":
                    continue
                arrivals.append(time.perf_counter())
                ids += json.loads(text)["choices"][0]["token_ids"] or []
                if most and len(arrivals) == most:
                    before_leaving()
                    break
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


def abort(server):
    """p50_ms: until the engine has ended what the client left."""
    ran = []
    server.stream(1900, LEFT, lambda: ran.append(server.wait_until(lambda: server.running() == 1, GONE)))
    left = time.perf_counter()
    gone = server.wait_until(lambda: server.running() == 0, GONE)
    took = time.perf_counter() - left
    wrong = [] if gone else [f"after {took:.0f} s not"]
    wrong += [] if ran == [True] else ["the metrics do not show the request before that"]
    return {"p50_ms": session.milliseconds([took], 50), "ok": not wrong, "note": "; ".join(wrong) or None}


def main():
    arguments, tell = session.begin(__doc__, ["vllm"])
    server = Server(arguments.model)
    try:
        began = time.perf_counter()
        if not server.wait_until(server.is_ready, READY):
            raise SystemExit(f"the server was not ready within {READY} s")
        session.started(tell, began, engine_vllm.workers(server.process.pid), arguments.way)
        tokens = 48 if arguments.quick else 200
        server.stream(8)
        tell("stream", **stream(server, tokens))
        tell("client leaves", **abort(server))
        tell("stream after that", **stream(server, tokens))
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
