"""The only module that wires everything: settings in, an ASGI application out.

Importing it opens nothing. The lifespan builds the worker's state and takes it down again in the opposite
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import aiohttp
from fastapi import FastAPI

from adapters.errors import StoreUnavailableError
from adapters.placement.engine_client import EngineClient
from adapters.placement.loader import Loader
from adapters.placement.residency import Residency
from adapters.placement.verification import ProbeVerifier
from adapters.reconcile.artifact_gc import ArtifactCollector
from adapters.reconcile.artifact_remover import ArtifactRemover
from adapters.reconcile.load_retries import LoadRetries
from adapters.reconcile.reconciler import Reconciler
from adapters.reconcile.stopped_engines import StoppedEngines
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.registry.mass_removal import MassRemovalWatch
from adapters.registry.registration import Registrar
from adapters.security.engine_access import EngineAccess
from adapters.sources.options import FetchOptions
from adapters.store import snapshot_writer as keeping
from adapters.store.feed import Follower, View
from adapters.store.redis import RedisStore
from adapters.store.snapshot_writer import SnapshotWriter
from gateway.admission.complexity import warm
from gateway.admission.in_flight import InFlightLimits
from gateway.admission.overload import AdmissionTicket
from gateway.api import admin, exception_handlers, finance, health
from gateway.api.admin import prices
from gateway.api.gate import Gate
from gateway.api.openai import PREFIX, DataPlane
from gateway.config import Settings, load_settings
from gateway.costs.export.spool import Spool
from gateway.costs.maintenance import maintenance_job
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.dataplane import access_log
from gateway.dataplane.exchange import Message, Receive, Scope, Send
from gateway.errors import FlorinError
from gateway.lifecycle import Lifecycle
from gateway.metering import clock_watch
from gateway.metering.engine_time import WRITE_SECONDS, EngineTime
from gateway.metering.ledger.audit_shipper import AuditShipper
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.metering.probe_usage import ProbeLog
from gateway.observability.conditions import Condition, Conditions
from gateway.observability.logs import worker_name
from gateway.observability.metrics import Metrics
from gateway.observability.process_metrics import ProcessValues
from gateway.operations.state import State
from gateway.reconfigure import ReloadTargets, complexity, in_flight_limits
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.engine_faults import EngineFaults
from gateway.routing.hang_detection import HangDetector
from gateway.routing.outlier_ejection import Rules
from gateway.routing.pool import Pool
from gateway.routing.prewarming import Prewarmer
from gateway.routing.prober import Prober
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.router import Router
from gateway.routing.upstream import Upstream
from gateway.runtime.clock import Clock
from gateway.runtime.disk_space import DiskSpace
from gateway.runtime.settings_reload import Reload
from gateway.runtime.transport_security import TransportSecurity
from gateway.runtime.worker_watch import crash_loop
from gateway.tenants.directory import Directory

log = logging.getLogger(__name__)

ENGINE_KEEPALIVE_SECONDS = 4.0
"""vLLM closes idle connections after 5 s; a request on a connection that is just closing would be lost."""
RESTART_SECONDS = 0.5
BALANCED_SECONDS = 60.0
"""So long after its readiness was last asked for, a worker is taken to have a balancer before it."""
UPLOADS = 4
"""That one worker takes in at a time: each may fill the disk up to the limit."""


class Florin:
    """Sends the data plane straight to its handler, past the framework, and the rest to FastAPI."""

    def __init__(self, settings: Settings, crew: ProcessValues | None = None) -> None:
        self.settings = settings
        self._crew = crew
        self.security = TransportSecurity(settings)
        self.data_plane: DataPlane | None = None
        # Mutable: what the process was told.
        self._stopping = False
        self._refused = ""
        self._running: ReloadTargets | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.api = FastAPI(
            title="Florin",
            summary="A multi-LoRA serving gateway: the operator's and the analyst's side.",
            lifespan=self._lifespan,
            openapi_url="/openapi.json"
            if settings.api_docs
            else None,  # without it, there is no /docs either
        )
        exception_handlers.install(self.api)
        for router in (health.router, admin.router, prices.router, finance.router):
            self.api.include_router(router)
        self.gate = Gate(self.api, settings)

    def stop(self) -> None:
        """From now on it is not ready, and asks clients to leave their connections."""
        self._stopping = True

    @property
    def balanced(self) -> bool:
        """Whether anybody goes by its readiness."""
        asked = self._running.state.readiness_asked if self._running else None
        return asked is not None and time.monotonic() - asked < BALANCED_SECONDS

    def apply(self, reload: Reload) -> None:
        """What came of reading the settings again. From any thread."""
        if self._loop is None:
            self._apply(reload)
        else:
            self._loop.call_soon_threadsafe(self._apply, reload)

    def _apply(self, reload: Reload) -> None:
        self.settings, self._refused = reload.settings, reload.refused
        if self._running:
            self._running.reconfigure(reload.settings)

    def _conditions(self) -> Iterator[Condition]:
        if self._stopping:
            yield Condition("stopping")
        if self._refused:
            yield Condition("settings_refused", message=self._refused)

    def issue_ticket(self, method: bytes, target: bytes) -> AdmissionTicket | FlorinError | None:
        """See `http_protocol.LoadShedding`."""
        return self.data_plane.issue_ticket(method, target) if self.data_plane else None

    def refuses_early(self, error: FlorinError) -> bool:
        """See `http_protocol.LoadShedding`."""
        return self.data_plane is not None and self.data_plane.refuses_early(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stopping:
            send = _closing(send)
        if scope["type"] == "http" and self.data_plane and scope["path"].startswith(PREFIX):
            await self.data_plane(scope, receive, send)
        elif self.settings.access_log:
            await access_log.logged(self.gate, scope, receive, send)
        else:
            await self.gate(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, api: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self._loop.run_in_executor(None, warm)
        async with build(self.settings, self.security, self._crew) as running:
            api.state.florin = state = running.state
            state.conditions.add(self._conditions)
            self._running = running
            running.reconfigure(self.settings)  # they may have been read again meanwhile
            self.data_plane = DataPlane(state.lifecycle)
            yield
            self.data_plane = None


@contextlib.asynccontextmanager
async def build(
    settings: Settings, security: TransportSecurity, crew: ProcessValues | None = None
) -> AsyncIterator[ReloadTargets]:
    """A worker's state, running. What was opened is closed on the way out, last first."""
    worker = f"{worker_name()}-{secrets.token_hex(3)}"
    async with contextlib.AsyncExitStack() as stack:
        store = RedisStore(settings.redis_url, prefix=settings.redis_prefix)
        stack.push_async_callback(store.close)
        session = await stack.enter_async_context(_engine_session(security.engines))
        control_session = await stack.enter_async_context(_engine_session(security.engines))

        metrics = Metrics(crew=crew)
        store.observe = metrics.redis_call
        clock = await asyncio.to_thread(Clock, settings.state_dir / "clock.json")
        directory = Directory(settings.bootstrap_key, clock.now)
        catalog, residency = Catalog(), Residency()
        deaths = DeathTracker(store, worker, metrics.engine_death)
        hang_reports = DeathTracker(store, worker, lambda *_: None, hangs=True)
        views: list[View] = [directory, catalog, residency, deaths, hang_reports]
        kept = await asyncio.to_thread(keeping.read, settings.state_dir)
        follower = Follower(store, views, kept.snapshot if kept else None)
        ledger = Ledger(settings.ledger)
        ledger.observe = metrics.ledger_transaction
        stack.callback(ledger.close)
        ledger_process = LedgerProcess(settings.ledger)
        stack.push_async_callback(ledger_process.close)
        spool = Spool(settings.exports, settings.export_max_bytes)
        await asyncio.to_thread(spool.sweep)
        meter = Meter(
            settings.state_dir / "usage",
            ledger,
            metrics,
            serve_when_full=settings.wal_full == "serve",
            clock=clock,
        )
        await meter.start()
        stack.push_async_callback(meter.close)
        await follower.start()
        stack.push_async_callback(follower.close)
        secret = await keeping.secrets_of(store, follower, kept)
        keeper = SnapshotWriter(settings.state_dir, follower, secret)
        stack.push_async_callback(keeper.close)

        changed = _changed(follower)
        pool = Pool(
            catalog,
            residency,
            store,
            worker=worker,
            slow_start=settings.slow_start,
        )
        pool.on_death = deaths.died
        control = EngineClient(
            control_session,
            timeout=settings.load_timeout,
            agent_secret=secret["agent"].encode(),
        )
        loader = Loader(
            store=store,
            catalog=catalog,
            residency=residency,
            control=control,
            observer=metrics,
            owner=worker,
            usable=pool.usable,
            changed=changed,
            before_claim=pool.flush,
        )
        probe_log = ProbeLog(ledger, min(WRITE_SECONDS, settings.bookkeeping_interval), clock.now)
        stack.push_async_callback(probe_log.close)
        if settings.verify_loads:
            loader.verifier = ProbeVerifier(
                store=store,
                catalog=catalog,
                control=control,
                serving_statuses=loader.serving_statuses,
                observer=metrics,
                process=pool.process,
                changed=changed,
                on_probe=probe_log.probed,
            )
        stack.push_async_callback(loader.close)
        hangs = HangDetector(
            pool,
            control,
            metrics,
            hang_reports,
            rules=Rules(settings.hang_timeout, settings.ejection_time),
            first_byte_timeout=settings.first_byte_timeout,
            idle_timeout=settings.engine_idle_timeout,
            spent=partial(probe_log.probed, prompts=1),
        )
        budget = RetryBudget(settings.retry_budget)
        router = Router(
            catalog,
            pool,
            loader,
            changed,
            deaths=deaths,
            hangs=hangs,
            budget=budget,
            timeout=settings.placement_timeout,
            max_queue=settings.max_queue_seconds,
        )
        warmer = Prewarmer(pool, router, loader, timeout=settings.placement_timeout)
        stack.push_async_callback(warmer.close)
        upstream = Upstream(session, connect_timeout=settings.connect_timeout)
        artifacts = ArtifactStore(settings.artifacts)
        await asyncio.to_thread(artifacts.open, secret["installation"])
        lifecycle = Lifecycle(
            settings=settings,
            directory=directory,
            catalog=catalog,
            follower=follower,
            router=router,
            upstream=upstream,
            meter=meter,
            metrics=metrics,
            in_flight=in_flight_limits(settings),
            complexity=complexity(settings),
            faults=EngineFaults(metrics.engine_fault),
            cache_secret=secret["cache_salt"].encode(),
        )
        engine_time = EngineTime(ledger, worker, min(WRITE_SECONDS, settings.bookkeeping_interval), clock)
        stack.push_async_callback(engine_time.close)
        prober = Prober(
            pool,
            control_session,
            metrics,
            engine_time,
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            clock=clock.now,
        )
        reconciler = _reconciler(settings, loader, follower, ArtifactRemover(artifacts), clock)
        stack.push_async_callback(prober.final_probe)
        conditions = Conditions()
        conditions.when(lambda: not follower.connected and not follower.lost, "feed_lost")
        shrinkage = MassRemovalWatch(partial(_counts, directory, catalog))
        conditions.add(partial(_registry, follower, keeper, shrinkage))
        conditions.when(lambda: not meter.accepting, "usage_unrecorded")
        conditions.add(hangs.conditions)
        conditions.add(clock.conditions)
        conditions.when(lambda: meter.behind, "ledger_behind")
        conditions.when(lambda: meter.disk_slow, "disk_slow")
        disks = DiskSpace(
            {"state": settings.state_dir, "artifacts": settings.artifacts, "exports": settings.exports},
            metrics,
        )
        conditions.add(disks.conditions)
        if crew is not None:
            conditions.when(partial(crash_loop, crew.values), "workers_crash")
        books_keeper = maintenance_job.MaintenanceJob(
            store=store,
            ledger_process=ledger_process.aside(),
            owner=worker,
            interval=settings.bookkeeping_interval,
            retention_days=settings.retention_days,
            clock=clock.now,
        )
        for work in (
            pool.run,
            lifecycle.loop_watch.run,
            deaths.run,
            hang_reports.run,
            hangs.run,
            prober.run,
            reconciler.run,
            engine_time.run,
            probe_log.run,
            books_keeper.run,
            keeper.run,
            AuditShipper(store, ledger, worker).run,
            partial(
                maintenance_job.show,
                ledger,
                metrics,
                seconds=min(maintenance_job.READ_SECONDS, settings.bookkeeping_interval),
            ),
            partial(_show_conditions, conditions, follower, metrics),
            partial(_show_waiting, lifecycle.in_flight, pool, metrics),
            partial(security.watch, metrics),
            disks.run,
            partial(clock_watch.watch, clock, store, ledger, metrics),
        ):
            stack.push_async_callback(_cancel, asyncio.create_task(_for_ever(work)))
        state = State(
            settings=settings,
            store=store,
            directory=directory,
            catalog=catalog,
            residency=residency,
            follower=follower,
            control=control,
            registrar=Registrar(
                store,
                catalog,
                artifacts,
                tenant_document=directory.document,
                fetching=FetchOptions(
                    max_bytes=settings.max_adapter_bytes, allow_private=settings.allowed_sources
                ),
            ),
            artifacts=artifacts,
            pool=pool,
            hangs=hangs,
            router=router,
            warmer=warmer,
            meter=meter,
            ledger=ledger,
            ledger_process=ledger_process,
            metrics=metrics,
            lifecycle=lifecycle,
            uploads=asyncio.Semaphore(UPLOADS),
            spool=spool,
            security=security,
            conditions=conditions,
            keeper=keeper,
            clock=clock,
        )
        yield ReloadTargets(state, prober, reconciler, budget)
        with contextlib.suppress(StoreUnavailableError):  # then the leases lapse by themselves
            await pool.flush()


