"""Conventions of shader files: names, order of sections, and every variant compiles."""

from __future__ import annotations

import inspect
import re
from concurrent.futures import Future
from importlib import resources
from itertools import product
from math import prod
from typing import Any

import pytest

from gpu import ops, step
from gpu.checkpoint.device_packer import LANE_BLOCKS
from gpu.errors import DeviceError
from gpu.ops import sampling, step_buffer
from gpu.reference import kv as reference_kv
from gpu.reference import moe as reference_moe
from gpu.reference import ops as reference
from gpu.reference import quantize_activations as reference_activations
from gpu.reference import sampler as reference_sampler
from gpu.reference.watermark import selfhash_greenlist
from gpu.sampling_params import FILTERS
from gpu.webgpu import kernels
from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.kernel_source import workgroup_size
from gpu.webgpu.kernels import (
    Kernel,
    Kernels,
    bindings_of,
    compose,
    read_shader,
    shader_names,
)
from tests.gpu.models import variants

TWIN_ROOMS = (reference, reference_activations, reference_moe, reference_kv)
FOLDER = resources.files("gpu") / "shaders"
LIB = sorted(f.name.removesuffix(".wgsl") for f in (FOLDER / "lib").iterdir())
TWINS = {
    name: next((getattr(room, name) for room in TWIN_ROOMS if hasattr(room, name)), None)
    for name in shader_names()
}
TWINS |= {
    "logit_histogram": reference_sampler.distribution,
    "logit_scatter": reference_sampler.distribution,
    "logit_sort_keys": reference_sampler.scale_logits,
    "sample": reference_sampler.sample_token,
    "selfhash_greenlist": selfhash_greenlist,
    "watermark_keys": reference_sampler.distribution,
}
OPS = {
    name: function
    for name, function in inspect.getmembers(ops, inspect.isfunction)
    if "rec" in inspect.signature(function).parameters
}
MAX_STORAGE_BUFFERS = 8
MAX_INVOCATIONS = 256
"""Storage buffers per stage of every WebGPU device."""

LIB_VARIANTS = {
    "weight": ("f32", "f16", "q8", "q4"),
    "weight_int8": ("q8", "q4"),
    "matmul_tile": ("int8", "int8_coalesced", "int8_shared", "coalesced", "shared"),
    "tile_lanes": ("coalesced", "shared"),
    "attention_split": ("coalesced", "shared"),
    "partial_results": ("merged",),
    "last_seen": ("text",),
    "key_scores": ("biased",),
    "kv": ("f32", "f16", "f16x8", "packed"),
    "cached_keys": ("q8", "nl4"),
    "cached_values": ("q8", "q4", "nl4"),
    "kv_pair": ("f32", "f16"),
    "x_tile": ("shuffle", "load"),
    "words": ("64",),
    "weight_store": ("texture",),
    "quad": ("shuffle", "load"),
    "strip_summaries": ("own",),
    "sampler_row": ("binned",),
}
"""Used names that have variants, and the suffixes of the variants' files."""
THEMSELVES = {
    name: name
    for name in (
        "matmul_tile",
        "tile_lanes",
        "attention_split",
        "partial_results",
        "last_seen",
        "key_scores",
        "cached_keys",
        "cached_values",
        "words",
        "weight_store",
        "strip_summaries",
        "sampler_row",
    )
}
"""Files that are their own default variant."""
FOR_GPUS = {"logit_histogram", "logit_scatter"}
"""Shaders that software devices do without."""
GPU_TILES = [
    f"matmul_tile_{kind}" for kind in ("coalesced", "shared", "int8_coalesced", "int8_shared")
]
ANY = {name: f"{name}_{endings[0]}" for name, endings in LIB_VARIANTS.items()} | THEMSELVES

SECTIONS = (
    r"^// ",
    r"^override ",
    r"^const |^struct ",
    r"^@group",
    r"^var<workgroup>",
    r"^@compute",
)


def constant(source: str, name: str) -> int:
    found = re.search(rf"^const {name} = (0x[0-9a-f]+|\d+)u;", source, re.MULTILINE)
    assert found, f"no constant {name}"
    return int(found[1], 0)


@pytest.mark.parametrize("name", shader_names())
def test_a_shader_has_an_op_and_a_twin_of_its_name(name: str) -> None:
    op, twin = OPS[name], TWINS[name]
    assert inspect.isfunction(op)
    assert op.__doc__
    assert twin is not None, f"gpu/reference has no {name}"
    assert twin.__doc__


def test_every_op_has_a_shader() -> None:
    assert sorted(OPS) == shader_names()


