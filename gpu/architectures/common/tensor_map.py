"""The modules of a checkpoint: what each is, and which dispatch reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["embedding", "attention", "mlp", "norm", "head", "unused"]
Layout = Literal["padded", "concatenated", "paired", "transposed", "table", "exact"]

STACKED = (".experts.gate_up_proj", ".experts.down_proj")
"""Ends of modules that hold all experts of a layer in one tensor, named without .weight."""


@dataclass(frozen=True, slots=True)
class ModuleRole:
    """Role of one module of a checkpoint in the model.

    op      the dispatch that reads it, after the name of its layer; also_read_by: others that do
    biases  the field of the config that says whether it has them; "": it has none, "always"
    layout  its layout on the device. Vectors: padded; concatenated, with another and without
            padding; or paired, alternating with another and then padded. Matrices: transposed in
            the checkpoint; a float32 table of which a token reads one row; or exact, in float32
            whatever the storage type
    routed  it belongs to the experts of a layer, of which each token uses a few
    """

    kind: Kind
    op: str
    biases: str = ""
    layout: Layout = "padded"
    bias_layout: Layout = "padded"
    also_read_by: tuple[str, ...] = ()
    routed: bool = False

    @property
    def ops(self) -> tuple[str, ...]:
        """All dispatches that read it."""
        return (self.op, *self.also_read_by)


Roles = Mapping[str, ModuleRole]
"""Modules and their roles, in the order a step reads them."""


@dataclass(frozen=True, slots=True)
class TensorMatch:
    """The place of a tensor in the model; `expert`: its number, if it belongs to one of several."""

    layer: int | None
    module: str
    role: ModuleRole
    is_bias: bool
    expert: int = 0


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The modules of one architecture. In a name `*` stands for the number of an expert.

    prefix     of the layers; the number of a layer follows
    before     modules read before the layers, the embedding first; after: after them
    dense      modules of a layer with one MLP; sparse: of a layer with experts
    sparse_layers      numbers of the layers with experts
    not_in_first_layer modules that the first layer lacks; only_in_first_layer: that the others lack
    norm_plus_one      norms are saved as gain - 1
    qk_norm_all_heads  the norms of queries and keys run over all heads together, else over each
    qkv_by_head        a fused tensor holds query, key and value of each head together, else all
                       queries, all keys, all values
    """

    prefix: str
    before: Roles
    dense: Roles
    after: Roles
    sparse: Roles = field(default_factory=dict)
    sparse_layers: frozenset[int] = frozenset()
    not_in_first_layer: tuple[str, ...] = ()
    only_in_first_layer: tuple[str, ...] = ()
    norm_plus_one: bool = False
    qk_norm_all_heads: bool = False
    qkv_by_head: bool = False

    @property
    def embedding(self) -> str:
        """The tensor of the embedding."""
        return next(iter(self.before)) + ".weight"

    @property
    def head(self) -> str:
        """The tensor of the output head."""
        return self.module_after("head") + ".weight"

    def module_after(self, kind: Kind) -> str:
        """Return the module of this kind after the layers."""
        return next(module for module, role in self.after.items() if role.kind == kind)

    @property
    def without_first_word(self) -> TensorMap:
        """The names of a model that was saved without its head: `transformer.h` is `h`."""

        def short(roles: Roles) -> dict[str, ModuleRole]:
            return {module.partition(".")[2] or module: role for module, role in roles.items()}

        prefix = self.prefix.partition(".")[2]
        return replace(self, prefix=prefix, before=short(self.before), after=short(self.after))

    def without_mlp(self, op: str) -> TensorMap:
        """Return the map without the modules of MLPs that this dispatch reads."""
        kept = {m: role for m, role in self.dense.items() if (role.kind, role.op) != ("mlp", op)}
        return replace(self, dense=kept)

    def roles(self, layer: int | None) -> Roles:
        """Return the roles of a layer's modules; None: of those outside of the layers."""
        if layer is None:
            return {**self.before, **self.after}
        roles = self.sparse if layer in self.sparse_layers else self.dense
        absent = self.only_in_first_layer if layer else self.not_in_first_layer
        return {m: role for m, role in roles.items() if m not in absent} if absent else roles

    def modules(self, layer: int, kind: Kind, *ops: str) -> dict[str, ModuleRole]:
        """Return the modules of a layer that these dispatches read, by their whole names."""
        roles = self.roles(layer).items()
        found = {module: role for module, role in roles if role.kind == kind and role.op in ops}
        return {f"{self.prefix}.{layer}.{module}": role for module, role in found.items()}

    def transposed(self) -> Iterator[str]:
        """Yield the modules of layers whose matrices are saved as inputs × outputs."""
        for module, role in {**self.dense, **self.sparse}.items():
            if role.layout == "transposed":
                yield module

    def find(self, tensor: str) -> TensorMatch | None:
        """Return the place of a tensor, None if the architecture has no such tensor."""
        pattern = rf"(?:{re.escape(self.prefix)}\.(\d{{1,9}})\.)?(.+?)(?:\.(weight|bias))?"
        match = re.fullmatch(pattern, tensor, re.ASCII)
        if match is None:
            return None
        number, module, suffix = match.groups()
        layer = None if number is None else int(number)
        expert = re.search(r"\.experts\.(\d{1,9})\.", module)
        if expert is not None:
            module = f"{module[: expert.start(1)]}*{module[expert.end(1) :]}"
        role = self.roles(layer).get(module)
        if role is None or (suffix is None) != module.endswith(STACKED):
            return None
        return TensorMatch(layer, module, role, suffix == "bias", int(expert[1]) if expert else 0)
