"""Builds the jobs that one worker does for the whole installation. (The reconciler builds its own.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from adapters.model import Engine
from adapters.store.leader_job import LeaderJob
from adapters.store.protocol import Store
from gateway.composition import cost_alerts
from gateway.composition.background import run_in_background
from gateway.composition.context import WorkerContext
from gateway.composition.cost_alerts import AlertDelivery
from gateway.composition.metering import Metering
from gateway.composition.registry import Registry
from gateway.config import Settings
from gateway.costs.adapter_costs import residency_log
from gateway.costs.adapter_costs.residency_log import ResidencyLog
from gateway.costs.maintenance import export_job, maintenance_job
from gateway.costs.maintenance.export_job import ScheduledExports
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.maintenance.maintenance_job import Maintenance
from gateway.costs.scheduled_exports.layout import Schedule
from gateway.costs.scheduled_exports.writing import Room
from gateway.fleet.adapters.operations import canary_watch
from gateway.fleet.adapters.operations.canary_watch import CanaryWatch
from gateway.fleet.engines.operations import trial_watch
from gateway.fleet.engines.operations.trial_watch import TrialWatch
from gateway.metering.ledger import audit_shipper
from gateway.metering.ledger.audit_shipper import AuditShipper
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.conditions import Condition
from gateway.tenants.limits import budget_watch
from gateway.tenants.limits.budget_watch import BudgetWatch
from gateway.units import HOUR


@dataclass(slots=True)
class LeaderJobs:
    """The leader jobs of one worker. Mutable: grows while the worker is built."""

    context: WorkerContext
    store: Store
    jobs: list[LeaderJob] = field(default_factory=list)

    @property
    def make(self) -> Callable[..., LeaderJob]:
        """`LeaderJob` of this worker: takes the role and what follows."""
        return partial(
            LeaderJob,
            self.store,
            self.context.name,
            expected=(LedgerUnavailableError,),
            count=self.context.metrics.leader_pass,
        )

    def run(self, *jobs: LeaderJob) -> None:
        """In the background, until the worker ends."""
        self.jobs += jobs
        run_in_background(self.context.stack, *(job.run for job in jobs))

    def conditions(self) -> Iterator[Condition]:
        """Jobs whose last pass failed. Only the worker that leads knows."""
        for job in self.jobs:
            if job.failure:
                yield Condition("job_failing", job.role, f"{job.title} fails: {job.failure}")


def run_ledger_jobs(
    jobs: LeaderJobs, registry: Registry, metering: Metering, budgets: BudgetWatch, alerts: AlertDelivery
) -> None:
    """Those that read or write the ledger."""
    settings, now, ledger = jobs.context.settings, jobs.context.clock.now, metering.ledger
    maintenance = Maintenance(
        metering.ledger_process.aside(),
        settings.retention_days,
        interval := settings.ledger_maintenance_interval,
        now,
    )
    shipper = AuditShipper(registry.store, ledger)
    residency = ResidencyLog(ledger, now, partial(_held, registry))
    jobs.run(
        jobs.make(
            *(maintenance_job.ROLE, "Ledger maintenance", maintenance.work, interval),
            first=min(maintenance_job.FIRST_SECONDS, interval),
            rest=maintenance_job.REST,
            report=maintenance.report,
        ),
        jobs.make(
            audit_shipper.ROLE, "Moving the audit log to the ledger", shipper.work, audit_shipper.SECONDS
        ),
        jobs.make(
            *(residency_log.ROLE, "Recording which adapters hold slots", residency.work),
            residency_log.SAMPLE_SECONDS,
            first=residency_log.SAMPLE_SECONDS,
        ),
        jobs.make(
            *(
                budget_watch.ROLE,
                "Comparing budgets with the ledger",
                budgets.look,
                budget_watch.LOOK_SECONDS,
            ),
            lost=budgets.lost,
        ),
        jobs.make(
            *(cost_alerts.ROLE, "The webhook of cost alerts", alerts.deliver, cost_alerts.LOOK_SECONDS),
            first=cost_alerts.LOOK_SECONDS,
            longest=cost_alerts.LONGEST_PAUSE,
            ready=alerts.ready,
        ),
    )
    if settings.export_to:
        exports = scheduled_exports(settings, ledger, now)
        jobs.run(
            jobs.make(
                *(export_job.ROLE, "The scheduled export", exports.work, export_job.PAUSE_SECONDS),
                longest=export_job.LONGEST_PAUSE,
                report=exports.report,
            )
        )


def run_watches(jobs: LeaderJobs, canaries: CanaryWatch, trials: TrialWatch) -> None:
    jobs.run(
        jobs.make(
            *(canary_watch.ROLE, "The guard of canaries", canaries.work, canary_watch.LOOK_SECONDS),
            lease_ms=canary_watch.LEASE_MS,
            ready=canaries.ready,
            lost=canaries.lost,
        ),
        jobs.make(
            *(trial_watch.ROLE, "The guard of engines on trial", trials.work, canary_watch.LOOK_SECONDS),
            lease_ms=canary_watch.LEASE_MS,
            ready=trials.ready,
        ),
    )


def scheduled_exports(settings: Settings, ledger: Ledger, now: Callable[[], int]) -> ScheduledExports:
    schedule = Schedule(
        to=settings.export_to,
        every=int(settings.export_every * HOUR),
        dataset=settings.export_dataset,
        format=settings.export_format,
        granularity=settings.export_granularity,
        file=settings.export_file,
        issuer=settings.issuer,
    )
    open_process = partial(LedgerProcess, settings.ledger)
    return ScheduledExports(
        ledger, open_process, schedule, Room(settings.exports, settings.export_max_bytes), now
    )


def _held(registry: Registry) -> Iterator[tuple[Engine, list[str]]]:
    """Each engine, with the full names of the versions that hold its slots. What is merged into an engine's
    weights holds none."""
    catalog, residency = registry.catalog, registry.residency
    for engine in [engine for engine in catalog.engines.values() if not engine.serves]:
        ids = (catalog.by_engine_name.ids.get(name) for name in residency.slots(engine.name))
        yield engine, [version for version in ids if version is not None]
