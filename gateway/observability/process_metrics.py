"""Aggregates the metrics of several workers: prometheus_client's values in shared memory, and their sum.

prometheus_client's own multiprocess mode (`PROMETHEUS_MULTIPROC_DIR`) maps sparse files into memory: on a
full disk, the first write to a new page kills the worker (SIGBUS). It also cannot remove a label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Metric

from gateway.observability.gateway_name import GatewayName
from gateway.observability.shared_values import Name, SharedValues, Value, Writer

_JOIN: Final[dict[str, Callable[[list[float]], float]]] = {"livesum": sum, "livemin": min, "livemax": max}


class ProcessValues:
    """The shared values of all workers, this worker's slot in them, and the name of their gateway."""

    def __init__(self, values: SharedValues, slot: int, gateway: GatewayName | None = None) -> None:
        self.values = values
        self.gateway = gateway or GatewayName.of_this_process()
        self._mine: Writer = values.writer(slot)

    def value_class(self, *what: Any, multiprocess_mode: str = "", **_: Any) -> Value:
        """Called by prometheus_client for each sample: see its `values.ValueClass`."""
        kind, family, sample, label_names, label_values, _help = what
        labels = tuple(zip(label_names, label_values, strict=True))
        name = Name(kind, family, sample, labels, multiprocess_mode)
        return self._mine.value(name)

    def forget_engine(self, engine: str) -> None:
        """Remove this worker's gauges of the engine."""
        label = ("engine", engine)
        self._mine.forget(lambda name: name.kind == "gauge" and label in name.labels)


class CombinedRegistry(CollectorRegistry):
    """The metrics of all workers, aggregated when collected. Counters of dead workers are included."""

    def __init__(self, values: SharedValues, helps: Mapping[str, str]) -> None:
        super().__init__()
        self._values = values
        self._helps = helps

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        by_name: dict[Name, list[float]] = defaultdict(list)
        for name, value in self._values.read():
            by_name[name].append(value)
        for name, values in sorted(by_name.items(), key=lambda item: _order(item[0])):
            family = families.get(name.family)
            if family is None:
                help_text = self._helps.get(name.family, self._helps.get(f"{name.family}_total", ""))
                family = families[name.family] = Metric(name.family, help_text, name.kind)
            family.add_sample(name.sample, dict(name.labels), _JOIN.get(name.mode, sum)(values))
        for family in families.values():
            if family.type == "histogram":
                _accumulate(family)
            yield family


def _order(name: Name) -> tuple[Any, ...]:
    """The order of prometheus_client: buckets by bound, not by name."""
    others = tuple(pair for pair in name.labels if pair[0] != "le")
    bound = float(dict(name.labels).get("le", "inf"))
    return name.family, others, name.sample, bound


def _accumulate(family: Metric) -> None:
    """Make buckets cumulative, as the format requires, and add the count."""
    samples, family.samples = family.samples, []
    below = 0.0
    for sample in samples:
        if not sample.name.endswith("_bucket"):
            family.samples.append(sample)
            continue
        below += sample.value
        family.add_sample(sample.name, sample.labels, below)
        if sample.labels["le"] == "+Inf":
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            family.add_sample(f"{family.name}_count", labels, below)
            below = 0.0
