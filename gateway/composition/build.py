"""Builds a worker, step by step."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator
from functools import partial

from adapters.errors import StoreUnavailableError
from adapters.reconcile.removers import remover_of
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.registration import Registrar
from adapters.registry.storage import artifact_store
from adapters.security.renewal import watch as watch_files
from adapters.sources.options import FetchOptions
from gateway.admission.owner_queue import OwnerQueue
from gateway.batches.runner import BatchRunner
from gateway.composition.background import export_conditions, export_pending, run_in_background
from gateway.composition.context import WorkerContext
from gateway.composition.cost_alerts import AlertDelivery
from gateway.composition.engines import Engines, build_reconciler, open_engines
from gateway.composition.event_streams import open_event_streams
from gateway.composition.gateways import open_gateways
from gateway.composition.issuers import open_host_tokens, open_people
from gateway.composition.leader_jobs import LeaderJobs, run_ledger_jobs, run_watches
from gateway.composition.limits import build_limits
from gateway.composition.metering import Metering, open_metering
from gateway.composition.reconfigure import ReloadTargets, complexity, in_flight_limits
from gateway.composition.registry import Registry, follow, open_registry
from gateway.composition.tracing import open_tracing
from gateway.composition.worker_conditions import worker_conditions
from gateway.config import Settings
from gateway.costs.maintenance import maintenance_job
from gateway.costs.maintenance.warm_up import warm_up
from gateway.dataplane.keep_alives import KeepAlives
from gateway.delivery import Delivery
from gateway.evaluations.runner import EvaluationRunner
from gateway.fleet.adapters.operations.canary_watch import CanaryWatch
from gateway.fleet.engines.operations.trial_watch import TrialWatch
from gateway.lifecycle import Lifecycle
from gateway.metering import clock_watch
from gateway.observability.logs import worker_name
from gateway.observability.metrics import Metrics
from gateway.observability.process_metrics import ProcessValues
from gateway.operations.state import Intake, State
from gateway.routing.decision_log import DecisionLog
from gateway.routing.engine_answers import EngineFaults
from gateway.routing.engine_demand import EngineDemand
from gateway.runtime.clock import Clock
from gateway.runtime.disk_space import DiskSpace
from gateway.runtime.loop_watchdog import LoopWatchdog
from gateway.runtime.transport_security import TransportSecurity
from gateway.tenants.activity import Activity
from gateway.tenants.authentication import authenticate
from gateway.tenants.sessions import Sessions

UPLOADS = 4
"""Uploads that one worker accepts at a time: each may fill the disk up to the limit."""
TENANT_UPLOADS = 16
TENANT_REGISTRATIONS = 3
"""One fewer than `Registrar` does at a time: one is left to operators."""
_UPLOAD_SECONDS = 20.0
_REGISTRATION_SECONDS = 600.0
"""Longer, because the files are here already."""


@contextlib.asynccontextmanager
async def build(
    settings: Settings,
    security: TransportSecurity,
    process_values: ProcessValues | None = None,
    entrance: socket.socket | None = None,
) -> AsyncIterator[ReloadTargets]:
    """A running worker. On exit, what was opened is closed, last first. `process_values` and `entrance`: from
    its supervisor."""
    worker = f"{worker_name()}-{secrets.token_hex(3)}"
    async with contextlib.AsyncExitStack() as stack:
        metrics = Metrics(process_values=process_values)
        clock = await asyncio.to_thread(Clock, settings.state_dir / "clock.json")
        tracing = await open_tracing(worker, settings, metrics, stack)
        context = WorkerContext(worker, settings, metrics, tracing, clock, stack)
        registry = await open_registry(context)
        metering = await open_metering(context, entrance)
        snapshot_writer, shared = await follow(context, registry)
        gateways = await open_gateways(context, registry.store, metering.ledger, process_values)
        engines = await open_engines(
            context, registry, metering, security.engines, agent_secret=shared["agent"].encode()
        )
        artifacts = artifact_store(settings.artifacts, settings.artifact_bucket)
        await asyncio.to_thread(artifacts.open, shared["installation"])
        decisions = await asyncio.to_thread(DecisionLog, settings.state_dir)
        stack.callback(decisions.close)
        activity = Activity(registry.store, clock.now)
        limit_parts, limiter, budget_watch = build_limits(context, registry, metering.ledger)
        lifecycle = Lifecycle(
            settings=settings,
            directory=registry.directory,
            catalog=registry.catalog,
            follower=registry.follower,
            router=engines.router,
            retries=engines.retries,
            delivery=Delivery(
                router=engines.router,
                retries=engines.retries,
                upstream=engines.upstream,
                meter=metering.meter,
                metrics=metrics,
                faults=EngineFaults(metrics.engine_fault),
                decisions=decisions,
                max_answer_bytes=settings.max_answer_bytes,
                prices=limit_parts.prices,
                authenticate=partial(
                    authenticate, directory=registry.directory, follower=registry.follower, api_key=True
                ),
            ),
            meter=metering.meter,
            metrics=metrics,
            activity=activity,
            in_flight=in_flight_limits(settings),
            limiter=limiter,
            complexity=complexity(settings),
            canaries=engines.canaries,
            keep_alives=KeepAlives(settings.keep_alive_interval),
            cache_secret=shared["cache_salt"].encode(),
            tracing=tracing,
        )
        batches, evaluations = _batch_work(context, lifecycle, metering, engines)
        reconciler = build_reconciler(context, registry, engines, remover_of(artifacts))
        disks = DiskSpace(
            {"state": settings.state_dir, "artifacts": settings.artifacts, "exports": settings.exports},
            metrics,
        )
        conditions = worker_conditions(
            registry,
            snapshot_writer,
            metering.meter,
            process_values,
            *(engines.hangs, engines.upstream.refusals, clock, disks, batches, gateways),
            (watchdog := LoopWatchdog(metrics.loop_blocked)),
        )
        ledger, store = metering.ledger, registry.store
        leader_jobs = LeaderJobs(context, store)
        conditions.add(leader_jobs.conditions)
        cost_alerts = AlertDelivery(ledger, clock, settings)
        run_ledger_jobs(leader_jobs, registry, metering, budget_watch, cost_alerts)
        event_streams = await open_event_streams(leader_jobs, ledger, conditions)
        read_seconds = min(maintenance_job.READ_SECONDS, settings.ledger_maintenance_interval)
        engine_demand = EngineDemand(
            engines.pool,
            engines.leases.unplaced,
            slo_ttft=settings.slo_ttft,
            to_zero=settings.engine_start_timeout > 0,
        )
        people, host_tokens = open_people(context, registry), open_host_tokens(context)
        run_in_background(
            stack,
            *(source.issuer.run for source in (people, host_tokens) if source),
            gateways.run,
            gateways.identify,
            engines.leases.run,
            engines.leases.turns.run,
            limiter.run,
            lifecycle.loop_watch.run,
            lifecycle.keep_alives.run,
            watchdog.run,
            activity.run,
            engines.canaries.run,
            registry.deaths.run,
            registry.hang_reports.run,
            engines.hangs.run,
            engines.prober.run,
            engine_demand.run,
            reconciler.job.run,
            engines.engine_time.run,
            engines.token_costs.run,
            limit_parts.prices.run,
            limit_parts.credit_limits.run,
            engines.probe_log.run,
            batches.run,
            evaluations.run,
            snapshot_writer.run,
            partial(maintenance_job.show, ledger, metrics, seconds=read_seconds),
            partial(export_conditions, conditions, registry.follower, metrics),
            partial(export_pending, lifecycle.in_flight, engines.leases, metrics),
            partial(security.watch, metrics),
            *((partial(watch_files, [file]),) if (file := registry.bootstrap_key) else ()),
            disks.run,
            partial(clock_watch.watch, clock, store, ledger, metrics),
        )
        if settings.ledger_warm_up:
            run_in_background(stack, partial(warm_up, metering.ledger_process, clock.now))
        state = State(
            settings=settings,
            store=store,
            gateways=gateways,
            directory=registry.directory,
            bootstrap_key=registry.bootstrap_key,
            catalog=registry.catalog,
            residency=registry.residency,
            placement_log=registry.placement_log,
            follower=registry.follower,
            engine_client=engines.engine_client,
            registrar=_registrar(settings, registry, artifacts),
            artifacts=artifacts,
            pool=engines.pool,
            engine_demand=engine_demand,
            hangs=engines.hangs,
            router=engines.router,
            deaths=registry.deaths,
            prewarmer=engines.prewarmer,
            meter=metering.meter,
            ledger=ledger,
            batches=batches,
            evaluations=evaluations,
            ledger_process=metering.ledger_process,
            metrics=metrics,
            lifecycle=lifecycle,
            prices=limit_parts.prices,
            credit_limits=limit_parts.credit_limits,
            intake=intake(),
            spool=metering.spool,
            security=security,
            conditions=conditions,
            snapshot_writer=snapshot_writer,
            clock=clock,
            sessions=Sessions(store, registry.directory, lifetime=settings.console_session, clock=clock.now),
            people=people,
            host_tokens=host_tokens,
        )
        canary_watch = CanaryWatch(state)
        conditions.add(canary_watch.conditions)
        trial_watch = TrialWatch(state)
        conditions.add(trial_watch.conditions)
        run_watches(leader_jobs, canary_watch, trial_watch)
        yield ReloadTargets(state, engines, reconciler, limit_parts, cost_alerts, event_streams)
        await batches.close()
        await limiter.close()
        with contextlib.suppress(StoreUnavailableError):  # then the leases expire
            await engines.leases.flush()
            await activity.report()
            await engines.canaries.report()


def _batch_work(
    context: WorkerContext, lifecycle: Lifecycle, metering: Metering, engines: Engines
) -> tuple[BatchRunner, EvaluationRunner]:
    clock, ledger = context.clock, metering.ledger
    batches = BatchRunner(context.name, lifecycle, ledger, engines.pool, clock=clock.now)
    context.stack.push_async_callback(batches.shut_down)
    evaluations = EvaluationRunner(ledger, batches, clock=clock.now)
    context.stack.push_async_callback(evaluations.shut_down)
    return batches, evaluations


def intake() -> Intake:
    def places(running: int, each: int, *, waiting: int, seconds: float) -> OwnerQueue:
        return OwnerQueue(
            running=running, running_each=each, waiting_each=waiting, waiting=64, timeout=seconds
        )

    return Intake(
        uploads=places(UPLOADS, UPLOADS, waiting=64, seconds=_UPLOAD_SECONDS),
        tenant_uploads=places(TENANT_UPLOADS, 2, waiting=4, seconds=_UPLOAD_SECONDS),
        tenant_registrations=places(TENANT_REGISTRATIONS, 1, waiting=8, seconds=_REGISTRATION_SECONDS),
    )


def _registrar(settings: Settings, registry: Registry, artifacts: ArtifactStore) -> Registrar:
    return Registrar(
        registry.store,
        registry.catalog,
        artifacts,
        tenant_document=registry.directory.document,
        fetching=FetchOptions(max_bytes=settings.max_adapter_bytes, allow_private=settings.allowed_sources),
    )
