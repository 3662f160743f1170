"""Conversion of screenshots to small PNG files with at most 256 colours.

Colours are grouped in the cells of a grid. The 256 cells with the most pixels give the palette,
each the mean of its pixels; every colour is replaced by the nearest.
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page

Pixels = npt.NDArray[np.uint8]

N_COLOURS = 256
CELL_BITS = 4
"""Bits per channel: colours that agree in these upper bits are in one cell."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"

DECODE = """async (png) => {
    const blob = await (await fetch(`data:image/png;base64,${png}`)).blob();
    const image = await createImageBitmap(blob);
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    const { data } = context.getImageData(0, 0, image.width, image.height);
    let text = "";
    for (let i = 0; i < data.length; i += 32768)
        text += String.fromCharCode(...data.subarray(i, i + 32768));
    return [image.width, image.height, btoa(text)];
}"""


def to_palette_png(png: bytes, blank: Page) -> bytes:
    """Return a picture in at most 256 colours. `blank` is a page without CSP, used to decode."""
    width, height, data = blank.evaluate(DECODE, base64.b64encode(png).decode())
    rgba = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)
    indexes, palette = indexed(np.ascontiguousarray(rgba[..., :3]))
    return encode(indexes, palette)


def indexed(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """Map pixels (height, width, 3) to indexes (height, width) and a palette (at most 256, 3)."""
    flat = pixels.reshape(-1, 3)
    colours, which, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    palette = colours if len(colours) <= N_COLOURS else _palette(colours, counts)
    nearest = np.array([_nearest(colour, palette) for colour in colours], np.uint8)
    return nearest[which].reshape(pixels.shape[:2]), palette.astype(np.uint8)


def _palette(colours: Pixels, counts: npt.NDArray[np.int64]) -> Pixels:
    """Return the mean colours of the cells with the most pixels."""
    cells = (colours >> (8 - CELL_BITS)).astype(np.int64)
    keys = (cells << np.array([2 * CELL_BITS, CELL_BITS, 0])).sum(axis=1)
    _, cell, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    total = np.bincount(cell, counts, len(sizes))
    sums = [np.bincount(cell, counts * colours[:, c], len(sizes)) for c in range(3)]
    means = np.stack(sums, axis=1) / total[:, None]
    largest = np.argsort(-total)[:N_COLOURS]
    return np.round(means[largest]).astype(np.uint8)


def _nearest(colour: Pixels, palette: Pixels) -> int:
    apart = palette.astype(np.int32) - colour.astype(np.int32)
    return int((apart * apart).sum(axis=1).argmin())


def encode(indexes: Pixels, palette: Pixels) -> bytes:
    """Return an indexed 8-bit PNG (W3C, "Portable Network Graphics", colour type 3)."""
    height, width = indexes.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    unfiltered = np.zeros(
        (height, width + 1), np.uint8
    )  # each line begins with its filter type: 0, none
    unfiltered[:, 1:] = indexes
    body = zlib.compress(unfiltered.tobytes(), 9)
    chunks = ((b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", body), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