@pytest.mark.parametrize("name", [*shader_names(), *(f"lib/{name}" for name in LIB)])
def test_a_shader_says_first_what_it_is_for(name: str) -> None:
    lines = read_shader(name).splitlines()
    assert re.match(r"// \S.{10,}", lines[0]), f"{name}.wgsl should begin with its purpose"
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", shader_names())
def test_a_shaders_sections_are_in_order(name: str) -> None:
    source = read_shader(name)
    places = [match.start() for s in SECTIONS if (match := re.search(s, source, re.MULTILINE))]
    assert places == sorted(places)
    assert len(re.findall("^@compute", source, re.MULTILINE)) == 1
    assert re.search(r"^@compute.*\nfn main\(", source, re.MULTILINE)


@pytest.mark.parametrize("name", shader_names())
def test_a_shader_describes_its_bindings_and_writes_the_last(name: str) -> None:
    source = compose(name, {}, ANY)
    header = "\n".join(line for line in source.splitlines() if line.startswith("//"))
    bindings = bindings_of(source)
    kinds = [b.kind for b in bindings]
    assert [b.index for b in bindings] == list(range(len(bindings)))
    assert kinds == sorted(kinds, key=["uniform", "read-only-storage", "storage"].index)
    assert len([k for k in kinds if k != "uniform"]) <= MAX_STORAGE_BUFFERS
    for binding in bindings:
        if binding.kind != "uniform":
            assert re.search(rf"^// .*\b{binding.name}\b", header, re.MULTILINE), binding.name


@pytest.mark.parametrize("name", [*shader_names(), *(f"lib/{name}" for name in LIB)])
def test_nothing_is_rounded_to_float16_by_packing_and_unpacking(name: str) -> None:
    """A compiler may drop the pair, as NVIDIA's does; `as_half` rounds in integers."""
    source = re.sub(r"//[^\n]*", "", read_shader(name))
    assert not re.search(r"unpack2x16float\(\s*pack2x16float", source)
    packed = re.findall(r"(?:let|var)\s+(\w+)[^=;]*=\s*pack2x16float", source)
    for variable in packed:
        assert not re.search(rf"unpack2x16float\(\s*{variable}\b", source)
    assert "from_pair(pair_of(" not in source
    assert not re.search(r"f32\(\s*f16\(", source)


@pytest.mark.parametrize("name", [*shader_names(), *(f"lib/{name}" for name in LIB)])
def test_loops_over_a_part_count_their_rounds_from_zero(name: str) -> None:
    """NVIDIA's compiler ran a loop of 16 rounds, from n · 16 to (n + 1) · 16, for 33."""
    source = re.sub(r"//[^\n]*", "", read_shader(name))
    for variable, start, end in re.findall(r"for \(var (\w+) = ([^;]+); \1 < ([^;]+);", source):
        from_start = end.startswith(f"{start} +") or end == start.replace("n *", "(n + 1u) *")
        assert not from_start or start == "0u", f"{variable} from {start} to {end}"


def test_a_shader_does_without_optional_bindings() -> None:
    whole, less = (compose("matmul", {}, ANY, unbound) for unbound in ((), ("bias", "gain")))
    names = {b.name for b in bindings_of(whole)}
    assert names - {b.name for b in bindings_of(less)} == {"bias", "gain"}
    with pytest.raises(ValueError, match=r"^matmul\.wgsl cannot do without x, y$"):
        compose("matmul", {}, ANY, ("y", "x", "bias"))


def test_every_file_of_the_library_is_used() -> None:
    used = set()
    packing = [f"packing/quantize_{dtype}" for dtype in LANE_BLOCKS]
    for name in (*shader_names(), *packing, *(f"lib/{name}" for name in LIB)):
        used |= set(re.findall(r"^// use: (\w+)", read_shader(name), re.MULTILINE))
    files = {f"{name}_{ending}" for name in LIB_VARIANTS for ending in LIB_VARIANTS[name]}
    assert set(LIB) == (used - set(LIB_VARIANTS)) | files | set(THEMSELVES)


def test_host_and_shaders_agree_on_their_numbers() -> None:
    layout, sample = read_shader("lib/step"), compose("sample", {})
    assert constant(layout, "MAX_ROWS") == step_buffer.MAX_ROWS
    assert constant(layout, "MAX_SAMPLES") == step_buffer.MAX_SAMPLES
    assert constant(layout, "FROM_GPU") == step.FROM_GPU & 0xFFFFFFFF
    assert reference.FROM_GPU == step.FROM_GPU
    assert constant(sample, "N_CANDIDATES") == step.N_CANDIDATES
    assert constant(sample, "N_RANKED") == step.N_RANKED
    assert constant(sample, "CAPACITY") == sampling.CAPACITY
    n_filters = constant(sample, "DRAW") - constant(sample, "TOP_K")
    assert n_filters == len(FILTERS)
    words = constant(sample, "FIXED_WORDS") + n_filters + constant(sample, "CANDIDATE_WORDS") * 20
    assert words == ops.RESULT_WORDS


