"""The declarations of the sampling settings agree with what is written by hand beside them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gpu import InvalidRequest
from gpu.sampling_params import DISTRIBUTION, LIVE, SETTING_BY_NAME, SETTINGS, SamplingParams
from gpu.step import CUTS, Sample

SAMPLER_STAGES = Path(__file__).parents[2] / "gpu/shaders/lib/sampler_stages.wgsl"


def test_defaults_are_allowed() -> None:
    assert SamplingParams().validate() == SamplingParams()


def test_every_number_is_declared() -> None:
    fields = {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert fields - set(SETTING_BY_NAME) == {"stop", "ignore_eos", "logit_bias"}


def test_the_sampler_gets_the_settings_that_change_the_distribution() -> None:
    of_the_draw = {
        "row", "slot", "seed", "index", "logit_bias", "n_drafts", "n_allowed", "n_hashed",
        "verifies",
    }  # fmt: skip
    assert set(Sample.__slots__) - of_the_draw == set(DISTRIBUTION)
    neutral = Sample(0, 0, 0, 0)
    for name in DISTRIBUTION:
        assert getattr(neutral, name) == SETTING_BY_NAME[name].declared.neutral


def test_the_filters_of_a_step_are_the_declared_ones_in_the_order_of_the_shader() -> None:
    stages = re.findall(r"^const (\w+) = \d+u;", SAMPLER_STAGES.read_text("utf-8"), re.MULTILINE)
    filters = stages[stages.index("LISTED") + 1 : stages.index("DRAW")]
    assert ("", *(name.lower() for name in filters)) == CUTS


def test_sliders_lie_in_the_range_and_their_settings_change_live() -> None:
    for setting in SETTINGS:
        slider, (minimum, maximum) = setting.declared.slider, setting.declared.range
        if slider is not None:
            assert minimum <= slider.minimum < slider.maximum <= maximum
            assert setting.declared.off is not None or setting.declared.stage is None
            assert setting.name in LIVE


def test_a_refusal_tells_the_ends_of_a_range_in_full() -> None:
    with pytest.raises(InvalidRequest, match=r"top_k must be an integer from 0 to 2,147,483,647 "):
        SamplingParams(top_k=2**31).validate()
    with pytest.raises(InvalidRequest, match=r"top_p must be a number from 0 to 1 "):
        SamplingParams(top_p=1.5).validate()


def test_every_setting_out_of_range_is_named() -> None:
    with pytest.raises(InvalidRequest) as told:
        SamplingParams(temperature=-1.0, top_p=7.0, top_k=-5).validate()
    for words in ("temperature must be a number from 0 to", "top_p must be", "top_k must be"):
        assert words in str(told.value)
