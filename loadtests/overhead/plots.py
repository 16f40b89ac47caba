"""Simple plots as SVG, on logarithmic axes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from loadtests.overhead.loads import LOADS
from loadtests.overhead.report import FLORIN, MEASURES, Figure, Rounds, figures

WIDTH, LABEL, MARGIN, ROW, TITLE = 640, 150, 80, 20, 40
HEIGHT = 220
COLORS = ("#0b6e4f", "#c1440e", "#3d5a80", "#8d6a9f")
PLOTTED = (
    *(("plain", measure) for measure in ("cpu_us", "rate", "p99_ms")),
    *(("streams", measure) for measure in ("cpu_us", "delay_p99_ms")),
    *(("half", measure) for measure in ("delay_p99_ms", "first_p50_ms", "first_p99_ms")),
    ("crowd", "stream_kb"),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `least` to `most` to pixels from `start` to `end`."""

    least: float
    most: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
        steps = (1, 2, 5) if self.most / self.least < 100 else (1,)
        every = [step * 10.0**decade for decade in decades for step in steps]
        return [tick for tick in every if self.least <= tick <= self.most]


def dots(results: Mapping[str, Rounds]) -> str:
    """One panel per measure, one row per contestant: the median as a dot, a line from least to most."""
    shown: dict[str, tuple[Mapping[str, Figure], int]] = {}
    for load, name in PLOTTED:
        rounds = results.get(load, {})
        measure = next(m for m in MEASURES if m.name == name)
        rows = {who: figures(load, who, rounds).get(name) for who in rounds}
        heading = f"{LOADS[load].title}: {measure.heading.format(unit=LOADS[load].unit)}"
        shown[heading] = {who: f for who, f in rows.items() if f and f.least > 0}, measure.digits
    return panels(shown, mine=FLORIN)


def panels(shown: Mapping[str, tuple[Mapping[str, Figure], int]], *, mine: str) -> str:
    """Under each heading one row per contestant, with so many digits; `mine` is highlighted."""
    parts: list[str] = []
    top = 0.0
    for heading, (rows, digits) in shown.items():
        if rows:
            parts += _dots_panel(heading, rows, digits, mine, top)
            top += TITLE + ROW * (len(rows) + 1)
    return _svg(parts, top)


def curves(
    heading: str, across: str, series: Mapping[str, Sequence[tuple[float, float]]], top: float = 0
) -> str:
    """One panel with a line for each series of (x, y)."""
    points = [point for each in series.values() for point in each]
    x = _axis([x for x, _ in points], MARGIN, WIDTH - LABEL)
    y = _axis([y for _, y in points], top + HEIGHT - TITLE, top + TITLE)
    parts = [
        _text(10, top + 20, heading, bold=True),
        _text(WIDTH / 2, top + HEIGHT - 6, across, anchor="middle"),
    ]
    for tick in x.ticks():
        parts += [
            _line(x.at(tick), y.start, x.at(tick), y.end),
            _text(x.at(tick), y.start + 16, f"{tick:,g}", anchor="middle"),
        ]
    for tick in y.ticks():
        parts += [
            _line(x.start, y.at(tick), x.end, y.at(tick)),
            _text(70, y.at(tick) + 4, f"{tick:,g}", anchor="end"),
        ]
    for number, ((name, each), color) in enumerate(zip(series.items(), COLORS, strict=False)):
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in each)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="3" fill="{color}"/>' for a, b in each]
        parts.append(_text(x.end + 16, y.end + 8 + 18 * number, name, bold=True, color=color))
    return "".join(parts)


def page(panels: Sequence[str]) -> str:
    """Panels of `curves`, made with `top` in steps of HEIGHT."""
    return _svg(list(panels), HEIGHT * len(panels))


def _dots_panel(heading: str, rows: Mapping[str, Figure], digits: int, mine: str, top: float) -> list[str]:
    axis = _axis([v for f in rows.values() for v in (f.least, f.most)], LABEL, WIDTH - MARGIN)
    bottom = top + TITLE + ROW * len(rows)
    parts = [_text(10, top + 20, heading, bold=True)]
    for tick in axis.ticks():
        parts += [
            _line(axis.at(tick), top + TITLE - 10, axis.at(tick), bottom - 5),
            _text(axis.at(tick), bottom + 8, f"{tick:,g}", color="#777", anchor="middle"),
        ]
    for number, (who, figure) in enumerate(rows.items()):
        y, color = top + TITLE + ROW * number, COLORS[0] if who == mine else COLORS[2]
        parts += [
            _text(10, y + 4, who, bold=who == mine),
            _line(axis.at(figure.least), y, axis.at(figure.most), y, color, 3),
            f'<circle cx="{axis.at(figure.median):.1f}" cy="{y}" r="5" fill="{color}"/>',
            _text(WIDTH - MARGIN + 14, y + 4, f"{figure.median:,.{digits}f}"),
        ]
    return parts


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    """From below the least value to above the most, at least a factor of four apart."""
    positive = [value for value in values if value > 0] or [1.0]
    least, most = min(positive) / 1.3, max(positive) * 1.3
    widen = max(1.0, math.sqrt(4 * least / most))
    return Axis(least / widen, most * widen, start, end)


def _svg(parts: Sequence[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 10:.0f}" '
        f'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _text(
    x: float, y: float, text: str, *, bold: bool = False, color: str = "#222", anchor: str = "start"
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str = "#ddd", width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{color}" stroke-width="{width}" stroke-linecap="round"/>'
    )
