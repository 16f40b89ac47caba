"""Metrics computed from the registry, the engines and the ledger, instead of being counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from platform import python_version
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from gateway.observability import build_info
from gateway.observability.metric_names import AT_SCRAPE, LEDGER_METRICS, METRICS

LABEL_CAP: Final = 1000
"""Distinct names of tenants or adapters that become labels."""

Series = Sequence[tuple[Sequence[str], float]]
"""Label values, and the value."""


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """The result of one pass of ledger maintenance: the series of each metric in LEDGER_METRICS."""

    at: int
    """Unix microseconds, UTC."""
    series: dict[str, Series]

    @classmethod
    def of(cls, document: Any) -> Self:
        return cls(**document)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def never_back(self, before: Self) -> Self:
        """Return a copy whose counters are at least as high as in `before`. Sums can decrease: an hour counts
        as idle until the requests that run in it have ended, and corrections can be negative. Prometheus
        would take a decrease for a counter reset and count the whole sum again."""
        series = dict(self.series)
        for name in LEDGER_METRICS:
            if name.endswith("_total"):
                high = {tuple(labels): value for labels, value in before.series.get(name, ())}
                for labels, value in series.get(name, ()):
                    high[tuple(labels)] = max(value, high.get(tuple(labels), value))
                series[name] = sorted(high.items())
        return type(self)(self.at, series)


class ComputedMetrics(CollectorRegistry):
    """The metrics of AT_SCRAPE and LEDGER_METRICS, which are not sums over workers: every worker exports the
    same."""

    def __init__(
        self, known: Mapping[str, Iterable[tuple[Sequence[str], float]]], figures: LedgerFigures | None
    ) -> None:
        """`known`: series of AT_SCRAPE, of which LABEL_CAP are exported per metric."""
        super().__init__()
        build = (build_info.version(), build_info.commit(), python_version())
        self._known = {"florin_build_info": [(build, 1.0)], **known}
        self._series = figures.series if figures else {}

    def collect(self) -> Iterator[Metric]:
        for name, labels in AT_SCRAPE.items():
            yield _family(name, labels, islice(self._known.get(name, ()), LABEL_CAP))
        for name, labels in LEDGER_METRICS.items():
            yield _family(name, labels, self._series.get(name, ()))


def _family(name: str, labels: Sequence[str], series: Iterable[tuple[Sequence[str], float]]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, METRICS[name], labels=labels)
    for values, value in series:
        family.add_metric(values, value)
    return family
