"""Draws quality against the share of large calls as an SVG: one panel per benchmark, with our interval shaded."""

from typing import Any

SIZE, MARGIN = 300, 46
COLOURS = {"ours": "#1f5fbf", "length": "#c46a00", "tfidf": "#7a7a7a"}


def draw(curves: dict[str, dict[str, Any]]) -> str:
    """curves: for each benchmark `shares`, `low`, `high` and a line for each rule in COLOURS, all from 0 to 1."""
    panels = "".join(_panel(name, curve, place) for place, (name, curve) in enumerate(curves.items()))
    width, height = len(curves) * (SIZE + 2 * MARGIN), SIZE + 2 * MARGIN
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{paper}{panels}</svg>\n'


def _panel(name: str, curve: dict[str, Any], place: int) -> str:
    shares = curve["shares"]
    band = [*zip(shares, curve["low"], strict=True), *reversed(list(zip(shares, curve["high"], strict=True)))]
    parts = [
        f'<g transform="translate({place * (SIZE + 2 * MARGIN) + MARGIN},{MARGIN})">',
        f'<text x="{SIZE / 2}" y="-18" text-anchor="middle" font-size="14">{name}</text>',
        f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>',
        f'<polygon points="{_points(band)}" fill="#1f5fbf" opacity="0.15"/>',
        f'<polyline points="{_points([(0, 0), (1, 1)])}" fill="none" stroke="#bbb" stroke-dasharray="4 3"/>',
    ]
    for row, (rule, colour) in enumerate(COLOURS.items()):
        line = list(zip(shares, curve[rule], strict=True))
        parts.append(f'<polyline points="{_points(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{SIZE - 70}" y="{SIZE - 44 + 16 * row}" fill="{colour}">{rule}</text>')
    for tick in (0, 0.5, 1):
        parts.append(f'<text x="{tick * SIZE}" y="{SIZE + 16}" text-anchor="middle">{tick:.0%}</text>')
        parts.append(f'<text x="-6" y="{SIZE - tick * SIZE + 4}" text-anchor="end">{tick:.0%}</text>')
    parts.append(f'<text x="{SIZE / 2}" y="{SIZE + 34}" text-anchor="middle">share of large calls</text>')
    parts.append(
        f'<text transform="translate(-34,{SIZE / 2}) rotate(-90)" text-anchor="middle">accuracy recovered</text></g>'
    )
    return "".join(parts)


def _points(line: list[tuple[float, float]]) -> str:
    return " ".join(f"{x * SIZE:.1f},{SIZE - min(max(y, -0.1), 1.1) * SIZE:.1f}" for x, y in line)
