"""Intervention messages are read and tokenized, and bad ones are refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from gpu.config import MoeConfig
from gpu.errors import InvalidRequest
from gpu.interventions.messages import (
    NO_INTERVENTIONS,
    NONE_ENCODED,
    ExpertOff,
    HeadFactor,
    Interventions,
    LayerFactor,
    Patch,
    Steer,
    check_no_new_patch,
    encode_interventions,
)


@dataclass
class Sizes:
    n_layers: int = 3
    n_heads: int = 4

    def moe_of(self, i: int) -> MoeConfig | None:
        """Return the mixture of a layer; the first layer is dense."""
        return MoeConfig(6, 2, 8, norm_topk_prob=True) if i else None


def encode(text: str) -> list[int]:
    """A beginning, then bytes."""
    return [256, *text.encode()]


FULL = Interventions(
    heads=(HeadFactor(0, 3, 0.0), HeadFactor(2, 0, -8.0)),
    attention=(LayerFactor(2, 0.5),),
    mlp=(LayerFactor(2, 8.0),),
    steer=(Steer(1, "joy", 1.5, "woe"), Steer(1, "sea", -16.0)),
    patch=(Patch(2, 7, "red", 2), Patch(1, 7, "red", 0)),
    experts=(ExpertOff(2, 5), ExpertOff(1, 0)),
)


def test_the_wire_format_is_unchanged_by_reading_and_writing() -> None:
    text = (
        '{"heads":[{"layer":0,"head":3,"factor":0}],"attention":[{"layer":2,"factor":0.5}],'
        '"steer":[{"layer":1,"toward":"joy","away":"","strength":2}],'
        '"patch":[{"layer":2,"position":7,"prompt":"red","token":2}]}'
    )
    read = msgspec.json.decode(text, type=Interventions)
    assert read.heads == (HeadFactor(0, 3, 0.0),)
    assert read.steer == (Steer(1, "joy", 2.0),)
    assert msgspec.json.decode(msgspec.json.encode(read), type=Interventions) == read
    assert msgspec.json.encode(NO_INTERVENTIONS) == b"{}"


def test_texts_are_tokenized_up_to_the_token_whose_state_is_used() -> None:
    found = encode_interventions(FULL, Sizes(), encode, n_prompt=8)
    assert found.requested == FULL
    assert found.toward == ((256, *b"joy"), (256, *b"sea"))
    assert found.away == ((256, *b"woe"), ())
    assert found.patch == ((256, *b"re"), (256,))
    assert len(list(found.texts())) == 5
    assert encode_interventions(Interventions(), Sizes(), encode) is NONE_ENCODED


def experts(*at: Any) -> Interventions:
    return Interventions(experts=tuple(ExpertOff(*entry) for entry in at))


def heads(*at: Any) -> Interventions:
    return Interventions(heads=tuple(HeadFactor(*entry) for entry in at))


@pytest.mark.parametrize(
    ("bad", "field", "words"),
    [
        (heads((3, 0, 1.0)), "heads", "layer must be an integer from 0 to 2, but got 3"),
        (heads((-1, 0, 1.0)), "heads", "layer must be an integer from 0 to 2, but got -1"),
        (heads((True, 0, 1.0)), "heads", "layer must be an integer"),
        (heads((0, 4, 1.0)), "heads", "head must be an integer from 0 to 3, but got 4"),
        (heads((0, 0, 8.1)), "heads", "factor must be a number from -8 to 8, but got 8.1"),
        (heads((0, 0, float("nan"))), "heads", "but got nan"),
        (heads((0, 0, "1")), "heads", "but got '1'"),
        (heads((0, 1, 1.0), (0, 1, 1.0)), "heads", "two entries for"),
        (Interventions(attention=(LayerFactor(9, 1.0),)), "attention", "but got 9"),
        (Interventions(mlp=(LayerFactor(0, float("inf")),)), "mlp", "but got inf"),
        (Interventions(mlp=(LayerFactor(0, 1.0),) * 2), "mlp", "two entries"),
        (experts((3, 0)), "experts", "layer must be an integer from 0 to 2, but got 3"),
        (experts((0, 0)), "experts", "layer 0 has no experts"),
        (experts((1, 6)), "experts", "expert must be an integer from 0 to 5, but got 6"),
        (experts((1, 5), (1, 5)), "experts", "two entries for"),
        (experts(*((2, i) for i in range(5))), "experts", "at most 4 experts of layer 2 .* got 5"),
        (Interventions(steer=(Steer(3, "a", 1.0),)), "steer", "layer must be"),
        (Interventions(steer=(Steer(0, "a", 16.5),)), "steer", "strength must be .* -16 to 16"),
        (Interventions(steer=(Steer(0, "", 1.0),)), "steer", "toward must have 1 to 256 tokens"),
        (Interventions(steer=(Steer(0, "a" * 256, 1.0),)), "steer", "toward .* it has 257"),
        (Interventions(steer=(Steer(0, "a", 1.0, "b" * 256),)), "steer", "away .* it has 257"),
        (Interventions(steer=(Steer(0, "a", 1.0),) * 9), "steer", "8 entries .* but got 9"),
        (Interventions(patch=(Patch(3, 0, "a", 0),)), "patch", "layer must be"),
        (Interventions(patch=(Patch(0, 8, "a", 0),)), "patch", "position must be from 0 to 7"),
        (Interventions(patch=(Patch(0, -1, "a", 0),)), "patch", "position must be"),
        (Interventions(patch=(Patch(0, 0, "ab", 3),)), "patch", "token must be from 0 to 2"),
        (Interventions(patch=(Patch(0, 0, "ab", -1),)), "patch", "token must be from 0 to 2"),
        (Interventions(patch=(Patch(0, 0, "", 0),)), "patch", "prompt must have 1 to 256"),
        (Interventions(patch=(Patch(0, 0, "a", 0), Patch(0, 0, "b", 0))), "patch", "two entries"),
        (
            Interventions(patch=tuple(Patch(0, i, "a", 0) for i in range(17))),
            "patch",
            "16 entries are taken at most, but got 17",
        ),
    ],
)
def test_impossible_interventions_are_refused_by_name(
    bad: Interventions, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        encode_interventions(bad, Sizes(), encode, n_prompt=8)
    assert refusal.value.param == f"reach.{field}"


def test_an_update_may_drop_a_patch_but_not_add_one() -> None:
    check_no_new_patch(FULL, NO_INTERVENTIONS)
    check_no_new_patch(FULL, Interventions(patch=FULL.patch[1:]))
    with pytest.raises(InvalidRequest, match=r"computed already.* write again") as refusal:
        check_no_new_patch(NO_INTERVENTIONS, FULL)
    assert refusal.value.param == "reach.patch"
