"""Prometheus metrics: for dashboards, never for bills.

`Metrics` is built once per worker by `create_app`. Label children are resolved once and cached, names are
capped, and most updates come from the metering's flusher thread, off the event loop.

With several workers their values lie where each can read them (`metrics_crew`), and any worker renders the
sum over all.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from platform import python_version
from types import MappingProxyType
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client import values as prometheus_values
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from gateway.observability.conditions import CONDITIONS
from gateway.observability.process_metrics import CombinedRegistry, ProcessValues

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN: Final = "__unknown__"
"""Label of a name that the registry does not know."""
OTHER: Final = "__other__"
"""Label of all names past the cap."""
BASE: Final = "__base__"
"""`adapter` label of requests to the base model itself."""
LABEL_CAP: Final = 1000
HISTOGRAM_CAP: Final = 250
"""Engines, and adapters, with histograms of their own: each has 9 to 18 series."""
ALARMING: Final = ("lost", "unrecorded", "damaged", "quarantined")
"""Results of usage records that are shown before there is any, so that the first is seen as a rise."""
UNAUTHENTICATED: Final = ("missing_api_key", "invalid_api_key", "revoked_api_key", "expired_api_key")
"""Errors that are shown before there is any, likewise."""

Series = Sequence[tuple[Sequence[str], float]]
"""Label values, and the value."""

METRICS: Final[dict[str, str]] = {
    "florin_requests_total": "Attempts and rejected requests, by adapter and outcome.",
    "florin_tokens_total": "Tokens by adapter and GPU type; `input` excludes those that came from the cache.",
    "florin_tenant_tokens_total": "Tokens by tenant; `input` excludes those that came from the cache.",
    "florin_time_to_first_token_seconds": "From dispatch to an engine until its first token, by engine.",
    "florin_request_duration_seconds": "From dispatch to an engine until the end of the attempt, by engine.",
    "florin_adapter_time_to_first_token_seconds": "From dispatch to an engine until its first token, by "
    "adapter.",
    "florin_adapter_request_duration_seconds": "From dispatch to an engine until the end of the attempt, by "
    "adapter.",
    "florin_adapter_holders": "Engines that hold the adapter's live version now.",
    "florin_engine_slots": "Versions that the engine can hold for requests at one time.",
    "florin_engine_slots_used": "Versions that are assigned to the engine's slots now.",
    "florin_engine_running": "Requests that the engine says it is working on, of all gateways.",
    "florin_engine_waiting": "Requests that the engine says wait in its own queue, of all gateways.",
    "florin_requests_waiting": "Requests that are on no engine now: being read, waiting for a place, or "
    "between two attempts.",
    "florin_client_aborts_total": "Requests whose client left before the end, by how far they had come: "
    "`body` (it was being sent), `waiting` (for an engine), `answer` (on an engine, nothing answered yet), "
    "`stream`.",
    "florin_redis_call_seconds": "Round trips to Redis, by operation; failed ones count, too.",
    "florin_ledger_transaction_seconds": "Transactions of the ledger's database, by operation: `read` or "
    "`write`.",
    "florin_build_info": "1, with the version of Florin and of Python.",
    "florin_adapter_info": "1 for each registered adapter with a live version, called or not.",
    "florin_serving_status_info": "1 for each version that is quarantined or failed, and each engine that is "
    "suspect: `about` names it.",
    "florin_adapter_loads_total": "Adapter loads on engines, by result.",
    "florin_adapter_load_seconds": "Time that engines took to load an adapter.",
    "florin_verifications_total": "Versions probed after a load, by result: `first`, `sound`, `no_base`, "
    "`skipped`, `quarantined`, `engine_suspect`, `failed`.",
    "florin_verification_seconds": "Time that the probes of one verification took.",
    "florin_evictions_total": "Versions evicted from an engine's slots to make room.",
    "florin_engine_up": "1 while the engine answers probes, else 0.",
    "florin_engine_hung": "1 while a worker finds that the engine hangs, though it answers probes: nothing "
    "is sent there (highest of workers).",
    "florin_engine_ejections_total": "How often engines were ejected because they hung.",
    "florin_engine_samples_refused_total": "Looks at an engine's metrics that were refused, because they say "
    "what cannot be.",
    "florin_in_flight": "Attempts running on the engine now.",
    "florin_usage_records_total": "Usage records by what became of them: `logged`, `lost`, `shipped`, "
    "`duplicate`, `quarantined`, `orphaned`, `damaged`, `unrecorded`.",
    "florin_wal_oldest_seconds": "Age of the oldest usage record that the ledger does not hold yet.",
    "florin_wal_write_seconds": "Time that one write of the usage log to the disk took (its sync).",
    "florin_disk_free_bytes": "Room on the file system of a directory: `state`, `artifacts` or `exports`.",
    "florin_disk_size_bytes": "Size of that file system.",
    "florin_condition": "1 while a worker finds that something is wrong with it, by condition: /readyz and "
    "`florin doctor` say the same (highest of workers).",
    "florin_feed_connected": "1 while this worker follows the registry's change feed (lowest of workers).",
    "florin_clock_offset_seconds": "By how much another clock (`system`, `redis` or `ledger`) differs from "
    "the one by which Florin books, either way (highest of workers); 0 while it cannot be asked.",
    "florin_tls_certificate_expiry_timestamp_seconds": "When a certificate in use expires, Unix time: "
    "`server` or `engine client` (earliest of workers).",
    "florin_tls_certificate_renewal_failing": "1 while the files of a certificate hold something that cannot "
    "be used, so that the old one stays.",
    "florin_failovers_total": "Attempts given up and taken elsewhere, by reason.",
    "florin_stream_resumes_total": "Streams whose engine failed in the middle, by result: `resumed` (another "
    "engine went on), `completed` (only the end was missing), and with an error event: `not_resumable`, "
    "`refused` (another engine read it otherwise), `failed` (no engine went on).",
    "florin_engine_faults_total": "Answers of engines in which something cannot be, by kind: `malformed` "
    "(given up, and taken elsewhere where possible), `usage` (delivered; the token counts are not exact).",
    "florin_engine_deaths_total": "Deaths of engines, by tenant and adapter with requests there: once for "
    "each of them.",
    "florin_unknown_fields_total": "Fields of requests that were left out because Florin does not know them.",
    "florin_worker_restarts_total": "Workers that ended by themselves and were replaced.",
    "florin_errors_total": "Error answers to clients, by error code.",
    "florin_gpu_provisioned_seconds_total": "GPU-time for which engines were alive: seconds times GPUs.",
    "florin_gpu_busy_seconds_total": "GPU-time for which something was in flight on an engine.",
    "florin_cost_total": "Cost in the currency, by who caused it; `bucket` is `usage`, `retry_waste`, "
    "`headroom`, `startup` or `idle`, the last three without an adapter.",
    "florin_token_drift_ratio": "What no rule explains of the difference between an engine's own token "
    "counters and its usage records, of the last whole hour, relative to the counters.",
    "florin_ledger_imbalance_nano_gpu_hours": "By how much the parts of engine-hours miss their wholes: "
    "anything but 0 is a defect.",
    "florin_ledger_set_aside": "Engine-hours that cannot be rolled up, and are in no report: "
    "`florin cost set-aside` says why.",
    "florin_bookkeeping_timestamp_seconds": "When the ledger was last rolled up and checked, Unix time; the "
    "seven metrics of GPU-time, cost and the ledger are of that moment.",
}

BOOKS: Final[dict[str, tuple[str, ...]]] = {
    "florin_gpu_provisioned_seconds_total": ("engine", "gpu_type"),
    "florin_gpu_busy_seconds_total": ("engine", "gpu_type"),
    "florin_cost_total": ("adapter", "gpu_type", "currency", "bucket"),
    "florin_token_drift_ratio": ("engine", "token_type"),
    "florin_ledger_imbalance_nano_gpu_hours": (),
    "florin_ledger_set_aside": (),
    "florin_bookkeeping_timestamp_seconds": (),
}
"""What the ledger tells, and its labels."""

AT_SCRAPE: Final[dict[str, tuple[str, ...]]] = {
    "florin_adapter_info": ("adapter", "tenant", "base_model"),
    "florin_serving_status_info": ("about", "code"),
    "florin_adapter_holders": ("adapter",),
    "florin_engine_slots": ("engine",),
    "florin_engine_slots_used": ("engine",),
    "florin_engine_running": ("engine",),
    "florin_engine_waiting": ("engine",),
    "florin_build_info": ("version", "python"),
}
"""What is told at the scrape, from what the worker knows then, and its labels."""

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_DURATION = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# Of an adapter, with as few as show whether it is slow: there may be hundreds of adapters.
_ADAPTER_FIRST_TOKEN = (0.1, 0.25, 0.5, 1, 2.5, 10)
_ADAPTER_DURATION = (0.5, 1, 5, 15, 60, 300)
_ROUND_TRIP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2)
_WRITE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LOAD = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class LabelCap:
    """The first `limit` distinct names keep their own label; all later ones share OTHER. So a flood of
    names cannot grow the series without bound."""

    def __init__(self, limit: int = LABEL_CAP) -> None:
        self._limit = limit
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= self._limit or not name:
            return OTHER
        self._names.add(name)
        return name


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """What the bookkeeper found at one moment: the series of each metric in BOOKS."""

    at: int
    """Unix microseconds, UTC."""
    series: dict[str, Series]

    @classmethod
    def of(cls, document: Any) -> Self:
        return cls(**document)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def never_back(self, before: Self) -> Self:
        """With counters at least as high as they were. Sums can fall a little: an hour looks idle until the
        requests that run in it have ended, and corrections are negative too; but to Prometheus a counter that
        falls has begun anew at 0, and the whole sum would be counted once more."""
        series = dict(self.series)
        for name in BOOKS:
            if name.endswith("_total"):
                high = {tuple(labels): value for labels, value in before.series.get(name, ())}
                for labels, value in series.get(name, ()):
                    high[tuple(labels)] = max(value, high.get(tuple(labels), value))
                series[name] = sorted(high.items())
        return type(self)(self.at, series)


class Metrics:
    """One worker's metrics. Every method is thread-safe and costs about a microsecond."""

    def __init__(self, *, label_cap: int = LABEL_CAP, crew: ProcessValues | None = None) -> None:
        """`crew`: when this is one of several workers. Then there is no other Metrics in this process."""
        self.registry = CollectorRegistry()
        self._crew = crew
        if crew is not None:
            prometheus_values.ValueClass = crew.value_class  # the seam it has for that
        # Mutable state: the names seen so far.
        self._adapters = LabelCap(label_cap)
        self._tenants = LabelCap(label_cap)
        self._engines: set[str] = set()
        """Those that are registered, as far as probes have told."""
        self._flights: dict[str, int] = {}
        """Attempts running, by engine, also on those that have left."""
        self._showing = threading.Lock()
        self._books: LedgerFigures | None = None
        self._requests = self._counter("florin_requests_total", "adapter", "outcome")
        self._tokens = self._counter("florin_tokens_total", "adapter", "gpu_type", "token_type")
        self._tenant_tokens = self._counter("florin_tenant_tokens_total", "tenant", "token_type")
        self._adapter_histograms = LabelCap(min(label_cap, HISTOGRAM_CAP))
        self._engine_histograms = LabelCap(min(label_cap, HISTOGRAM_CAP))
        first_token = self._histogram("florin_time_to_first_token_seconds", _FIRST_TOKEN, "engine")
        duration = self._histogram("florin_request_duration_seconds", _DURATION, "engine")
        adapter_first_token = self._histogram(
            "florin_adapter_time_to_first_token_seconds", _ADAPTER_FIRST_TOKEN, "adapter"
        )
        adapter_duration = self._histogram(
            "florin_adapter_request_duration_seconds", _ADAPTER_DURATION, "adapter"
        )
        self._requests_waiting = self._gauge("florin_requests_waiting", "livesum")
        self._client_aborts = self._counter("florin_client_aborts_total", "stage")
        self._redis_call = self._histogram("florin_redis_call_seconds", _ROUND_TRIP, "operation")
        self._ledger_transaction = self._histogram("florin_ledger_transaction_seconds", _LOAD, "operation")
        self._loads = self._counter("florin_adapter_loads_total", "engine", "result")
        self._load_seconds = self._histogram("florin_adapter_load_seconds", _LOAD)
        self._verifications = self._counter("florin_verifications_total", "result")
        self._verification_seconds = self._histogram("florin_verification_seconds", _LOAD)
        self._evictions = self._counter("florin_evictions_total", "engine")
        self._engine_up = self._gauge("florin_engine_up", "livemin", "engine", "gpu_type")
        self._engine_hung = self._gauge("florin_engine_hung", "livemax", "engine")
        self._ejections = self._counter("florin_engine_ejections_total", "engine")
        self._samples_refused = self._counter("florin_engine_samples_refused_total", "engine")
        self._in_flight = self._gauge("florin_in_flight", "livesum", "engine")
        self._usage_records = self._counter("florin_usage_records_total", "result")
        for result in ALARMING:
            self._usage_records.labels(result)
        self._wal_oldest = self._gauge("florin_wal_oldest_seconds", "livemax")
        self._wal_write = self._histogram("florin_wal_write_seconds", _WRITE)
        self._disk_free = self._gauge("florin_disk_free_bytes", "livemin", "directory")
        self._disk_size = self._gauge("florin_disk_size_bytes", "livemin", "directory")
        self._feed_connected = self._gauge("florin_feed_connected", "livemin")
        self._condition = self._gauge("florin_condition", "livemax", "condition")
        self.conditions(())
        self._clock_offset = self._gauge("florin_clock_offset_seconds", "livemax", "against")
        self._certificate_expiry = self._gauge(
            "florin_tls_certificate_expiry_timestamp_seconds", "livemin", "certificate"
        )
        self._renewal_failing = self._gauge(
            "florin_tls_certificate_renewal_failing", "livemax", "certificate"
        )
        self._failovers = self._counter("florin_failovers_total", "reason")
        self._stream_resumes = self._counter("florin_stream_resumes_total", "result")
        self._engine_faults = self._counter("florin_engine_faults_total", "engine", "kind")
        self._engine_deaths = self._counter("florin_engine_deaths_total", "tenant", "adapter")
        self._unknown_fields = self._counter("florin_unknown_fields_total")
        self._errors = self._counter("florin_errors_total", "code")
        self._counter("florin_worker_restarts_total")  # the parent counts; one worker alone has none
        for code in UNAUTHENTICATED:
            self._errors.labels(code)
        # Label children by label values: `labels()` takes a lock and builds a key each time. Bounded because
        # the values are capped or come from small sets.
        self._request = cache(self._requests.labels)
        self._token = cache(self._tokens.labels)
        self._tenant_token = cache(self._tenant_tokens.labels)
        self._running = cache(self._in_flight.labels)
        self._engine_first_token, self._engine_duration = cache(first_token.labels), cache(duration.labels)
        self._adapter_first_token = cache(adapter_first_token.labels)
        self._adapter_duration = cache(adapter_duration.labels)

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, METRICS[name], labels, registry=self.registry)

    def _gauge(self, name: str, mode: str, *labels: str) -> Gauge:
        return Gauge(name, METRICS[name], labels, registry=self.registry, multiprocess_mode=mode)  # type: ignore[arg-type]  # a Literal there

    def _histogram(self, name: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, METRICS[name], labels, registry=self.registry, buckets=buckets)

    def adapter_label(self, adapter: str | None) -> str:
        """None: a name that the registry does not know; empty: the base model."""
        if adapter is None:
            return UNKNOWN
        return self._adapters(adapter) if adapter else BASE

    def request(self, adapter: str | None, outcome: str) -> None:
        self._request(self.adapter_label(adapter), outcome).inc()

    def tokens(
        self, *, tenant: str, adapter: str, gpu_type: str, prompt: int, cached: int, completion: int
    ) -> None:
        adapter = self.adapter_label(adapter)
        tenant = self._tenants(tenant)
        for kind, count in (("input", prompt - cached), ("cached", cached), ("output", completion)):
            if count > 0:
                self._token(adapter, gpu_type, kind).inc(count)
                self._tenant_token(tenant, kind).inc(count)

    def first_token(self, engine: str, adapter: str, seconds: float) -> None:
        self._engine_first_token(self._engine_histograms(engine)).observe(seconds)
        self._adapter_first_token(self._adapter_histogram(adapter)).observe(seconds)

    def duration(self, engine: str, adapter: str, seconds: float) -> None:
        self._engine_duration(self._engine_histograms(engine)).observe(seconds)
        self._adapter_duration(self._adapter_histogram(adapter)).observe(seconds)

    def _adapter_histogram(self, adapter: str) -> str:
        return self._adapter_histograms(adapter) if adapter else BASE

    def requests_waiting(self, count: int) -> None:
        self._requests_waiting.set(count)

    def client_abort(self, stage: str) -> None:
        self._client_aborts.labels(stage).inc()

    def redis_call(self, operation: str, seconds: float) -> None:
        self._redis_call.labels(operation).observe(seconds)

    def ledger_transaction(self, operation: str, seconds: float) -> None:
        self._ledger_transaction.labels(operation).observe(seconds)

    def adapter_load(self, engine: str, result: str, seconds: float) -> None:
        """`result`: `ok`, `failed`, `timeout` …: a small fixed set."""
        self._loads.labels(engine, result).inc()
        self._load_seconds.observe(seconds)

    def verification(self, result: str, seconds: float) -> None:
        self._verifications.labels(result).inc()
        self._verification_seconds.observe(seconds)

    def eviction(self, engine: str) -> None:
        self._evictions.labels(engine).inc()

    def engine_up(self, engine: str, gpu_type: str, *, up: bool) -> None:
        if engine not in self._engines:
            with self._showing:
                self._engines.add(engine)
                self._running(engine).set(self._flights.get(engine, 0))
        self._engine_up.labels(engine, gpu_type).set(int(up))

    def engine_hung(self, engine: str, *, hung: bool) -> None:
        self._engine_hung.labels(engine).set(int(hung))

    def engine_ejection(self, engine: str) -> None:
        self._ejections.labels(engine).inc()

    def sample_refused(self, engine: str) -> None:
        self._samples_refused.labels(engine).inc()

    def forget_engine(self, engine: str, gpu_type: str) -> None:
        """The engine left the registry: its gauges end. (Counters stay: a dashboard may still ask.)"""
        gone = (
            (self._engine_up, (engine, gpu_type)),
            (self._engine_hung, (engine,)),
            (self._in_flight, (engine,)),
        )
        with self._showing:
            self._engines.discard(engine)
            for gauge, labels in gone:
                with suppress(KeyError):
                    gauge.remove(*labels)
            if self._crew is not None:
                self._crew.forget_engine(engine)
            self._running.cache_clear()

    def in_flight(self, engine: str, change: int) -> None:
        """Shown while the engine is registered: what ends after it left must not bring it back."""
        with self._showing:
            count = self._flights.pop(engine, 0) + change
            if count:
                self._flights[engine] = count
            if engine in self._engines:
                self._running(engine).set(count)

    def usage_records(self, result: str, count: int = 1) -> None:
        if count:
            self._usage_records.labels(result).inc(count)

    def wal_oldest(self, seconds: float) -> None:
        self._wal_oldest.set(seconds)

    def wal_write(self, seconds: float) -> None:
        self._wal_write.observe(seconds)

    def disk(self, directory: str, *, free: int, size: int) -> None:
        self._disk_free.labels(directory).set(free)
        self._disk_size.labels(directory).set(size)

    def feed_connected(self, *, connected: bool) -> None:
        self._feed_connected.set(int(connected))

    def conditions(self, codes: Collection[str]) -> None:
        """Those that this worker finds; every other one shows 0."""
        for code in CONDITIONS:
            self._condition.labels(code).set(int(code in codes))

    def all_conditions(self) -> set[str]:
        """Those that any worker of this gateway found last."""
        samples = (s for m in self._all().collect() if m.name == "florin_condition" for s in m.samples)
        return {sample.labels["condition"] for sample in samples if sample.value}

    def clock_offset(self, against: str, seconds: float) -> None:
        self._clock_offset.labels(against).set(seconds)

    def certificate(self, name: str, *, expiry: float, failing: bool) -> None:
        self._certificate_expiry.labels(name).set(expiry)
        self._renewal_failing.labels(name).set(int(failing))

    def failover(self, reason: str) -> None:
        self._failovers.labels(reason).inc()

    def stream_resume(self, result: str) -> None:
        self._stream_resumes.labels(result).inc()

    def engine_fault(self, engine: str, kind: str) -> None:
        self._engine_faults.labels(engine, kind).inc()

    def engine_death(self, tenant: str, adapter: str) -> None:
        self._engine_deaths.labels(self._tenants(tenant), self.adapter_label(adapter)).inc()

    def unknown_fields(self, count: int) -> None:
        self._unknown_fields.inc(count)

    def error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def show_books(self, figures: LedgerFigures) -> None:
        """From now on, until there are newer ones. Every worker shows the same."""
        self._books = figures

    def render(
        self, known: Mapping[str, Iterable[tuple[Sequence[str], float]]] = MappingProxyType({})
    ) -> bytes:
        """The text exposition: of all workers when there are several. `known`: of AT_SCRAPE, what this worker
        knows now; of each so many series at most."""
        return generate_latest(self._all()) + generate_latest(_AtScrape(known, self._books))

    def _all(self) -> CollectorRegistry:
        return self.registry if self._crew is None else CombinedRegistry(self._crew.values, METRICS)


class _AtScrape(CollectorRegistry):
    """What is the same on every worker, and belongs to none: from registry, engines and ledger."""

    def __init__(
        self, known: Mapping[str, Iterable[tuple[Sequence[str], float]]], books: LedgerFigures | None
    ) -> None:
        super().__init__()
        self._known = {"florin_build_info": [((_version("florin-gateway"), python_version()), 1.0)], **known}
        self._series = books.series if books else {}

    def collect(self) -> Iterator[Metric]:
        for name, labels in AT_SCRAPE.items():
            yield _family(name, labels, islice(self._known.get(name, ()), LABEL_CAP))
        for name, labels in BOOKS.items():
            yield _family(name, labels, self._series.get(name, ()))


_version = cache(version)


def _family(name: str, labels: Sequence[str], series: Iterable[tuple[Sequence[str], float]]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, METRICS[name], labels=labels)
    for values, value in series:
        family.add_metric(values, value)
    return family
