"""Drawing of the loss curve as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 28, 44  # margins
Y_MAX = 6.0  # nats; the first minute starts above and is cut off
SERIES = (("training", "#8a94a6"), ("held out", "#c2410c"))

Point = tuple[float, float]  # (million tokens, loss)


def loss_curve(training: Sequence[Point], held_out: Sequence[Point]) -> str:
    """Return an SVG of both losses over the number of training tokens, with axes and legend."""
    x_max = max(x for x, _ in training)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#475569" role="img" '
        'aria-label="Loss over tokens read, training and held out">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_grid(x_max),
    ]
    for (name, colour), points in zip(SERIES, (training, held_out), strict=True):
        path = " ".join(
            f"{_x(x, x_max):.1f},{_y(min(y, Y_MAX)):.1f}" for x, y in points if y < Y_MAX
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        row = TOP + 14 + 18 * SERIES.index((name, colour))
        key = f'x="{WIDTH - 130}" y="{row - 9}" width="18" height="3"'
        parts.append(f'<rect {key} fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - 104}" y="{row - 3}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(value: float, x_max: float) -> float:
    return LEFT + value / x_max * (WIDTH - LEFT - RIGHT)


def _y(value: float) -> float:
    return TOP + (1 - value / Y_MAX) * (HEIGHT - TOP - BOTTOM)


def _grid(x_max: float) -> list[str]:
    """Return a line per nat, a tick for about every two million tokens, and the axis titles."""
    parts = []
    for loss in range(int(Y_MAX) + 1):
        y = _y(loss)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss}</text>')
    step = max(1, round(x_max / 8))
    for tokens in range(0, int(x_max) + 1, step):
        x, below = _x(tokens, x_max), HEIGHT - BOTTOM + 18
        parts.append(f'<text x="{x:.1f}" y="{below}" text-anchor="middle">{tokens}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">million tokens read</text>'
    )
    parts.append(f'<text x="{LEFT}" y="{TOP - 10}">loss (nats per token)</text>')
    return parts
