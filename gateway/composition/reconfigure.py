"""Applies reloaded settings to the components of a running worker."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.reconcile.reconciler import Reconciler
from gateway.admission.complexity import Complexity
from gateway.admission.in_flight import InFlightLimits, Limit
from gateway.composition.cost_alerts import AlertDelivery
from gateway.composition.engines import Engines, queue_limits
from gateway.composition.event_streams import EventStreams
from gateway.composition.limits import LimitParts
from gateway.config import Settings
from gateway.observability.logs import log_to_stderr
from gateway.operations.state import State
from gateway.routing.lost_requests import Patience
from gateway.routing.outlier_ejection import Rules


@dataclass(frozen=True, slots=True)
class ReloadTargets:
    """The components that depend on reloadable settings."""

    state: State
    engines: Engines
    reconciler: Reconciler
    limits: LimitParts
    cost_alerts: AlertDelivery
    event_streams: EventStreams

    def reconfigure(self, settings: Settings) -> None:
        state, engines, probing = self.state, self.engines, settings.probe_timeout
        state.settings = settings
        state.lifecycle.reconfigure(settings, complexity=complexity(settings))
        state.lifecycle.in_flight.reconfigure(**limits(settings))
        state.lifecycle.limiter.reconfigure(settings)
        failed_keys = state.directory.failed_keys
        failed_keys.limit, failed_keys.window = settings.failed_keys_per_address, settings.failed_keys_window
        if state.bootstrap_key is not None:
            state.bootstrap_key.read_again()
        if state.people is not None:
            state.people.reconfigure(settings)
        self.event_streams.reconfigure(settings)
        self.limits.settings = self.cost_alerts.settings = settings
        engines.upstream.reconfigure(connect_timeout=settings.connect_timeout)
        engines.leases.turns.limits = queue_limits(settings)
        engines.retries.timeout = engines.prewarmer.timeout = settings.placement_timeout
        engines.retries.ttft_deadline = settings.ttft_deadline
        engines.retries.budget.reconfigure(settings.retry_budget)
        engines.engine_client.reconfigure(timeout=settings.load_timeout)
        engines.fleets.slow_start = settings.slow_start
        engines.hangs.reconfigure(
            rules=Rules(settings.hang_timeout, settings.ejection_time),
            patience=Patience(settings.first_byte_timeout, settings.engine_idle_timeout),
        )
        engines.prober.reconfigure(interval=settings.probe_interval, timeout=probing)
        log_to_stderr(settings.log_format, settings.log_level)
        self.reconciler.interval = settings.probe_interval
        self.reconciler.probe_timeout = self.reconciler.collector.probe_timeout = probing
        self.reconciler.reload_interval = self.reconciler.evacuation.pause = settings.reload_interval
        self.reconciler.rebalancer.interval = settings.placement_interval
        state.engine_demand.slo_ttft = settings.slo_ttft
        state.engine_demand.to_zero = settings.engine_start_timeout > 0
        self.reconciler.stopped.hours = settings.stopped_engine_hours
        self.reconciler.collector.grace = settings.artifact_grace * 3600


def in_flight_limits(settings: Settings) -> InFlightLimits:
    return InFlightLimits(**limits(settings))


def limits(settings: Settings) -> dict[str, Limit]:
    """The limits of requests in flight. One body of the maximum size always fits."""
    least = settings.max_body_bytes
    return {
        "key": Limit(settings.max_key_requests, max(settings.max_key_bytes, least)),
        "tenant": Limit(settings.max_tenant_requests, max(settings.max_tenant_bytes, least)),
        "worker": Limit(settings.max_worker_requests, max(settings.max_worker_bytes, least)),
    }


def complexity(settings: Settings) -> Complexity:
    """The limits of request bodies. orjson itself limits the depth."""
    containers = settings.max_body_containers
    return Complexity(settings.max_body_values, containers, depth=containers)
