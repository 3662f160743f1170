"""Runs a server of llama.cpp and asks it over HTTP; see gpu/bench/peers/peer.py for the protocol.
The file's vocabulary (gguf_file.py) has a word for every id, so prompts are sent as text.

    python run_llama_cpp_server.py model.gguf SERVER CONTEXT STREAMS

CONTEXT are tokens of each of up to STREAMS streams. SERVER llama-server: llama.cpp's own, as the
package xllamacpp has it, with a slot for each stream. SERVER llama-cpp-python: the server of that
package, which writes one stream at a time, while the others wait.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

SAMPLING = {"temperature": 0.8, "seed": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
WARNINGS = 2
"""The level of llama-server's log that leaves out what each request does."""


def n_processors() -> int:
    """Return how many processors this process may use (`taskset`), where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Server(Protocol):
    """A server that listens on `port` of this machine. `device`: what computes, with versions."""

    port: int
    device: str


class LlamaServer:
    """llama.cpp's own server on a free port, in threads of its own."""

    def __init__(self, path: str, n_context: int, n_streams: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_parallel = n_streams
        # One more for each: a stream that fills its slot ends there.
        params.n_ctx = n_streams * (n_context + 1)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_processors()
        params.fit_params = False  # all slots, or an error
        # Like the other engines of the benchmark it reads every prompt.
        params.cache_prompt = params.cache_idle_slots = False
        params.cache_ram_mib = 0
        params.ui = False
        params.verbosity = WARNINGS
        self._server = xllamacpp.Server(params)
        self.port = int(self._server.listening_address.rpartition(":")[2])
        gpus = [
            found["description"]
            for found in xllamacpp.get_device_info()
            if found["type"].name.endswith("GPU")  # discrete or integrated
        ]
        self.device = f"{', '.join(gpus) or 'CPU'}, xllamacpp {xllamacpp.__version__}"


class LlamaCppPython:
    """The server of llama-cpp-python on a free port, in a thread."""

    def __init__(self, path: str, n_context: int, _n_streams: int) -> None:
        import llama_cpp
        import uvicorn
        from llama_cpp.server import app, settings

        model = settings.ModelSettings(
            model=path,
            n_ctx=n_context,
            n_gpu_layers=-1,
            n_threads=n_processors(),
            logits_all=False,
            verbose=False,
        )
        # By default a new request ends the one that is being answered.
        server = settings.ServerSettings(interrupt_requests=False)
        made = app.create_app(server_settings=server, model_settings=[model])
        config = uvicorn.Config(made, port=0, log_level="error", access_log=False)
        self._server = uvicorn.Server(config)
        threading.Thread(target=self._server.run, daemon=True).start()
        while not self._server.started:
            time.sleep(0.01)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        place = "GPU" if llama_cpp.llama_supports_gpu_offload() else "CPU"
        self.device = f"{place}, llama-cpp-python {llama_cpp.__version__}"


SERVERS: dict[str, tuple[Callable[[str, int, int], Server], str]] = {
    "llama-server": (LlamaServer, "xllamacpp"),
    "llama-cpp-python": (LlamaCppPython, "llama-cpp-python[server]"),
}
"""SERVER to what starts it (path, n_context, n_streams) and the package to install."""


def ask(port: int, ids: list[int], n_tokens: int, times: list[float]) -> None:
    """Ask for `n_tokens` after a prompt; add the time of each. Raises OSError if it fails."""
    body = {
        "prompt": "".join(f"<{id}>" for id in ids),
        "max_tokens": n_tokens,
        "ignore_eos": True,
        "stream": True,
        **SAMPLING,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise OSError(f"the server answered {answer.status}: {answer.read(200)!r}")
    for line in answer:
        text = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and text != b"[DONE]":
            choice = json.loads(text)["choices"][0]
            times += [time.perf_counter()] * choice["text"].count("<")
    connection.close()


def streams(port: int, prompts: list[list[int]], n_tokens: int) -> dict[str, Any]:
    """Write `n_tokens` after each prompt, all asked for at once."""
    times: list[list[float]] = [[] for _ in prompts]
    processor, asked = time.process_time(), time.perf_counter()
    threads = [
        threading.Thread(target=ask, args=(port, ids, n_tokens, times[stream]))
        for stream, ids in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong := [len(found) for found in times if len(found) != n_tokens]:
        raise SystemExit(f"a stream has {wrong[0]} tokens, not {n_tokens}")
    cpu_s = time.process_time() - processor
    return {"asked": [asked] * len(prompts), "times": times, "cpu_s": cpu_s}


def main(path: str, name: str, n_context: str, n_streams: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the library's output out of the answers

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    start, package = SERVERS[name]
    try:
        server = start(path, int(n_context), int(n_streams))
    except ModuleNotFoundError:
        say({"missing": f"not installed (pip install {package})"})
        return
    say({"device": server.device})
    for line in sys.stdin:
        request = json.loads(line)
        say(streams(server.port, request["prompts"], request["tokens"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
