"""Everything that deals with engines: connections, health, leases, loads, routing, reconciliation."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

import aiohttp

from adapters.model import Engine, Version
from adapters.placement.engine_client import EngineClient
from adapters.placement.loader import Loader
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.verification import ProbeVerifier
from adapters.reconcile.artifact_gc import ArtifactCollector
from adapters.reconcile.evacuation import Evacuation
from adapters.reconcile.load_retries import LoadRetries
from adapters.reconcile.rebalancer import EngineStatus, Rebalancer
from adapters.reconcile.reconciler import Reconciler
from adapters.reconcile.removers import Remover
from adapters.reconcile.stopped_engines import StoppedEngines
from adapters.registry.shown_unloads import ShownUnloads
from adapters.security.engine_access import EngineAccess
from gateway.composition.context import WorkerContext
from gateway.composition.metering import Metering
from gateway.composition.registry import Registry
from gateway.composition.tracing import LoadObservers
from gateway.config import Settings
from gateway.costs.prices.token_costs import TokenCosts
from gateway.metering.engine_time.engine_time import WRITE_SECONDS, EngineTime
from gateway.metering.probe_usage import ProbeLog
from gateway.routing.canary_counts import CanaryCounts
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_scraper import EngineScraper
from gateway.routing.fleets import Fleets
from gateway.routing.hang_detection import HangDetector
from gateway.routing.leases import Leases
from gateway.routing.lost_requests import Patience
from gateway.routing.outlier_ejection import Rules
from gateway.routing.pool import Pool
from gateway.routing.prewarming import Prewarmer
from gateway.routing.prober import Prober
from gateway.routing.queue_refusals import QueueLimits
from gateway.routing.retries import Retries
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.router import Router
from gateway.routing.suspect_isolation import SuspectIsolation
from gateway.routing.turns import Turns
from gateway.routing.upstream import Upstream
from gateway.tenants.engine_requirements import engine_requirements
from gateway.transport.engine_get import DatedConnection, EngineGetter
from gateway.transport.engine_pool import IDLE_SECONDS, EnginePool

TYPICAL_RANK = 16
"""Rank of the adapters whose loads the planner paces."""


@dataclass(frozen=True, slots=True)
class Engines:
    """What routes requests to engines, and what looks after the engines."""

    engine_client: EngineClient
    pool: Pool
    leases: Leases
    fleets: Fleets
    loader: Loader
    hangs: HangDetector
    retries: Retries
    router: Router
    canaries: CanaryCounts
    prewarmer: Prewarmer
    upstream: Upstream
    prober: Prober
    engine_time: EngineTime
    token_costs: TokenCosts
    probe_log: ProbeLog


async def open_engines(
    context: WorkerContext,
    registry: Registry,
    metering: Metering,
    access: EngineAccess,
    *,
    agent_secret: bytes,
) -> Engines:
    settings, metrics, clock, stack = context.settings, context.metrics, context.clock, context.stack
    connections = EnginePool(access.ssl if access.ssl is not True else None)
    stack.callback(connections.close)
    control_session = await stack.enter_async_context(_session(access))
    engine_client = EngineClient(control_session, timeout=settings.load_timeout, agent_secret=agent_secret)
    engine_client.learned = ShownUnloads(registry.store, registry.catalog).learned
    write_seconds = min(WRITE_SECONDS, settings.ledger_maintenance_interval)

    catalog, deaths, hang_reports = registry.catalog, registry.deaths, registry.hang_reports
    pool = Pool(catalog)
    health = EngineHealth(pool, on_death=deaths.died)
    turns = Turns(pool, metrics, limits=queue_limits(settings), enabled=settings.fair_queue)
    leases = Leases(pool, registry.store, context.name, turns=turns)
    probe_log = ProbeLog(metering.ledger, write_seconds, clock.now)
    stack.push_async_callback(probe_log.close)
    loader = _loader(context, registry, engine_client, pool, leases, probe_log)
    stack.push_async_callback(loader.close)

    hangs = HangDetector(
        pool,
        engine_client,
        metrics,
        hang_reports,
        rules=Rules(settings.hang_timeout, settings.ejection_time),
        patience=Patience(settings.first_byte_timeout, settings.engine_idle_timeout),
        spent=partial(probe_log.probed, prompts=1),
    )
    fleets = Fleets(
        pool,
        registry.residency,
        hanging=hangs.describe,
        suspect=lambda engine: bool(
            catalog.serving_statuses and loader.verifier and loader.verifier.is_suspect(engine)
        ),
        slow_start=settings.slow_start,
    )
    retries = Retries(
        health,
        RetryBudget(settings.retry_budget),
        deaths=deaths,
        hangs=hang_reports,
        timeout=settings.placement_timeout,
        ttft_deadline=settings.ttft_deadline,
    )
    canaries = CanaryCounts(registry.store, clock.now)
    router = Router(
        catalog,
        fleets,
        leases,
        loader,
        retries,
        SuspectIsolation(leases, deaths=deaths, hangs=hang_reports),
        scheduler=POLICIES[settings.scheduling_policy](),
        hangs=hangs,
        counts=canaries,
        changed=registry.changed,
    )
    prewarmer = Prewarmer(catalog, fleets, router, loader, timeout=settings.placement_timeout)
    stack.push_async_callback(prewarmer.close)

    engine_time = EngineTime(metering.ledger, context.name, write_seconds, clock)
    stack.push_async_callback(engine_time.close)
    getter = EngineGetter(EnginePool(connections.tls, kind=DatedConnection), access.authorization)
    stack.callback(getter.close)
    prober = Prober(
        pool,
        health,
        EngineScraper(health, getter, metrics, learned=engine_client.learned, clock=clock.now),
        getter,
        metrics,
        engine_time,
        interval=settings.probe_interval,
        timeout=settings.probe_timeout,
        clock=clock.now,
    )
    stack.push_async_callback(prober.final_probe)
    engine_client.get = prober.get
    return Engines(
        engine_client=engine_client,
        pool=pool,
        leases=leases,
        fleets=fleets,
        loader=loader,
        hangs=hangs,
        retries=retries,
        router=router,
        canaries=canaries,
        prewarmer=prewarmer,
        upstream=Upstream(
            connections, connect_timeout=settings.connect_timeout, authorization=access.authorization
        ),
        prober=prober,
        engine_time=engine_time,
        token_costs=TokenCosts(metering.ledger, clock.now),
        probe_log=probe_log,
    )


def queue_limits(settings: Settings) -> QueueLimits:
    return QueueLimits(
        settings.queue_timeout,
        settings.max_tenant_queued,
        settings.max_worker_queued,
        settings.engine_start_timeout,
    )


def _status(engines: Engines, engine: Engine) -> EngineStatus:
    """For the rebalancer."""
    state, fleet = engines.pool.state(engine.name), engines.fleets.of(engine.base_model)
    view = fleet.engines.get(engine.name)
    if state is None or view is None:
        return EngineStatus(serves=False, open=False)
    fleet.check(view)
    return EngineStatus(
        serves=not view.blocked,
        open=not view.closed and not view.doubtful and view.share >= 1,
        load_ms=view.costs.load(TYPICAL_RANK),
        requests=state.running + state.waiting,
        weight=engines.token_costs.of(engine),
    )


def _process(pool: Pool, name: str) -> Hashable:
    """For the reconciler."""
    state = pool.state(name)
    return state and (state.healthy, state.outages, state.connections, state.process_started)


def build_reconciler(
    context: WorkerContext, registry: Registry, engines: Engines, remover: Remover
) -> Reconciler:
    settings = context.settings
    store, catalog, residency = registry.store, registry.catalog, registry.residency
    engine_client, loader, follower = engines.engine_client, engines.loader, registry.follower
    return Reconciler(
        store=store,
        catalog=catalog,
        residency=residency,
        control=engine_client,
        loader=loader,
        owner=context.name,
        interval=settings.probe_interval,
        probe_timeout=settings.probe_timeout,
        reload_interval=settings.reload_interval,
        collector=ArtifactCollector(
            store,
            catalog,
            residency,
            engine_client,
            remover,
            grace=settings.artifact_grace * 3600,
            probe_timeout=settings.probe_timeout,
            now=context.clock.now,
        ),
        load_retries=LoadRetries(store, catalog, residency, loader),
        stopped=StoppedEngines(store, catalog, settings.stopped_engine_hours),
        evacuation=Evacuation(
            store, catalog, residency, engine_client, loader, settings.reload_interval, context.clock.now
        ),
        rebalancer=Rebalancer(
            store,
            catalog,
            residency,
            engine_client,
            loader,
            partial(_status, engines),
            context.metrics,
            settings.placement_interval,
            current=lambda: follower.connected,
            now=context.clock.now,
        ),
        current=lambda: follower.connected,
        process=partial(_process, engines.pool),
    )


def _loader(
    context: WorkerContext,
    registry: Registry,
    engine_client: EngineClient,
    pool: Pool,
    leases: Leases,
    probe_log: ProbeLog,
) -> Loader:
    loader = Loader(
        store=registry.store,
        catalog=registry.catalog,
        residency=registry.residency,
        control=engine_client,
        observer=LoadObservers(context.metrics, context.tracing),
        owner=context.name,
        usable=pool.usable,
        changed=registry.changed,
        before_claim=leases.flush,
        requires=partial(engine_requirements, registry.directory, registry.catalog),
        timed=partial(_learn_load, pool),
    )
    loader.verifier = ProbeVerifier(
        store=registry.store,
        catalog=registry.catalog,
        residency=registry.residency,
        control=engine_client,
        serving_statuses=loader.serving_statuses,
        observer=context.metrics,
        process=pool.process,
        changed=registry.changed,
        on_probe=probe_log.probed,
        every=context.settings.verify_loads,
    )
    return loader


def _learn_load(pool: Pool, engine: Engine, version: Version, seconds: float) -> None:
    """Loads of one rank take about as long on one engine, so the scheduler can expect it."""
    state = pool.state(engine.name)
    if state is not None:
        state.learned.loaded(version.rank, seconds * 1000)
        state.view.refresh()


def _session(access: EngineAccess) -> aiohttp.ClientSession:
    """A client session without a connection limit: the engines limit what runs at once."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=access.ssl),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("accept", "accept-encoding", "user-agent"),
        trust_env=False,
    )
    return access.authorize(session)
