"""The metrics of several workers as one: prometheus_client's values kept where all of them can be read, and
their sum.

prometheus_client's own way for several processes (`PROMETHEUS_MULTIPROC_DIR`) maps sparse files into memory:
on a full disk, the first write to a new page kills the worker (SIGBUS). It also cannot forget a label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Metric

from gateway.observability.shared_values import Name, SharedValues, Value, Writer

_JOIN: Final[dict[str, Callable[[list[float]], float]]] = {"livesum": sum, "livemin": min, "livemax": max}


class ProcessValues:
    """All workers of this gateway, and which of them this is."""

    def __init__(self, values: SharedValues, slot: int) -> None:
        self.values = values
        self._mine: Writer = values.writer(slot)

    def value_class(self, *what: Any, multiprocess_mode: str = "", **_: Any) -> Value:
        """What prometheus_client builds one of for each sample: see its `values.ValueClass`."""
        kind, family, sample, label_names, label_values, _help = what
        labels = tuple(zip(label_names, label_values, strict=True))
        name = Name(kind, family, sample, labels, multiprocess_mode)
        return self._mine.value(name)

    def forget_engine(self, engine: str) -> None:
        """This worker's gauges about it."""
        label = ("engine", engine)
        self._mine.forget(lambda name: name.kind == "gauge" and label in name.labels)


class CombinedRegistry(CollectorRegistry):
    """Every worker's metrics, put together when they are collected. Those that died still count."""

    def __init__(self, values: SharedValues, helps: Mapping[str, str]) -> None:
        super().__init__()
        self._values = values
        self._helps = helps

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        found: dict[Name, list[float]] = defaultdict(list)
        for name, value in self._values.read():
            found[name].append(value)
        for name, values in sorted(found.items(), key=lambda item: _order(item[0])):
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
    """As prometheus_client would: buckets by their bounds, not by their names."""
    others = tuple(pair for pair in name.labels if pair[0] != "le")
    bound = float(dict(name.labels).get("le", "inf"))
    return name.family, others, name.sample, bound


def _accumulate(family: Metric) -> None:
    """Each bucket holds its own; the format wants it with all below. What they come to is the count."""
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
