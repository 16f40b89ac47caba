"""Plots as SVG text, for screen and paper: no script, no font, and no meaning by colour alone.

All external text is escaped here, because the page inserts the SVG unescaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8a8f98")
"""The palette of Okabe and Ito, which is safe for colour-blind readers; the last colour is for the rest."""
_LARGEST = len(COLOURS) - 1
REST = "others"


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    colour: str
    values: tuple[int, ...]


def top(series: Mapping[str, Sequence[int]]) -> list[Series]:
    """The five series with the largest sums, then the rest as one."""
    ordered = sorted(series.items(), key=lambda item: (-sum(item[1]), item[0]))
    largest = [Series(name, COLOURS[i], tuple(v)) for i, (name, v) in enumerate(ordered[:_LARGEST])]
    if rest := [values for _, values in ordered[_LARGEST:]]:
        largest.append(Series(REST, COLOURS[-1], tuple(map(sum, zip(*rest, strict=True)))))
    return largest


def days(series: Sequence[Series], title: str) -> Markup:
    """Stacked columns, one per day. Empty without values."""
    totals = [sum(values) for values in zip(*(s.values for s in series), strict=True)]
    if not any(totals):
        return Markup("")
    width, height, left, bottom = 460, 124, 44, 14
    most = _round_up(max(totals))
    step = (width - left) / len(totals)
    parts = [_grid(most, left, width, height - bottom)]
    for day in range(len(totals)):
        base = float(height - bottom)
        for line in series:
            size = line.values[day] / most * (height - bottom - 8)
            base -= size
            if size:
                parts.append(_box(left + day * step + step * 0.12, base, step * 0.76, size, line.colour))
        if day % 5 == 0 or day == len(totals) - 1:
            parts.append(_text(left + (day + 0.5) * step, height - 4, str(day + 1), "middle"))
    return _svg(width, height, title, f"{_short(sum(totals))} tokens in {len(totals)} days.", parts)


def bars(rows: Sequence[tuple[str, str, int, str]], title: str) -> Markup:
    """Horizontal bars: (name, colour, value, label). Empty without values."""
    most = max((value for _, _, value, _ in rows), default=0)
    if most <= 0:
        return Markup("")
    width, line, left, right = 300, 22, 4, 70
    parts = []
    for index, (name, colour, value, written) in enumerate(rows):
        y = index * line
        length = max(value, 0) / most * (width - left - right)
        parts.append(_text(left, y + 9, _clip(name, 44), "start"))
        parts.append(_box(left, y + 12, max(length, 0.5), 8, colour))
        parts.append(_text(left + length + 5, y + 19.5, written, "start"))
    return _svg(width, len(rows) * line, title, "", parts)


def _grid(most: int, left: int, width: int, floor: int) -> Markup:
    lines = []
    for part in (0, 0.5, 1):
        y = floor - part * (floor - 8)
        lines.append(
            Markup(
                '<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}" stroke="#d5d9de" stroke-width="0.7"/>'
            ).format(left, y, width, y)
        )
        lines.append(_text(left - 5, y + 3, _short(int(most * part)), "end"))
    return Markup("").join(lines)


def _box(x: float, y: float, width: float, height: float, colour: str) -> Markup:
    text = Markup('<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}"/>')
    return text.format(x, y, width, height, colour)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _svg(width: int, height: int, title: str, description: str, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        width, height, f"{title}. {description}".strip()
    )
    return Markup("").join((head, Markup("<title>{}</title>").format(title), *parts, Markup("</svg>")))


def _round_up(value: int) -> int:
    """The next round number, for the axis."""
    power = int("1" + "0" * (len(str(value)) - 1))
    return next(factor * power for factor in (1, 2, 3, 4, 5, 6, 8, 10) if factor * power >= value)


def _short(value: int) -> str:
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + f" {name}"
    return str(value)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
