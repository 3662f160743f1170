"""Work that a step must do: bytes read and operations computed."""

from __future__ import annotations

from gpu.runners.wgpu_runner import WgpuRunner


def weight_bytes(runner: WgpuRunner) -> int:
    """Return the bytes of weights that a decode step reads: every matrix once, one row of an untied
    embedding."""
    model, config = runner.model, runner.config
    n_bytes = sum(matrix.n_bytes for matrix in model.matrices())
    if not config.tie_embeddings:
        n_bytes -= model.embedding.n_bytes * (config.vocab_size - 1) // config.vocab_size
    return n_bytes


def kv_bytes(runner: WgpuRunner, context: int) -> int:
    """Return the bytes of keys and values of `context` tokens."""
    return context * runner.limits.block_bytes // runner.limits.block_tokens


def prefill_flops(runner: WgpuRunner, n_prompt: int) -> int:
    """Return the operations of a prompt, a multiply-add counted as two.

    Counted are the layers' matrices and attention for every row, and the output head for the last
    one; not norms, RoPE, softmax and activations.
    """
    model, config = runner.model, runner.config
    layers = sum(matrix.n * matrix.k for matrix in model.layer_matrices())
    pairs = n_prompt * (n_prompt + 1) // 2  # (row, key) pairs
    attention = 2 * config.n_layers * config.n_heads * config.head_dim * pairs
    return 2 * (n_prompt * layers + attention + model.head.n * model.head.k)
