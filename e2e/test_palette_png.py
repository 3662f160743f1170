"""Small pictures are the pictures: read back by the browser that will show them."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from playwright.sync_api import Page

from e2e.palette_png import DECODE, N_COLOURS, SIGNATURE, Pixels, encode, indexed, to_palette_png


def decoded(page: Page, png: bytes) -> Pixels:
    width, height, data = page.evaluate(DECODE, base64.b64encode(png).decode())
    rgba = np.frombuffer(base64.b64decode(data), np.uint8)
    return rgba.reshape(height, width, 4)[..., :3]


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 33)])
def test_few_colours_stay_exactly_what_they_were(page: Page, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    colours = rng.integers(0, 256, (N_COLOURS, 3), np.uint8)
    pixels = colours[rng.integers(0, N_COLOURS, shape)]
    assert np.array_equal(decoded(page, encode(*indexed(pixels))), pixels)


def test_many_colours_become_near_ones(page: Page) -> None:
    """A picture of text has few colours and all shades between any two."""
    rng = np.random.default_rng(2)
    ends = rng.integers(0, 256, (6, 3)).astype(np.float64)
    pairs = [(a, b) for a in range(6) for b in range(a)]
    share = np.linspace(0, 1, 200)[:, None]
    pixels = np.stack([ends[a] * share + ends[b] * (1 - share) for a, b in pairs]).astype(np.uint8)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 5 * N_COLOURS
    got = decoded(page, encode(*indexed(pixels)))
    assert len(np.unique(got.reshape(-1, 3), axis=0)) <= N_COLOURS
    assert np.abs(got.astype(int) - pixels.astype(int)).max() <= 24
    assert np.abs(got.astype(int) - pixels.astype(int)).mean() <= 6


@pytest.mark.slow
def test_a_page_becomes_smaller_and_stays_itself(page: Page) -> None:
    page.set_content("<h1>Core sample</h1><p>" + "A fox found a lantern. " * 200)
    png = page.screenshot()
    small = to_palette_png(png, page)
    assert small.startswith(SIGNATURE)
    assert struct.unpack(">II", small[16:24]) == struct.unpack(">II", png[16:24])
    assert len(small) < len(png)
    apart = np.abs(decoded(page, small).astype(int) - decoded(page, png).astype(int))
    assert apart.max() <= 8
    end = small[-12:]
    assert end == b"\0\0\0\0IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
