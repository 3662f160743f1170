"""Measures the engine with several streams: `python -m gpu.bench.serving --model DIR` or `--shape
NAME`.

Streams start together, each with a random prompt of its own, and write `--tokens`. Throughput is
all written tokens over the time from the first request to the last token. With `--spec-type` the
same streams are measured with speculative decoding too, and with `--peer` in other engines, all in
turns and with the same prompts. With `--long N`, a prompt of N
tokens arrives while `--beside` streams write, once in chunks that leave them time and once in the
largest chunks. The last line is JSON; `gpu.bench.table` makes tables of it.
"""
