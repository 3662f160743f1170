"""Predicts the time of a token and of a prompt on a GPU that is not at hand.

The plans are recorded as for a GPU, and one workgroup of each dispatch runs on any adapter with its
memory accesses written down (`gpu.tracing`). `specs` describes the GPUs, `predict` turns the two
into times. docs/gpus.md gives the formulas and the results.
"""