@pytest.mark.ci
def test_every_source_that_models_ask_for_compiles(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For GPUs, whose kernels few other tests run; with most of its constants switched on."""
    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "begin", lambda *_: Future[Any]())
        found = variants.recorded(device, software=False)
    expect_every_shader(found, software=False)
    kernels_ = Kernels(device)
    expect_pipelines([kernels_.compiled_again(kernel) for kernel in variants.one_a_source(found)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("software", "unrolls"),
    [(True, False), (False, False), (False, True)],
    ids=["for-software", "for-gpus", "for-discrete-gpus"],
)
def test_every_variant_that_models_ask_for_compiles(
    device: Device, software: bool, unrolls: bool
) -> None:
    found = variants.recorded(device, software=software, unrolls=unrolls)
    expect_every_shader(found, software=software)
    expect_pipelines(found)


def expect_every_shader(found: list[Kernel], *, software: bool) -> None:
    """Expect a kernel of each shader, and of each tile of GPUs."""
    assert {kernel.name for kernel in found} == set(shader_names()) - (
        FOR_GPUS if software else set()
    )
    if not software:
        for name, lib in product(("matmul", "qkv", "moe_matmul"), GPU_TILES):
            header = read_shader(f"lib/{lib}").splitlines()[0]
            assert any(k.name == name and header in k.source for k in found), (name, lib)
        header = read_shader("lib/attention_split_shared").splitlines()[0]
        assert any(header in k.source and k.constants["CAPTURE"] for k in found)


def expect_pipelines(found: list[Kernel]) -> None:
    for kernel in found:
        assert kernel.pipeline
        assert 1 <= prod(workgroup_size(kernel)) <= MAX_INVOCATIONS


def test_a_kernel_is_compiled_once(device: Device) -> None:
    kernels_ = Kernels(device)
    first = kernels_.get("embed", {"BLOCKS": 1, "COUNT": 1}, lib={"weight": "weight_f32"})
    again = kernels_.get("embed", {"COUNT": 1, "BLOCKS": 1}, lib={"weight": "weight_f32"})
    other = kernels_.get("embed", {"BLOCKS": 1, "COUNT": 1}, lib={"weight": "weight_f16"})
    assert first is again
    assert first is not other
    assert len(kernels_) == 2


def test_a_text_of_several_kernels_is_read_once(device: Device) -> None:
    found = [Kernels(device).get("steer", {"STRIDE": stride}) for stride in (4, 8)]
    assert found[0].source is found[1].source
    assert found[0].bindings is found[1].bindings


def test_overrides_come_first_because_naga_dies_otherwise() -> None:
    lines = [
        line
        for line in compose("sample", {"const ANY": "1u"}).splitlines()
        if line and not line.startswith("//")
    ]
    overrides = [i for i, line in enumerate(lines) if line.startswith("override ")]
    assert overrides == list(range(len(overrides)))
    assert len(overrides) == 11


# ---- what goes wrong, said well ------------------------------------------------------------------


def broken(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Replace `old` in every shader that is read."""
    read = kernels.read_shader
    monkeypatch.setattr(kernels, "read_shader", lambda name: read(name).replace(old, new))


def pipeline(device: Device, constants: dict[str, int]) -> Any:
    return Kernels(device).get("embed", constants, lib={"weight": "weight_f32"}).pipeline


def test_a_shader_that_does_not_compile_is_named_with_the_line(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "let row = id.y;", "let row = id.nothing;")
    with pytest.raises(DeviceError) as caught:
        pipeline(device, {"BLOCKS": 1, "COUNT": 1})
    message = str(caught.value)
    assert message.startswith("embed.wgsl does not compile")
    assert re.search(r"\d+ │ +let row = id\.nothing;", message)


def test_a_pipeline_that_cannot_be_made_is_named_with_its_constants(device: Device) -> None:
    with pytest.raises(
        DeviceError, match=r"(?s)embed\.wgsl with {'BLOCKS': 3} failed.*COUNT"
    ) as caught:
        pipeline(device, {"BLOCKS": 3})
    assert "COUNT" in str(caught.value)


def test_an_unknown_override_is_refused(device: Device) -> None:
    with pytest.raises(ValueError, match=r"embed\.wgsl has no override named COUNTS"):
        pipeline(device, {"COUNTS": 1})
