"""`python -m tests.replica_speed`: tokens per second of one and of two engines behind one server.

Servers are started with the bundled model and measured in turns, so that what else the machine does
falls on all of them. Each engine gets one thread of Mesa's software driver: it stands for a device.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec

from app.config import Settings
from app.upstream.address import Address
from app.upstream.chunks import Chunk
from app.upstream.transport import HttpExchange
from tests.serving import serving

SERVERS = {
    "one engine": (),
    "--data-parallel-size 2": ("--data-parallel-size", "2"),
    "--ray": ("--ray", "--data-parallel-size", "1"),
    "--ray --data-parallel-size 2": ("--ray", "--data-parallel-size", "2"),
}
SECONDS = 120.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=8, help="texts written at the same time")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each text")
    parser.add_argument("--turns", type=int, default=5, help="times that each server is measured")
    args = parser.parse_args(argv)
    os.environ["LP_NUM_THREADS"] = "1"
    with ExitStack() as stack:
        addresses = {
            name: Address.of(Settings(upstream=stack.enter_context(serving(*options, *SLOTS))))
            for name, options in SERVERS.items()
            if "--ray" not in options or find_spec("ray") is not None
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in addresses}
        for turn in range(args.turns + 1):
            for name, address in addresses.items():
                result = speed(address, args.streams, args.tokens)
                if turn:  # the first one compiles kernels
                    found[name].append(result)
    print(f"{args.streams} streams of {args.tokens} tokens, medians of {args.turns} turns")
    for name, results in found.items():
        rates, firsts = zip(*results, strict=True)
        rate, spread = statistics.median(rates), max(rates) - min(rates)
        first = 1e3 * statistics.median(firsts)
        print(f"{name:30} {rate:7.1f} tok/s (spread {spread:.1f}), first token {first:.0f} ms")


SLOTS = ("--max-num-seqs", "8", "--queue", "64", "--no-switching")


def speed(address: Address, n_streams: int, n_tokens: int) -> tuple[float, float]:
    """Return tokens per second of all streams together, and the median seconds to a first token."""
    began = time.perf_counter()
    with ThreadPoolExecutor(n_streams) as pool:
        firsts = list(pool.map(lambda i: first_token(address, i, n_tokens), range(n_streams)))
    seconds = time.perf_counter() - began
    return n_streams * n_tokens / seconds, statistics.median(firsts)


def first_token(address: Address, number: int, n_tokens: int) -> float:
    """Read a whole text; return the seconds to its first token."""
    exchange = HttpExchange(address, SECONDS)
    began, first = time.perf_counter(), 0.0
    body = {
        "prompt": f"Once upon a time there were {number} foxes who",
        "max_tokens": n_tokens,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }
    try:
        response = exchange.open_stream("/v1/completions", body)
        for chunk in exchange.events(response, Chunk):
            if chunk.choices and chunk.choices[0].new_text and not first:
                first = time.perf_counter() - began
    finally:
        exchange.release()
    return first


if __name__ == "__main__":
    main()
