"""Measures the engine: `python -m gpu.bench --model DIR` or `--shape NAME`.

Prefill and decode run through the same runner and in-flight depth as the engine uses, without
sampling filters or text. Repetitions of everything compared are interleaved, figures are medians;
on a shared machine trust the ratios, not the absolute times. The last line is JSON.
"""
