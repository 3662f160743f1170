"""Groups of layers that share a block table, and what they save."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu.config import ModelConfig
from gpu.errors import DeviceError, ModelError
from gpu.kv.blocks import KvShape, block_bytes, fit_kv_cache, text_blocks
from gpu.kv.groups import MAX_GROUPS, group_size, groups_by_window
from gpu.step import MAX_ROWS
from tests.gpu.engine.scripted_runner import CONFIG


def config_of(windows: tuple[int | None, ...], context: int = 1 << 15) -> ModelConfig:
    return replace(CONFIG, n_layers=len(windows), sliding_windows=windows, context=context)


GEMMA2 = config_of((4096, None) * 13)
GEMMA3_1B = config_of(((512,) * 5 + (None,)) * 4 + (512, 512))
GEMMA3_27B = config_of(((1024,) * 5 + (None,)) * 10 + (1024, 1024))


@pytest.mark.parametrize(
    ("config", "size", "n_full", "n_windowed"),
    [
        (GEMMA2, 13, 1, 1),
        (GEMMA3_1B, 4, 1, 6),
        (GEMMA3_27B, 10, 1, 6),
        (config_of((128, None) * 12), 12, 1, 1),
        (config_of(((4096,) * 3 + (None,)) * 8), 8, 1, 3),
        (config_of((None,) * 21 + (64,) * 7), 7, 3, 1),
        (config_of((None,) * 30), 30, 1, 0),
        (config_of((512,) * 30), 30, 0, 1),
        (config_of((None, 64)), 1, 1, 1),
        (config_of((None,) * 5 + (64,) * 3), 1, 5, 3),  # as many groups as there may be
        (config_of((None,) * 6 + (64,) * 3), 3, 2, 1),
        (config_of((None,) * 5 + (64,) * 4), 5, 1, 1),
        (config_of((None, *range(16, 23))), 1, 1, 7),  # a window each
    ],
)
def test_layers_are_grouped_by_window(
    config: ModelConfig, size: int, n_full: int, n_windowed: int
) -> None:
    groups = groups_by_window(config)
    assert sorted(layer for group in groups for layer in group.layers) == [*range(config.n_layers)]
    for group in groups:
        assert {config.sliding_window_of(layer) for layer in group.layers} == {group.window}
    assert group_size(groups) == size
    full = [group for group in groups if group.window is None]
    assert (len(full), len(groups) - len(full)) == (n_full, n_windowed)
    assert groups[: len(full)] == tuple(full), "the widest windows come first"


def test_many_windows_make_few_groups() -> None:
    assert len(groups_by_window(config_of((None,) * 27 + (64,)))) <= MAX_GROUPS
    assert len(groups_by_window(config_of(tuple(range(16, 36))))) == 1


def n_bytes(config: ModelConfig, shape: KvShape) -> int:
    return shape.n_blocks * block_bytes(config, "f16", shape.groups)


@pytest.mark.parametrize("config", [GEMMA2, GEMMA3_1B, GEMMA3_27B])
def test_the_same_memory_holds_longer_texts(config: ModelConfig) -> None:
    budget = 8 * block_bytes(config, "f16") * 128
    one = fit_kv_cache(config, "f16", 4, kv_memory_bytes=budget)
    more = fit_kv_cache(config, "f16", 4, kv_memory_bytes=budget, hybrid=True)
    assert more.context > one.context
    assert max(n_bytes(config, one), n_bytes(config, more)) <= budget


@pytest.mark.parametrize("context", [128, 512, 640, 1024, 1500, 4096, 8192, 32768])
@pytest.mark.parametrize("config", [GEMMA2, GEMMA3_1B, GEMMA3_27B])
def test_a_context_that_fits_one_table_fits_in_as_many_bytes(
    config: ModelConfig, context: int
) -> None:
    """Shortly after the window, groups would hold more blocks than they save."""
    one = fit_kv_cache(config, "f16", 1, context=context, kv_memory_bytes=64 << 30)
    enough = n_bytes(config, one)
    hybrid = fit_kv_cache(config, "f16", 1, context=context, kv_memory_bytes=enough, hybrid=True)
    assert hybrid.context == context
    assert n_bytes(config, hybrid) <= enough
    windows = [window for window in config.sliding_windows if window]
    if context >= 2 * (min(windows) + MAX_ROWS):
        assert len(hybrid.groups) > 1


def test_a_text_of_gemma_3_takes_a_sixth() -> None:
    """At 32,768 tokens: a group of 4 layers holds all blocks, six hold the 32 of a window."""
    grouped = fit_kv_cache(GEMMA3_1B, "f16", 1, kv_memory_bytes=64 << 30, hybrid=True)
    n = sum(text_blocks(group.window, 1 << 15) for group in grouped.groups)
    assert n == 2048 + 6 * 32
    whole = 2048 * block_bytes(GEMMA3_1B, "f16")
    share = n * block_bytes(GEMMA3_1B, "f16", grouped.groups) / whole
    assert share == pytest.approx(1 / 6, abs=0.002)


@pytest.mark.parametrize("config", [config_of((None,) * 6), config_of((512,) * 6)])
def test_models_with_one_window_have_what_they_had(config: ModelConfig) -> None:
    for budget in (None, 1 << 20, 1 << 24):
        for context in (None, 640):
            plain = fit_kv_cache(config, "f16", 3, context=context, kv_memory_bytes=budget)
            hybrid = fit_kv_cache(
                config, "f16", 3, context=context, kv_memory_bytes=budget, hybrid=True
            )
            assert plain == hybrid


def test_a_context_that_does_not_fit_in_groups_is_refused_with_the_numbers() -> None:
    n_bytes = 100 * block_bytes(GEMMA2, "f16")
    with pytest.raises(DeviceError, match=r"8192 tokens needs \d+ KV blocks"):
        fit_kv_cache(GEMMA2, "f16", 1, context=8192, kv_memory_bytes=n_bytes, hybrid=True)


def test_a_context_beyond_the_models_is_no_fault_of_the_device() -> None:
    with pytest.raises(ModelError, match=f"supports at most {GEMMA2.context}"):
        fit_kv_cache(GEMMA2, "f16", 1, context=GEMMA2.context + 1)