def _closing(send: Send) -> Send:
    """Answers that ask the client to leave the connection: the next one would meet a closed port."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return closing


def create_app(settings: Settings | None = None, crew: ProcessValues | None = None) -> Florin:
    """`crew`: when this is one of several workers. Raises SettingsError when a setting is wrong."""
    return Florin(settings or load_settings(), crew)


def _reconciler(
    settings: Settings, loader: Loader, follower: Follower, remover: ArtifactRemover, clock: Clock
) -> Reconciler:
    store, catalog, residency, control = loader.store, loader.catalog, loader.residency, loader.control
    return Reconciler(
        store=store,
        catalog=catalog,
        residency=residency,
        control=control,
        loader=loader,
        owner=loader.owner,
        interval=settings.probe_interval,
        probe_timeout=settings.probe_timeout,
        reload_interval=settings.reload_interval,
        collector=ArtifactCollector(
            store,
            catalog,
            residency,
            control,
            remover,
            grace=settings.artifact_grace * 3600,
            probe_timeout=settings.probe_timeout,
            now=clock.now,
        ),
        load_retries=LoadRetries(store, catalog, residency, loader),
        stopped=StoppedEngines(store, catalog, settings.stopped_engine_hours),
        current=lambda: follower.connected,
    )


def _engine_session(access: EngineAccess) -> aiohttp.ClientSession:
    """Connections without a limit: how much runs at once is the engines' business."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=ENGINE_KEEPALIVE_SECONDS, ssl=access.ssl),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("accept", "accept-encoding", "user-agent"),
        trust_env=False,
    )
    return access.authorize(session)


