"""Measures the engine: `python -m gpu.bench --model DIR` or `--shape NAME`.

Prefill and decode use the engine's runner and in-flight depth, without sampling filters or text.
Repetitions of everything compared are interleaved, and figures are medians. On a shared machine the
ratios are reliable, absolute times are not. The last line is JSON.
"""
