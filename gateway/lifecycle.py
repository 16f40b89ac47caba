"""The story of one request, top to bottom. Read this first.

    auth → parse → resolve → limit → admit → schedule → ensure resident → relay → meter

A request counts as in flight from before its body is read until it is answered or its client disconnects.
Each step is one call. Errors are raised as FlorinError, and `Lifecycle.run` renders them in one place.
Whatever happens, every attempt that reached an engine ends its lease and its usage record exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from adapters.errors import AdaptersError
from adapters.model import Engine
from adapters.registry.catalog import Catalog, Target
from adapters.store.feed import Follower
from gateway.admission.complexity import Complexity, check
from gateway.admission.in_flight import InFlightLimits
from gateway.admission.overload import AdmissionTicket, LoopWatch
from gateway.config import Settings
from gateway.dataplane.exchange import ClientGoneError, Exchange
from gateway.dataplane.request import ENGINES_REFUSALS, Call, Endpoint, parse, policy
from gateway.errors import FlorinError, for_tenant
from gateway.fields.rule import UnknownFields
from gateway.metering.attempt import AttemptMeter
from gateway.metering.held_finals import HeldFinals
from gateway.metering.meter import Meter
from gateway.metering.prompt_estimate import prompt_tokens
from gateway.metering.records import BATCH, Labels, Outcome
from gateway.observability.metrics import Metrics
from gateway.observability.tracing import Tracing
from gateway.routing.canary_counts import CanaryCounts, ComparedRequest
from gateway.routing.decision_log import DecisionLog
from gateway.routing.engine_answers import EngineFaults
from gateway.routing.engine_state import EngineLostError, Lease
from gateway.routing.prefixes import prefix_of
from gateway.routing.relay import Relay, interrupted
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.resume import ResumableStream, ResumeBuffer, obstacle
from gateway.routing.retries import Retries
from gateway.routing.router import Router
from gateway.routing.routing_state import RoutingState
from gateway.routing.ticket import ticket_of
from gateway.routing.upstream import RetryElsewhere, Upstream, abandoned, resumes_on
from gateway.tenants.activity import Activity
from gateway.tenants.authentication import authenticate_caller
from gateway.tenants.cache_salts import CacheSalts
from gateway.tenants.directory import Directory, Key
from gateway.tenants.limits.grant import Grant
from gateway.tenants.limits.limiter import Limiter
from gateway.tenants.request_policy import RequestPolicies
from gateway.tenants.scopes import covers
from gateway.tenants.terms import DEFAULT_POLICY

log = logging.getLogger(__name__)

_UNTOUCHED = {*ENGINES_REFUSALS, "metering_unavailable"}
"""Errors of attempts on which no engine worked: the client's mistake, or a full usage log."""
_FINAL_EVENTS = {"stream_interrupted", "shutting_down"}
"""Errors that may end a stream."""


@dataclass(slots=True)
class Request:
    """One request that has been admitted."""

    exchange: Exchange
    key: Key
    call: Call
    resumable: ResumableStream | None
    """Records a stream so that another engine can resume it; None: the request is not to be resumed."""
    routing_state: RoutingState
    grant: Grant
    compared: ComparedRequest | None = None
    """Counts its outcome, if its adapter has a canary."""