def _changed(follower: Follower) -> Callable[[float], Awaitable[None]]:
    """Returns at the next event of the feed, or after so many seconds."""

    async def changed(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await follower.changed()

    return changed


def _counts(directory: Directory, catalog: Catalog) -> dict[str, int]:
    return {
        "tenants": len(directory.tenants),
        "keys": sum(key.revoked is None for key in directory.keys.values()),
        "adapters": len(catalog.adapters),
    }


def _registry(follower: Follower, keeper: SnapshotWriter, shrinkage: MassRemovalWatch) -> Iterator[Condition]:
    if follower.lost:
        yield Condition("registry_regressed", message=follower.lost)
    shrunk = shrinkage.check(time.monotonic())
    if shrunk:
        yield Condition("registry_shrinking", message=shrunk)
    if keeper.trouble:
        yield Condition("registry_unkept", message=keeper.trouble)


async def _show_conditions(conditions: Conditions, follower: Follower, metrics: Metrics) -> None:
    while True:
        metrics.feed_connected(connected=follower.connected)
        metrics.conditions({condition.code for condition in conditions.now()})
        await asyncio.sleep(1)


async def _show_waiting(in_flight: InFlightLimits, pool: Pool, metrics: Metrics) -> None:
    while True:
        metrics.requests_waiting(max(0, in_flight.requests - pool.in_flight_here))
        await asyncio.sleep(1)


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """A defect in the background is logged and survived: a worker that no longer renews its leases, or
    repairs nothing, would look healthy."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("Background task %s failed; restarting", _name(work))
        await asyncio.sleep(RESTART_SECONDS)


def _name(work: Callable[..., object]) -> str:
    """The name of a coroutine function, also within a partial."""
    while isinstance(work, partial):
        work = work.func
    return getattr(work, "__qualname__", repr(work))


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Libraries now and then swallow a cancellation, so ask again until it has worked."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=1)
    if not task.cancelled():
        task.result()
