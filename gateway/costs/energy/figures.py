"""Stated power of GPUs and emissions of grids, and the energy that follows. Pure, in exact integers.

GPU time is in nano-GPU-hours and power in milliwatts, so energy is in 10**-15 kWh; with power usage
effectiveness (thousandths of the GPUs' energy that the data centre draws) in 10**-18 kWh; and with the grid's
emissions (milligrams of CO2e per kWh) in 10**-24 kg.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gateway.costs.field_error import FieldError
from gateway.costs.periods import iso
from gateway.units import DAY, NanoHours, decimal_text, gpu_hours_text, typed_units

KWH_PLACES = 18
KG_PLACES = 24
WORKING = ("usage", "retry_waste", "headroom")
"""Buckets in which a GPU draws its working power; in the others its idle power."""


class EnergyError(FieldError):
    """An invalid figure. `param` names the field."""


@dataclass(frozen=True, slots=True)
class Power:
    id: int
    gpu_type: str
    valid_from: int
    """Start of a UTC day."""
    milliwatts: int
    """Per GPU, while it works."""
    idle_milliwatts: int
    source: str
    recorded_at: int

    @property
    def subject(self) -> str:
        return self.gpu_type

    def document(self) -> dict[str, Any]:
        return {
            "gpu_type": self.gpu_type,
            "watts": decimal_text(self.milliwatts, 3),
            "idle_watts": decimal_text(self.idle_milliwatts, 3),
            "valid_from": iso(self.valid_from),
            "source": self.source,
            "recorded_at": iso(self.recorded_at),
        }


@dataclass(frozen=True, slots=True)
class Grid:
    id: int
    region: str
    """Empty: every region without its own."""
    valid_from: int
    milligrams_per_kwh: int
    """The CO2e of a kilowatt-hour."""
    pue_millis: int
    """Power usage effectiveness: what the data centre draws for each unit that its computers use."""
    source: str
    recorded_at: int

    @property
    def subject(self) -> str:
        return self.region

    def document(self) -> dict[str, Any]:
        return {
            "region": self.region or None,
            "grams_per_kwh": decimal_text(self.milligrams_per_kwh, 3),
            "pue": decimal_text(self.pue_millis, 3),
            "valid_from": iso(self.valid_from),
            "source": self.source,
            "recorded_at": iso(self.recorded_at),
        }


class _Dated(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def valid_from(self) -> int: ...


F = TypeVar("F", bound=_Dated)


class Timeline(Generic[F]):
    """Figures by subject, over time; of those with the same start, the one that was stated last."""

    def __init__(self, figures: Iterable[F]) -> None:
        by_start: defaultdict[str, dict[int, F]] = defaultdict(dict)
        for figure in sorted(figures, key=lambda f: f.id):
            by_start[figure.subject][figure.valid_from] = figure
        self._series: dict[str, Sequence[F]] = {
            subject: [starts[start] for start in sorted(starts)] for subject, starts in by_start.items()
        }

    def at(self, subject: str, day: int) -> F | None:
        series = self._series.get(subject, ())
        index = bisect_right(series, day, key=_start) - 1
        return series[index] if index >= 0 else None


_start: Callable[[_Dated], int] = lambda figure: figure.valid_from  # noqa: E731  # typed


@dataclass(slots=True)
class Energy:
    """Mutable: a sum of energy and emissions."""

    nano_gpu_hours: NanoHours = NanoHours(0)  # noqa: RUF009  # an integer
    kwh: int = 0
    """10**-18 kWh, power usage effectiveness included."""
    kg: int = 0
    """10**-24 kg of CO2e."""
    powerless: bool = False
    """Some GPU time has no stated power, and is missing from `kwh`."""
    gridless: bool = False
    """Some energy has no stated emissions, and is missing from `kg`."""

    def add(self, nano: int, power: Power | None, grid: Grid | None, *, working: bool) -> None:
        self.nano_gpu_hours = NanoHours(self.nano_gpu_hours + nano)
        if power is None:
            self.powerless |= nano != 0
            return
        milliwatts = power.milliwatts if working else power.idle_milliwatts
        kwh = nano * milliwatts * (1000 if grid is None else grid.pue_millis)
        self.kwh += kwh
        if grid is None:
            self.gridless |= kwh != 0
        else:
            self.kg += kwh * grid.milligrams_per_kwh

    def document(self) -> dict[str, Any]:
        """Exact decimals; `kwh` and `kg_co2e` are null if a figure is missing."""
        return {
            "gpu_hours": gpu_hours_text(self.nano_gpu_hours),
            "kwh": None if self.powerless else decimal_text(self.kwh, KWH_PLACES),
            "kg_co2e": None if self.powerless or self.gridless else decimal_text(self.kg, KG_PLACES),
        }


def thousandths(param: str, text: str, *, least: int = 0) -> int:
    """A decimal with at most three places, from `least` to a million. Raises EnergyError."""
    number = typed_units(text, 3, 10**6)
    if number is None or number < least * 1000:
        raise EnergyError(
            param, f"{param}: {text[:40]!r} is not a decimal of at most three places, {least} to 1000000."
        )
    return number


def day_of(param: str, time: int) -> int:
    """Raises EnergyError unless `time` is the start of a UTC day."""
    if time % DAY:
        raise EnergyError(param, f"{param}: {iso(time)} is not the start of a UTC day.")
    return time
