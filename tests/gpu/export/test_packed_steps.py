"""The layouts in a plan file are enough to pack a step and to read its results: a packer that knows
nothing else writes the engine's bytes."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from gpu.step import FROM_GPU
from tests.gpu.export.packed_steps import reference


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(reference()))
    return found


def test_steps_are_packed_by_the_plan_alone(written: dict[str, Any]) -> None:
    layout, limits = written["plan"]["step"], written["plan"]["limits"]
    for step in written["steps"]:
        data = bytearray(layout["bytes"])
        header = {"n_rows": len(step["rows"]), "n_samples": len(step["samples"])}
        put(data, 0, layout["header"], header)
        for i, sample in enumerate(step["samples"]):
            seed = int(sample["seed"])
            words = sample | {"seed_low": seed & 0xFFFFFFFF, "seed_high": seed >> 32}
            words["n_biases"] = len(sample["logit_bias"])
            words["inverse_temperature"] = 1 / (sample["temperature"] or 1)
            words["inverse_penalty"] = 1 / sample["repetition_penalty"]
            put(data, layout["samples_at"] + 4 * i * len(layout["sample"]), layout["sample"], words)
        end = layout["rows_at"]
        for i, row in enumerate(step["rows"]):
            table = step["tables"][row["slot"]]
            block = i if step["staged_kv"] else table[row["position"] // limits["block_tokens"]]
            token = layout["from_gpu"] if row["token"] == FROM_GPU else row["token"]
            put(data, end, layout["row"], row | {"block": block, "token": token})
            end += 4 * len(layout["row"])
        assert bytes(data[:end]) == base64.b64decode(step["bytes"])


def test_results_are_read_by_the_plan_alone(written: dict[str, Any]) -> None:
    layout = written["plan"]["results"]
    assert {result["kind"] for result in written["results"]} == {"plain", "captured"}
    for result in written["results"]:
        data = base64.b64decode(result["bytes"])
        for i, parsed in enumerate(result["parsed"]):
            at = 4 * i * layout["words"]
            words = get(data, at, layout["sample"])
            assert {k: v for k, v in words.items() if k in parsed} == {
                k: v for k, v in parsed.items() if k in words
            }
            shares = [words[f"mass_{name}"] for name in ("kept", "cut_top_k", "cut_top_p")]
            assert [*shares, words["mass_cut_min_p"]] == parsed["mass"]
            assert len(parsed["candidates"]) == words["n_candidates"]
            for c, candidate in enumerate(parsed["candidates"]):
                place = at + 4 * (len(layout["sample"]) + c * len(layout["candidate"]))
                found = get(data, place, layout["candidate"])
                assert found | {"cut": layout["cuts"][found["cut"]]} == candidate


def put(data: bytearray, at: int, fields: list[list[str]], values: dict[str, Any]) -> None:
    struct.pack_into(form(fields), data, at, *(values.get(name, 0) for name, _ in fields))


def get(data: bytes, at: int, fields: list[list[str]]) -> dict[str, Any]:
    names = [name for name, _ in fields]
    return dict(zip(names, struct.unpack_from(form(fields), data, at), strict=True))


def form(fields: list[list[str]]) -> str:
    return "<" + "".join({"u32": "I", "f32": "f"}[kind] for _, kind in fields)
