"""Names that papers give to the matrices of a model: W_E, W_Q, W_K, W_V, W_O, W_gate, W_up, W_down,
W_unembed."""

from __future__ import annotations

from gpu.architectures.common.tensor_map import STACKED, TensorMap, TensorMatch

QKV, GATE_UP = ("W_Q", "W_K", "W_V"), ("W_gate", "W_up")
MATRICES = {
    "embed": ("W_E",),
    "positions": ("W_pos",),
    "attn.qkv": QKV,
    "attn.out": ("W_O",),
    "mlp.router": ("W_router",),
    "mlp.gate_up": GATE_UP,
    "mlp.up": ("W_up",),
    "mlp.down": ("W_down",),
    "mlp.experts.gate_up": GATE_UP,
    "mlp.experts.down": ("W_down",),
    "mlp.shared.gate_up": GATE_UP,
    "mlp.shared.down": ("W_down",),
    "head": ("W_unembed",),
}
"""Matrices that a dispatch reads, in the order in which a tensor that holds several has them."""
NORMS = {
    "attn.qkv": "norm1",
    "attn.norm": "norm1",
    "mlp.gate_up": "norm2",
    "mlp.norm": "norm2",
    "mlp.router": "norm2",
    "head": "final norm",
    "head.norm": "final norm",
}
"""Norms by the dispatch that computes them. Papers have no names for others."""


def matrix_names(tensors: TensorMap, found: TensorMatch) -> tuple[str, ...]:
    """Return the names of the matrices that a tensor holds, which is no norm: several if the file
    has several projections in one tensor."""
    names, role = MATRICES[found.role.op], found.role
    modules = [
        module
        for module, other in tensors.roles(found.layer).items()
        if (other.kind, other.op) == (role.kind, role.op) and not module.endswith(STACKED)
    ]
    if found.module in modules and len(modules) == len(names):
        return (names[modules.index(found.module)],)
    return names


def article_name(tensors: TensorMap, found: TensorMatch) -> str:
    """Return the name of a tensor in papers; "" of a norm without one, and of experts, which have
    those of the MLP."""
    op = found.role.op
    if found.role.kind == "norm":
        name = NORMS.get(op, "")
    elif op.startswith(("mlp.experts.", "mlp.shared.")):
        name = ""
    else:
        name = " ".join(matrix_names(tensors, found))
    return f"{name} bias" if name and found.is_bias else name