@dataclass(slots=True)
class Lifecycle:
    """Serves the requests of one worker's data plane.

    `run` is the entry point, called once per request in that request's own task. It always answers the
    client and never raises. `serve`, `deliver` and `attempt` are its nested steps: a request, its attempts
    until one succeeds, and a single attempt on one engine. They raise FlorinError and AdaptersError.

    Invariants: `attempt` ends its usage record on every path, `deliver` ends each lease, and nothing is sent
    to an engine before the attempt is in the usage log. Everything runs on the worker's event loop.
    """

    settings: Settings
    directory: Directory
    catalog: Catalog
    follower: Follower
    router: Router
    retries: Retries
    upstream: Upstream
    meter: Meter
    metrics: Metrics
    activity: Activity
    in_flight: InFlightLimits
    limiter: Limiter
    complexity: Complexity
    faults: EngineFaults
    decisions: DecisionLog
    canaries: CanaryCounts
    cache_secret: bytes
    """The installation's own. It recognises requests that engines die of, and without FLORIN_CACHE_SECRET it
    makes the cache salts, which keep the prefix cache of each tenant or group of tenants private."""
    tracing: Tracing | None = None
    """None: no spans are made."""
    loop_watch: LoopWatch = field(default_factory=LoopWatch)
    _unknown: UnknownFields = field(default_factory=UnknownFields)
    _resume_buffer: ResumeBuffer = field(default_factory=ResumeBuffer)
    _policies: RequestPolicies = field(init=False)
    _salts: CacheSalts = field(init=False)

    def __post_init__(self) -> None:
        self._policies = RequestPolicies(policy(self.settings))
        self._salts = CacheSalts(self._salt_secret(self.settings))

    def _salt_secret(self, settings: Settings) -> bytes:
        return settings.cache_secret.encode() or self.cache_secret

    def reconfigure(self, settings: Settings, *, complexity: Complexity) -> None:
        """Apply new settings to future requests."""
        self.settings, self.complexity = settings, complexity
        self._policies = RequestPolicies(policy(settings))
        self._salts.rotate(self._salt_secret(settings), settings.cache_secret_spread)

    async def run(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve one request and answer it, whatever happens."""
        exchange.dialect = endpoint.dialect
        if self.tracing is not None:
            self.tracing.begin(exchange.context, route=endpoint.path, batch=exchange.batch is not None)
        try:
            await self.serve(exchange, endpoint)
        except ClientGoneError:
            await self._note_disconnect(exchange)
        except asyncio.CancelledError:  # the server is stopping, and the grace period is over
            await self._fail(
                exchange, FlorinError("shutting_down", "The gateway is shutting down.", retry_after=1)
            )
        except FlorinError as error:
            endpoint.rename(error)
            await self._fail(exchange, error)
        except AdaptersError as error:
            log.info("Request %s: %s", exchange.request_id, error)
            await self._fail(exchange, for_tenant(error))
        except Exception:  # a defect; the client still gets an answer
            log.exception("Request %s failed", exchange.request_id)
            await self._fail(
                exchange,
                FlorinError("internal_error", f"Internal error in Florin (request {exchange.request_id})."),
            )
        finally:
            exchange.close()
            if exchange.context.spans is not None:
                exchange.context.spans.ended()

    async def serve(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve one request. Raises FlorinError, AdaptersError and ClientGoneError."""
        exchange.check_overload()  # before anything is read or looked up
        key = authenticate_caller(exchange, self.directory, self.follower, calls=endpoint.path)
        context = exchange.context
        exchange.reservation = self.in_flight.reserve(key.id, key.tenant)
        call = self.read(await exchange.body(self.settings.max_body_bytes), endpoint, key.tenant)
        exchange.watch()
        context.stream = call.stream
        if call.reply is not None:
            exchange.error_events = call.reply.fail
        target = self.resolve(key, call.model)
        if target.canary is not None:
            target = target.for_call(key.tenant, call.user)
        context.adapter, context.model = target.label, call.model
        requires = self.require(key, target, call)
        exchange.grant = grant = await self.limit(exchange, key, call)
        self.admit(exchange, key, target, call)
        ticket = ticket_of(key, self.directory.tenants.get(key.tenant), batch=exchange.batch is not None)
        resumable = self.resumable(call)
        salt = self.salt(key.tenant)
        prefix = prefix_of(call.body, salt)
        # No local variable for the payload: it would keep it in memory as long as the request lasts.
        exchange.keep(call.payload(target.engine_name, salt))
        exchange.close_ticket()
        identity = self.identity(endpoint, key, target, exchange.payload)
        routing_state = self.retries.begin(
            target,
            identity,
            requires=requires,
            prompt_tokens=call.estimate,
            prefix=prefix,
            ticket=ticket,
        )
        compared = self.canaries.begin(target, batch=exchange.batch is not None)
        request = Request(exchange, key, call, resumable, routing_state, grant, compared)
        try:
            await self.deliver(request)
        except (FlorinError, AdaptersError) as error:
            if resumable is None or not resumable.resumes or exchange.finished:
                raise
            raise self._not_resumed(exchange, error) from error
        finally:
            if resumable is not None:
                resumable.end()

    async def deliver(self, request: Request) -> None:
        """Make attempts until the answer is delivered. Raises the error for the client, which may already
        have received part of a stream."""
        routing_state, resumable = request.routing_state, request.resumable
        while True:
            with request.exchange.scope:
                lease = await self.router.place(routing_state)
            self.note_decision(request, lease)
            try:
                return await self.attempt(request, lease)
            except RetryElsewhere as retry:
                self.metrics.failover(retry.reason)
                lease.trouble = retry.reason
                if lease.begun and resumable is not None:
                    request.exchange.keep(resumable.resume())
                    self.retries.resume(routing_state)
                self.retries.record_failure(routing_state, lease, retry)
            finally:
                if request.compared is not None:
                    request.compared.ended(lease, answers=request.call.choices, loads=routing_state.loads)
                lease.end()

    async def attempt(self, request: Request, lease: Lease) -> None:
        """One metered attempt on one engine. Raises RetryElsewhere if another engine can start over because
        the client has received nothing, or can resume what it has received."""
        exchange, call, routing_state = request.exchange, request.call, request.routing_state
        exchange.check_client()  # while nothing is recorded
        target, engine = routing_state.target, lease.state.engine
        context = exchange.context
        request_id = f"{exchange.request_id}-{routing_state.attempts}"
        post = self.upstream.post(
            engine,
            call.endpoint.route,
            exchange.payload,
            request_id,
            target,
            scope=lease.scope,
            trace=context.trace if context.spans is None else context.spans.attempt(),
        )
        record = self.begin_record(request, engine)
        context.engine, context.attempts, context.attempt = engine.name, routing_state.attempts, record
        exchange.extra_headers = [
            (b"x-florin-adapter", target.label.encode()),
            (b"x-florin-engine", engine.name.encode()),
            *request.grant.headers,
        ]
        relay = Relay(
            exchange,
            call,
            target,
            lease,
            record,
            self.faults,
            self.metrics,
            request.resumable if resumes_on(engine) else None,
            max_answer_bytes=self.settings.max_answer_bytes,
        )
        try:
            with exchange.scope:
                await record.logged()  # before the engine hears of it
                if not self.meter.accepting:
                    raise unmetered()
                lease.send(streams=call.stream, record=record)
                async with post as response:
                    await (relay.stream(response) if call.stream else relay.whole(response))
            self.retries.record_answer(lease)
            lease.learn(record, answers=call.choices)
        except RetryElsewhere as retry:
            worked = retry.engine_worked or bool(lease.abandoned)
            if not lease.begun:  # otherwise its part of the answer was delivered: see `finally`
                record.end(Outcome.FAILOVER, billable=False, exact=False, worked=worked)
            if worked:
                lease.record_loss()
            raise
        except FlorinError as error:
            if error.code in _UNTOUCHED:
                record.end(Outcome.REJECTED, billable=False, exact=False, worked=False)
            if error.code in ENGINES_REFUSALS:
                self.retries.record_answer(lease)
            elif post.sent:
                lease.record_loss()
            raise
        except EngineLostError as lost:
            raise self._engine_lost(lease, record, worked=post.sent) from lost
        except (ClientGoneError, asyncio.CancelledError) as end:
            # Otherwise the server is shutting down: delivery is unknown. Nobody gets part of a batch's line.
            gone = isinstance(end, ClientGoneError)
            outcome = Outcome.CLIENT_ABORT if gone else Outcome.ORPHANED
            record.end(
                outcome,
                billable=gone and post.sent and not exchange.batch,
                exact=False,
                worked=post.sent,
            )
            if post.sent:
                lease.record_loss()
            raise
        finally:
            record.end(Outcome.ENGINE_ERROR, billable=lease.begun, exact=False)  # no-op if already ended
            self.count(request, engine, record)

    # -- the steps

    def issue_ticket(self) -> AdmissionTicket | FlorinError:
        """A ticket for a request whose headers have arrived, or the error to refuse it with."""
        watch = self.loop_watch
        ticket = watch.issue_ticket()
        return ticket or FlorinError(
            "overloaded", "This worker is overloaded.", retry_after=watch.retry_after
        )

    def read(self, raw: bytes, endpoint: Endpoint, tenant: str) -> Call:
        """Parse the body. Only the call refers to it afterwards, and only until it is sent."""
        check(raw, self.complexity)
        known = self.directory.tenants.get(tenant)
        call = parse(endpoint, raw, self._policies.of(known.policy if known else DEFAULT_POLICY))
        if not endpoint.free:
            call.estimate, call.size = prompt_tokens(call.body), len(raw)
        most = self.settings.max_scored_tokens
        if call.scored and call.estimate > most:
            message = f"`{call.scored}` must be omitted if the prompt has more than {most:,} tokens."
            raise FlorinError("invalid_value", message, param=call.scored)
        if call.unknown:
            self._unknown.note(call.unknown_names)
            self.metrics.unknown_fields(call.unknown)
        return call

    def resolve(self, key: Key, model: str) -> Target:
        """Resolve a model name. Foreign and unknown names, and those out of the key's scopes, get the same
        error."""
        tenant = self.directory.tenants.get(key.tenant)
        target = None
        if tenant is not None:
            base = tenant.base_access or key.evaluates
            target = self.catalog.resolve(tenant.name, model, base_access=base)
        if target is None or not covers(key, target.version.adapter if target.version else ""):
            raise model_not_found(model)
        return target

    def require(self, key: Key, target: Target, call: Call) -> Mapping[str, str]:
        """The labels that an engine must have. Raises FlorinError if no engine of the fleet will do."""
        requires = self.directory.requires(key.tenant, target.owner)
        if call.endpoint.task is not None:
            requires = self.router.require_task(target, requires, call.endpoint.task, call.endpoint.path)
        if call.scored:
            requires = self.router.require_scoring(target, requires, call.scored)
        return requires

    async def limit(self, exchange: Exchange, key: Key, call: Call) -> Grant:
        """Reserve what the request needs of its tenant's and its key's limits and budgets, or refuse it."""
        grant = self.limiter.enter(self.directory.tenants[key.tenant], key, call)
        if grant is None:
            with exchange.scope:
                grant = await self.limiter.wait(key, call, exchange.headers)
        return grant

    def admit(self, exchange: Exchange, key: Key, target: Target, call: Call) -> None:
        """Refuse the request if its usage cannot be recorded."""
        if not self.meter.accepting:
            self.meter.reject(
                request_id=exchange.request_id,
                tenant=key.tenant,
                key_id=key.id,
                adapter=target.version.adapter if target.version else "",
                base_model=target.base_model,
                labels=self.labels(key, target, call),
            )
            raise unmetered()

    def identity(self, endpoint: Endpoint, key: Key, target: Target, payload: bytes) -> RequestIdentity:
        """How to recognise the request if engines die of it."""
        group = (key.tenant, target.version.adapter if target.version else "")
        what = f"{endpoint.route} {target.engine_name}"
        return RequestIdentity(group, what=what, payload=payload, key=self.cache_secret)

    def resumable(self, call: Call) -> ResumableStream | None:
        """The record of a stream that lets another engine resume it; None: the call is not to be resumed."""
        if not call.stream or not self.settings.resume_streams:
            return None
        chat = call.endpoint.chat
        opens = chat and not call.body.get("continue_final_message")
        return ResumableStream(self._resume_buffer, obstacle(call.body), chat=chat, opens=opens)

    def salt(self, tenant: str) -> str:
        """The same for tenants that share a prefix cache, and different for all others."""
        known = self.directory.tenants.get(tenant)
        group = known.cache_group if known else ""
        owner = f"group/{group}" if group else tenant  # no tenant's name has a slash
        return self._salts.of(owner)

    def begin_record(self, request: Request, engine: Engine) -> AttemptMeter:
        """The usage record of an attempt on this engine."""
        call, routing_state, resumable = request.call, request.routing_state, request.resumable
        version, batch = routing_state.target.version, request.exchange.batch
        return self.meter.begin(
            request_id=request.exchange.request_id,
            attempt=routing_state.attempts,
            tenant=request.key.tenant,
            key_id=request.key.id,
            adapter=version.adapter if version else "",
            version=f"v{version.number}" if version else "",
            base_model=routing_state.target.base_model,
            engine=engine.name,
            gpu_type=engine.gpu_type,
            gpu_count=engine.gpu_count,
            n=call.n,
            prompts=call.prompts,
            adapter_loads=routing_state.loads,
            estimate=call.estimate,
            continues=resumable is not None and resumable.resumes > 0,
            free=call.endpoint.free,
            labels=self.labels(request.key, routing_state.target, call),
            service_tier=BATCH if batch else "",
            held=cast("HeldFinals", batch.finals) if batch else None,
        )

    def labels(self, key: Key, target: Target, call: Call) -> Labels:
        """Whose the request is within its tenant. The cost centre of an adapter is its owner's business: it
        does not label the usage of tenants that share it."""
        version = target.version
        own = self.catalog.adapters.get(version.adapter) if version and version.tenant == key.tenant else None
        centre = self.directory.cost_centre(key, own.cost_centre if own else "")
        return Labels(call.end_user, call.tag, centre)

    def count(self, request: Request, engine: Engine, record: AttemptMeter) -> None:
        """Count an attempt that has ended in the tenant's limits, and end its span."""
        request.grant.count(*record.billed, choices=request.call.choices)
        spans = request.exchange.context.spans
        if spans is not None:
            waited = request.routing_state.ticket.waited
            spans.attempt_ended(engine, record, waited=waited, error=sys.exception())

    def note_decision(self, request: Request, lease: Lease) -> None:
        """For `florin explain`."""
        state = request.routing_state
        label, engine = state.target.label, lease.state.engine.name
        request_id = request.exchange.request_id
        self.decisions.note(request_id, state.attempts, label, engine, state.pick, state.search)

    def _engine_lost(self, lease: Lease, record: AttemptMeter, *, worked: bool) -> Exception:
        """The error of an attempt whose engine died, hangs, or timed out."""
        if lease.begun:
            return interrupted(lease)
        record.end(Outcome.FAILOVER, billable=False, exact=False, worked=worked)
        return abandoned(lease)

    def _not_resumed(self, exchange: Exchange, error: Exception) -> FlorinError:
        """The last event of a stream that no engine could resume."""
        if isinstance(error, FlorinError) and error.code in _FINAL_EVENTS:
            return error
        self.metrics.stream_resume("failed")
        log.warning("Request %s: stream not resumed: %s", exchange.request_id, error)
        return FlorinError("stream_interrupted", "The engine failed before the answer was complete.")

    async def _note_disconnect(self, exchange: Exchange) -> None:
        if not exchange.arrived:
            await exchange.transport.wait_for_disconnect()
            self.metrics.client_abort("body")
        elif exchange.started:
            self.metrics.client_abort("stream")
        else:
            self.metrics.client_abort("answer" if exchange.context.attempts else "waiting")

    async def _fail(self, exchange: Exchange, error: FlorinError) -> None:
        exchange.context.error = error.code
        if exchange.batch is None:  # batches repeat what fails, and have metrics of their own
            self.metrics.error(error.code)
        await self.meter.settled()
        await exchange.fail(error)


def unmetered() -> FlorinError:
    return FlorinError("metering_unavailable", "Usage cannot be recorded at the moment.", retry_after=5)


def model_not_found(model: str) -> FlorinError:
    shown = model if len(model) <= 200 else model[:200] + "…"
    return FlorinError(
        "model_not_found",
        f"The model '{shown}' does not exist or you do not have access to it.",
        param="model",
    )
