"""Unrolling of marked loops in the source of a shader."""

from __future__ import annotations

import re

import pytest

from gpu.checks.kv_cache import heads_config
from gpu.info import AdapterInfo
from gpu.ops.attention_tiling import AttentionTiling
from gpu.webgpu import unroll
from gpu.webgpu.device_policy import DISCRETE, DevicePolicy
from gpu.webgpu.kernels import compose
from gpu.webgpu.tiling import GPU
from gpu.webgpu.unroll import unmarked, unrolled


def test_a_block_for_each_round_declares_the_variable() -> None:
    source = """fn f() {
  for (var i = 0u; i < 3u; i++) { a[i] = other.i + fi + i2; } // unroll
  after();
}
"""
    assert (
        unrolled(source)
        == """fn f() {
  { const i = 0u; a[i] = other.i + fi + i2; }
  { const i = 1u; a[i] = other.i + fi + i2; }
  { const i = 2u; a[i] = other.i + fi + i2; }
  after();
}
"""
    )


def test_without_unrolling_only_the_marks_go() -> None:
    source = "for (var i = 0u; i < N; i++) { a(i); } // unroll\n// unroll\nb(); // c\n"
    assert unmarked(source) == source.replace(" } // unroll", " }")


def test_loops_in_loops_and_their_comments() -> None:
    source = """const N = 4u;
// Stays }.
for (var i = 0u; i < N; i += 2u) { // unroll
  // Goes {.
  let s = i; // of }
  for (var j = 0u; j < i + 1u; j++) { // unroll
    b[s + j] = array<array<f32, 2>, 2>();
  }
}
for (var i = 0u; i < n; i++) { a[i] = 0u; }
"""
    assert (
        unrolled(source)
        == """const N = 4u;
// Stays }.
{ const i = 0u;
  let s = i;
  { const j = 0u;
    b[s + j] = array<array<f32, 2>, 2>();
  }
}
{ const i = 2u;
  let s = i;
  { const j = 0u;
    b[s + j] = array<array<f32, 2>, 2>();
  }
  { const j = 1u;
    b[s + j] = array<array<f32, 2>, 2>();
  }
  { const j = 2u;
    b[s + j] = array<array<f32, 2>, 2>();
  }
}
for (var i = 0u; i < n; i++) { a[i] = 0u; }
"""
    )


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("i = 0u; i < M; i++", ["0u", "1u", "2u"]),
        ("i = 1; i < 0x4; i++", ["1", "2", "3"]),
        ("i = 0x10i; i < 18i; i++", ["16i", "17i"]),
        ("i = 0u; i < N - 1u; i += M", ["0u", "3u"]),
        ("i = 2u; i < (N + M) / 2u; i += 2u", ["2u", "4u"]),
        ("i = 0u; i < select(1u, min(N, 2u), M == 3u); i++", ["0u", "1u"]),
        ("i = 0u; i < N % M - 1u; i++", []),
        ("i = 5u; i < M; i++", []),
    ],
    ids=str,
)
def test_bounds_are_expressions_of_constants(header: str, values: list[str]) -> None:
    source = f"const N: u32 = 7u;\nconst M = N / 2u;\nfor (var {header}) {{ a(i); }} // unroll\n"
    assert re.findall(r"const i = (\w+); a\(i\); }", unrolled(source)) == values


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("for (var i = 0u; i < n; i++) { a(i); }", "n is not an expression of known constants"),
        ("for (var i = 0u; i < N; i++) { a(i); }", "N is not an expression of known constants"),
        ("for (var i = 0u; i < 2u +; i++) { a(i); }", "2u + is not an expression"),
        ("for (var i = n; i < 2u; i++) { a(i); }", "it is not like for (var i = 0u;"),
        ("for (var i = 0u; i <= 2u; i++) { a(i); }", "it is not like for (var i = 0u;"),
        ("for (var i = 0u; i < 2u; i--) { a(i); }", "it is not like for (var i = 0u;"),
        ("for (var i = 0u; j < 2u; i++) { a(i); }", "it is not like for (var i = 0u;"),
        ("for (var i = 0u; i < 2u; i++) { if (a(i)) { break; } }", "it has a break"),
        ("for (var i = 0u; i < 2u; i++) { if (a(i)) { continue; } }", "it has a continue"),
        ("for (var i = 0u; i < 2u; i++) { i += 1u; }", "it assigns i"),
        ("for (var i = 0u; i < 2u; i++) { i++; }", "it assigns i"),
        ("for (var i = 0u; i < 2u; i++) { for (var i = 0u; i < 2u; i++) { } }", "it assigns i"),
        ("for (var i = 0u; i < 2u; i++) { a(i);", "a brace is not closed"),
    ],
)
def test_what_cannot_be_unrolled_is_refused(loop: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"cannot unroll {loop}: {message}")):
        unrolled(f"override N: u32;\n{loop} // unroll\n")


def test_comparisons_and_members_are_no_assignments() -> None:
    body = "if (i == 1u || i <= n) { a.i = b[i]; }"
    assert unrolled(f"for (var i = 0u; i < 1u; i++) {{ {body} }} // unroll") == (
        f"{{ const i = 0u; {body} }}"
    )


def test_a_loop_of_too_many_copies_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "MAX_COPIES", 6)
    inner = "for (var j = 0u; j < 3u; j++) { a(i, j); }"
    for n, copies in ((2, 6), (3, 0), (7, 3)):
        found = unroll.unrolled.__wrapped__(
            f"for (var i = 0u; i < {n}u; i++) {{ // unroll\n  {inner} // unroll\n}}\n"
        )
        assert found.count("const j") == copies
        assert found.count(inner) == (3 if n == 3 else 0)


def test_a_tile_of_few_rows_indexes_no_array_by_a_loop() -> None:
    tile = GPU.tile(16, 2048, 64, dtype="q4")
    source = compose(
        "matmul", tile.prelude, {"weight": "weight_q4", **tile.lib(q8=False)}, unroll=True
    )
    loops = re.findall(r"for \(var \w+ = [^;]+; \w+ < ([^;]+);", source)
    assert loops == [
        "BLOCKS", "WORKGROUP / BLOCK_LANES * PART_VEC4S", "TILE_M * QUADS", "SUMS_M", "SUMS_N",
    ]  # fmt: skip


@pytest.mark.parametrize("heads", [(32, 8, 64), (32, 8, 128), (9, 3, 64), (64, 1, 256)], ids=str)
@pytest.mark.parametrize("n_rows", [1, 64])
def test_sources_stay_short_enough_to_compile(heads: tuple[int, int, int], n_rows: int) -> None:
    info = AdapterInfo("", "", "", DISCRETE, software=False, features=())
    for dtype in ("f32", "f16", "q8q4"):
        tiling = AttentionTiling.of(heads_config(heads), dtype, n_rows, DevicePolicy.of(info))
        source = compose("attention", tiling.prelude, tiling.lib, unroll=True)
        assert source.count("\n") < 2000
