"""Prometheus metrics that a worker counts. They are for dashboards, never for bills.

`create_app` creates one `Metrics` per worker. Label children are resolved once and cached, names are capped,
and most updates come from the metering's flusher thread, off the event loop. With several workers, their
values are in shared memory (`process_metrics`), and each worker can render the sum over all.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import values as prometheus_values

from gateway.observability.computed_metrics import LABEL_CAP, ComputedMetrics, LedgerFigures
from gateway.observability.conditions import CONDITIONS
from gateway.observability.metric_names import METRICS
from gateway.observability.process_metrics import CombinedRegistry, ProcessValues

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN: Final = "__unknown__"
"""Label of names that the registry does not know."""
OTHER: Final = "__other__"
"""Label of all names beyond the cap."""
BASE: Final = "__base__"
"""`adapter` label of requests to a base model."""
HISTOGRAM_CAP: Final = 250
"""Engines, and adapters, with their own histograms: each has 9 to 18 series."""
ALARMING: Final = ("lost", "unrecorded", "damaged", "quarantined", "recovered")
"""Results of usage records that are exported as 0 from the start, so that the first one shows as an
increase."""
UNAUTHENTICATED: Final = ("missing_api_key", "invalid_api_key", "revoked_api_key", "expired_api_key")
"""Error codes that are exported as 0 from the start, likewise."""

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_DURATION = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# Few buckets, since there may be hundreds of adapters.
_ADAPTER_FIRST_TOKEN = (0.1, 0.25, 0.5, 1, 2.5, 10)
_ADAPTER_DURATION = (0.5, 1, 5, 15, 60, 300)
_ROUND_TRIP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2)
_WRITE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LOAD = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class LabelCap:
    """Bounds the number of series: the first `limit` distinct names get their own label, all others share
    OTHER."""

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


class Metrics:
    """One worker's metrics. Every method is thread-safe and costs about a microsecond."""

    def __init__(self, *, label_cap: int = LABEL_CAP, process_values: ProcessValues | None = None) -> None:
        """`process_values`: for one of several workers; a process can then have only one Metrics."""
        self.registry = CollectorRegistry()
        self._process_values = process_values
        if process_values is not None:
            prometheus_values.ValueClass = process_values.value_class  # prometheus_client's extension point
        # Mutable state: the names seen so far.
        self._adapters = LabelCap(label_cap)
        self._tenants = LabelCap(label_cap)
        self._engines: set[str] = set()
        """Registered engines, as far as they have been probed."""
        self._running_attempts: dict[str, int] = {}
        """Attempts in flight by engine, including engines that were removed."""
        self._engines_lock = threading.Lock()
        self._ledger_figures: LedgerFigures | None = None
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
        self._requests_pending = self._gauge("florin_requests_pending", "livesum")
        self._queue_waiting = self._gauge("florin_queue_waiting", "livesum", "base_model", "priority")
        self._queue_wait = self._histogram("florin_queue_wait_seconds", _FIRST_TOKEN, "priority")
        self._queue_refused = self._counter("florin_queue_refused_total", "reason")
        service = self._counter("florin_tenant_service_total", "tenant")
        self._engine_credit = self._gauge("florin_engine_credit", "livemax", "engine")
        self._credits: dict[str, int] = {}
        """As shown."""
        self._connections = self._gauge("florin_connections", "livesum")
        self._connections_closed = self._counter("florin_connections_closed_total", "reason")
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
        self._mirrored = self._counter("florin_mirrored_versions_total", "engine", "result")
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
        self._placement_moves = self._counter("florin_placement_moves_total", "kind")
        self._stream_resumes = self._counter("florin_stream_resumes_total", "result")
        self._engine_faults = self._counter("florin_engine_faults_total", "engine", "kind")
        self._engine_deaths = self._counter("florin_engine_deaths_total", "tenant", "adapter")
        self._canary_verdicts = self._counter("florin_canary_verdicts_total", "verdict")
        for verdict in ("hold", "rollback", "promote"):
            self._canary_verdicts.labels(verdict)  # so that the first one shows as an increase
        self._engine_trial_verdicts = self._counter("florin_engine_trial_verdicts_total", "verdict")
        for verdict in ("drain", "raise", "accept"):
            self._engine_trial_verdicts.labels(verdict)
        self._unknown_fields = self._counter("florin_unknown_fields_total")
        self._loop_blocked = self._counter("florin_loop_blocked_total", "cause")
        self._errors = self._counter("florin_errors_total", "code")
        self._failed_keys = self._counter("florin_failed_keys_total", "answer")
        self._limit_refusals = self._counter(
            "florin_limit_refusals_total", "tenant", "limit", "level", "shadow"
        )
        self._batch_lines = self._counter("florin_batch_lines_total", "result")
        self._batches_ended = self._counter("florin_batches_ended_total", "status")
        self._budget_used = self._gauge("florin_budget_used_ratio", "livemax", "tenant", "budget")
        self._trace_spans = self._counter("florin_trace_spans_total", "result")
        self._event_posts = self._counter("florin_event_posts_total", "stream", "result")
        self._leader_passes = self._counter("florin_leader_passes_total", "role", "result")
        self._events_sent = self._counter("florin_events_sent_total", "stream")
        self._event_lag = self._gauge("florin_event_lag_seconds", "livemax", "stream")
        self._counter("florin_worker_restarts_total")  # counted by the parent process
        for code in UNAUTHENTICATED:
            self._errors.labels(code)
        # Cached label children, since `labels()` takes a lock and builds a key. Bounded, since label values
        # are capped or come from small sets.
        self._request = cache(self._requests.labels)
        self._token = cache(self._tokens.labels)
        self._service = cache(service.labels)
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
        """`adapter`: None for a name that the registry does not know, empty for the base model."""
        if adapter is None:
            return UNKNOWN
        return self._adapters(adapter) if adapter else BASE

    def request(self, adapter: str | None, outcome: str, count: int = 1) -> None:
        self._request(self.adapter_label(adapter), outcome).inc(count)

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

    def requests_pending(self, count: int) -> None:
        self._requests_pending.set(count)

    def queue_waiting(self, base_model: str, priority: str, count: int) -> None:
        self._queue_waiting.labels(base_model, priority).set(count)

    def queue_wait(self, priority: str, seconds: float) -> None:
        self._queue_wait.labels(priority).observe(seconds)

    def batch_line(self, result: str) -> None:
        self._batch_lines.labels(result).inc()

    def batch_ended(self, status: str) -> None:
        self._batches_ended.labels(status).inc()

    def queue_refused(self, reason: str) -> None:
        """`reason`: see `queue_refusals.Refusal`."""
        self._queue_refused.labels(reason).inc()

    def served(self, tenant: str, tokens: float) -> None:
        self._service(self._tenants(tenant)).inc(tokens)

    def engine_credit(self, engine: str, credit: int) -> None:
        if self._credits.get(engine) != credit:  # told each second, and seldom another
            self._credits[engine] = credit
            self._engine_credit.labels(engine).set(credit)

    def connections(self, count: int) -> None:
        self._connections.set(count)

    def connection_closed(self, reason: str) -> None:
        """`reason`: one of `connection_limits.CLOSE_REASONS`."""
        self._connections_closed.labels(reason).inc()

    def client_abort(self, stage: str) -> None:
        self._client_aborts.labels(stage).inc()

    def redis_call(self, operation: str, seconds: float) -> None:
        self._redis_call.labels(operation).observe(seconds)

    def ledger_transaction(self, operation: str, seconds: float) -> None:
        self._ledger_transaction.labels(operation).observe(seconds)

    def adapter_load(self, engine: str, result: str, seconds: float) -> None:
        """`result`: one of a small fixed set: `ok`, `failed`, `timeout`, …"""
        self._loads.labels(engine, result).inc()
        self._load_seconds.observe(seconds)

    def verification(self, result: str, seconds: float) -> None:
        self._verifications.labels(result).inc()
        self._verification_seconds.observe(seconds)

    def eviction(self, engine: str) -> None:
        self._evictions.labels(engine).inc()

    def engine_up(self, engine: str, gpu_type: str, *, up: bool) -> None:
        if engine not in self._engines:
            with self._engines_lock:
                self._engines.add(engine)
                self._running(engine).set(self._running_attempts.get(engine, 0))
        self._engine_up.labels(engine, gpu_type).set(int(up))

    def engine_hung(self, engine: str, *, hung: bool) -> None:
        self._engine_hung.labels(engine).set(int(hung))

    def engine_ejection(self, engine: str) -> None:
        self._ejections.labels(engine).inc()

    def mirror_compared(self, engine: str, right: int, wrong: int) -> None:
        self._mirrored.labels(engine, "right").inc(right)
        self._mirrored.labels(engine, "wrong").inc(wrong)

    def sample_refused(self, engine: str) -> None:
        self._samples_refused.labels(engine).inc()

    def forget_engine(self, engine: str, gpu_type: str) -> None:
        """Remove the gauges of an engine that left the registry. Counters stay for dashboards."""
        gone = (
            (self._engine_up, (engine, gpu_type)),
            (self._engine_hung, (engine,)),
            (self._in_flight, (engine,)),
            (self._engine_credit, (engine,)),
        )
        with self._engines_lock:
            self._engines.discard(engine)
            self._credits.pop(engine, None)
            for gauge, labels in gone:
                with suppress(KeyError):
                    gauge.remove(*labels)
            if self._process_values is not None:
                self._process_values.forget_engine(engine)
            self._running.cache_clear()

    def in_flight(self, engine: str, change: int) -> None:
        """Exported only while the engine is registered: an attempt that ends later must not bring it back."""
        with self._engines_lock:
            count = self._running_attempts.pop(engine, 0) + change
            if count:
                self._running_attempts[engine] = count
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
        """Set the conditions of this worker; all others become 0."""
        for code in CONDITIONS:
            self._condition.labels(code).set(int(code in codes))

    def all_conditions(self) -> set[str]:
        """The latest conditions of all workers of this gateway."""
        samples = (s for m in self._all().collect() if m.name == "florin_condition" for s in m.samples)
        return {sample.labels["condition"] for sample in samples if sample.value}

    def clock_offset(self, against: str, seconds: float) -> None:
        self._clock_offset.labels(against).set(seconds)

    def certificate(self, name: str, *, expiry: float, failing: bool) -> None:
        self._certificate_expiry.labels(name).set(expiry)
        self._renewal_failing.labels(name).set(int(failing))

    def placement_move(self, kind: str) -> None:
        self._placement_moves.labels(kind).inc()

    def failover(self, reason: str) -> None:
        self._failovers.labels(reason).inc()

    def stream_resume(self, result: str) -> None:
        self._stream_resumes.labels(result).inc()

    def engine_fault(self, engine: str, kind: str) -> None:
        self._engine_faults.labels(engine, kind).inc()

    def engine_death(self, tenant: str, adapter: str) -> None:
        self._engine_deaths.labels(self._tenants(tenant), self.adapter_label(adapter)).inc()

    def engine_trial_verdict(self, verdict: str) -> None:
        """`verdict`: `drain`, `raise`, `accept`."""
        self._engine_trial_verdicts.labels(verdict).inc()

    def canary_verdict(self, verdict: str) -> None:
        """`verdict`: `hold`, `rollback`, `promote`."""
        self._canary_verdicts.labels(verdict).inc()

    def loop_blocked(self, cause: str) -> None:
        self._loop_blocked.labels(cause).inc()

    def unknown_fields(self, count: int) -> None:
        self._unknown_fields.inc(count)

    def error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def failed_key(self, refused: bool) -> None:  # noqa: FBT001  # a callback
        self._failed_keys.labels("429" if refused else "401").inc()

    def limit_refusal(self, tenant: str, limit: str, level: str, *, shadow: bool) -> None:
        self._limit_refusals.labels(self._tenants(tenant), limit, level, str(shadow).lower()).inc()

    def budget_used(self, tenant: str, budget: str, ratio: float) -> None:
        self._budget_used.labels(self._tenants(tenant), budget).set(ratio)

    def trace_spans(self, result: str, count: int) -> None:
        """`result`: `exported`, `failed`, `dropped`. From any thread."""
        self._trace_spans.labels(result).inc(count)

    def event_post(self, stream: str, result: str, events: int) -> None:
        """`result`: `delivered`, `failed`."""
        self._event_posts.labels(stream, result).inc()
        if result == "delivered":
            self._events_sent.labels(stream).inc(events)

    def leader_pass(self, role: str, result: str) -> None:
        """Count a pass of a job that one worker does for all. `result`: `ok`, `failed`."""
        self._leader_passes.labels(role, result).inc()

    def event_lag(self, stream: str, seconds: float) -> None:
        self._event_lag.labels(stream).set(seconds)

    def show_ledger_figures(self, figures: LedgerFigures) -> None:
        """Export these figures until newer ones arrive. Every worker exports the same."""
        self._ledger_figures = figures

    def render(
        self, known: Mapping[str, Iterable[tuple[Sequence[str], float]]] = MappingProxyType({})
    ) -> bytes:
        """The text exposition, for all workers. `known`: the series of AT_SCRAPE, as this worker knows
        them."""
        return generate_latest(self._all()) + generate_latest(ComputedMetrics(known, self._ledger_figures))

    def _all(self) -> CollectorRegistry:
        return (
            self.registry
            if self._process_values is None
            else CombinedRegistry(self._process_values.values, METRICS)
        )
