"""The story of one request, top to bottom. Read this first.

    auth → parse → resolve → admit → schedule → ensure resident → relay → meter

A request counts as in flight from before its body is read until it is answered or its client disconnects.
Each step is one call. Errors are raised as FlorinError, and `Lifecycle.run` renders them in one place.
Whatever happens, every attempt that reached an engine ends its lease and its usage record exactly once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from dataclasses import dataclass, field

from adapters.errors import AdaptersError
from adapters.registry.catalog import Catalog, Target
from adapters.store.feed import Follower
from gateway.admission.complexity import Complexity, check
from gateway.admission.in_flight import InFlightLimits
from gateway.admission.overload import AdmissionTicket, LoopWatch
from gateway.config import Settings
from gateway.dataplane.exchange import ClientGoneError, Exchange
from gateway.dataplane.request import CHAT, Call, Endpoint, parse, policy
from gateway.errors import FlorinError, for_tenant
from gateway.fields.rule import FieldPolicy
from gateway.fields.unknown import UnknownFields
from gateway.metering.attempt import AttemptMeter
from gateway.metering.meter import Meter
from gateway.metering.prompt_estimate import prompt_tokens
from gateway.metering.records import Outcome
from gateway.observability.metrics import Metrics
from gateway.routing.engine_faults import EngineFaults
from gateway.routing.pool import Lease
from gateway.routing.relay import Relay, interrupted
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.resume import ResumableStream, ResumeBuffer, obstacle
from gateway.routing.router import Router, RoutingState
from gateway.routing.upstream import RetryElsewhere, Upstream, abandoned
from gateway.tenants.directory import Directory, Key, Role

log = logging.getLogger(__name__)

_UNTOUCHED = {"request_refused", "metering_unavailable"}
"""Errors of attempts on which no engine worked: the client's mistake, or a full usage log."""
_FINAL_EVENTS = {"stream_interrupted", "shutting_down"}
"""Errors that may end a stream."""


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
    upstream: Upstream
    meter: Meter
    metrics: Metrics
    in_flight: InFlightLimits
    complexity: Complexity
    faults: EngineFaults
    cache_secret: bytes
    """Key of the cache salts, which keep each tenant's prefix cache private."""
    loop_watch: LoopWatch = field(default_factory=LoopWatch)
    _salts: dict[str, str] = field(default_factory=dict)
    _unknown: UnknownFields = field(default_factory=UnknownFields)
    _resume_buffer: ResumeBuffer = field(default_factory=ResumeBuffer)
    _policy: FieldPolicy = field(init=False)

    def __post_init__(self) -> None:
        self._policy = policy(self.settings)

    def reconfigure(self, settings: Settings, *, complexity: Complexity) -> None:
        """Apply new settings to future requests."""
        self.settings, self.complexity, self._policy = settings, complexity, policy(settings)

    async def run(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve one request and answer it, whatever happens."""
        try:
            await self.serve(exchange, endpoint)
        except ClientGoneError:
            await exchange.wait_for_disconnect()
            self.metrics.client_abort("body")
        except asyncio.CancelledError:
            if exchange.hung_up:
                sent = "answer" if exchange.context.attempts else "waiting"
                self.metrics.client_abort("stream" if exchange.started else sent)
            else:  # the server is stopping, and the grace period is over
                await self._fail(
                    exchange, FlorinError("shutting_down", "The gateway is shutting down.", retry_after=1)
                )
        except FlorinError as error:
            await self._fail(exchange, error)
        except AdaptersError as error:
            log.info("Request %s: %s", exchange.request_id, error)
            await self._fail(exchange, for_tenant(error))
        except Exception:
            log.exception("Request %s failed", exchange.request_id)
            await self._fail(
                exchange,
                FlorinError("internal_error", f"Internal error in Florin (request {exchange.request_id})."),
            )
        finally:
            exchange.close()

    async def serve(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve one request. Raises FlorinError, AdaptersError and ClientGoneError."""
        exchange.check_overload()  # before anything is read or looked up
        key = authenticate_caller(exchange, self.directory, self.follower)
        context = exchange.context
        exchange.reservation = self.in_flight.reserve(key.id, key.tenant)
        call = self.read(await exchange.body(self.settings.max_body_bytes), endpoint)
        exchange.watch()
        context.stream = call.stream
        target = self.resolve(key, call.model)
        if target.canary is not None:
            target = target.for_call(key.tenant, call.user)
        context.adapter = target.label
        self.admit(exchange, key, target)
        resumable = self.resumable(call)
        # No local variable for the payload: it would keep it in memory as long as the request lasts.
        exchange.keep(call.payload(target.engine_name, self.salt(key.tenant)))
        exchange.close_ticket()
        routing_state = self.router.routing_state(
            target, self.identity(endpoint, key, target, exchange.payload)
        )
        try:
            await self.deliver(exchange, call, key, routing_state, resumable)
        except (FlorinError, AdaptersError) as error:
            if resumable is None or not resumable.resumes or exchange.finished:
                raise
            raise self._not_resumed(exchange, error) from error
        finally:
            if resumable is not None:
                resumable.end()

    async def deliver(
        self,
        exchange: Exchange,
        call: Call,
        key: Key,
        routing_state: RoutingState,
        resumable: ResumableStream | None,
    ) -> None:
        """Make attempts until the answer is delivered. Raises the error for the client, which may already
        have received part of a stream."""
        while True:
            lease = await self.router.place(routing_state)
            try:
                return await self.attempt(exchange, call, key, routing_state, lease, resumable)
            except RetryElsewhere as retry:
                self.metrics.failover(retry.reason)
                if lease.begun and resumable is not None:
                    exchange.keep(resumable.resume())
                    self.router.resume(routing_state)
                self.router.record_failure(routing_state, lease, retry)
            finally:
                lease.end()

    # -- the steps

    def issue_ticket(self) -> AdmissionTicket | FlorinError:
        """A ticket for a request whose headers have arrived, or the error to refuse it with."""
        watch = self.loop_watch
        ticket = watch.issue_ticket()
        return ticket or FlorinError(
            "overloaded", "This worker is overloaded.", retry_after=watch.retry_after
        )

    def read(self, raw: bytes, endpoint: Endpoint) -> Call:
        """Parse the body. Only the call refers to it afterwards, and only until it is sent."""
        check(raw, self.complexity)
        call = parse(endpoint, raw, self._policy)
        call.estimate = prompt_tokens(call.body)
        if call.unknown:
            self._unknown.note(call.unknown_names)
            self.metrics.unknown_fields(call.unknown)
        return call

    def resolve(self, key: Key, model: str) -> Target:
        """Resolve a model name. Foreign and unknown names get the same error."""
        tenant = self.directory.tenants.get(key.tenant)
        target = self.catalog.resolve(tenant.name, model, base_access=tenant.base_access) if tenant else None
        if target is None:
            raise model_not_found(model)
        return target

    def admit(self, exchange: Exchange, key: Key, target: Target) -> None:
        """Refuse the request if its usage cannot be recorded or its queue is too long. Rate limits, budgets
        and the fair queue belong here, too."""
        if not self.meter.accepting:
            self.meter.reject(
                request_id=exchange.request_id,
                tenant=key.tenant,
                key_id=key.id,
                adapter=target.version.adapter if target.version else "",
                base_model=target.base_model,
            )
            raise unmetered()
        self.router.admit(target)

    def identity(self, endpoint: Endpoint, key: Key, target: Target, payload: bytes) -> RequestIdentity:
        """How to recognise the request if engines die of it."""
        group = (key.tenant, target.version.adapter if target.version else "")
        what = f"{endpoint.path} {target.engine_name}"
        return RequestIdentity(group, what=what, payload=payload, key=self.cache_secret)

    def resumable(self, call: Call) -> ResumableStream | None:
        """The record of a stream that lets another engine resume it; None: the call is not to be resumed."""
        if not call.stream or not self.settings.resume_streams:
            return None
        chat = call.endpoint is CHAT
        opens = chat and not call.body.get("continue_final_message")
        return ResumableStream(self._resume_buffer, obstacle(call.body), chat=chat, opens=opens)

    def salt(self, tenant: str) -> str:
        salt = self._salts.get(tenant)
        if salt is None:
            digest = hmac.new(self.cache_secret, tenant.encode(), hashlib.sha256)
            salt = self._salts[tenant] = digest.hexdigest()
        return salt

    async def attempt(
        self,
        exchange: Exchange,
        call: Call,
        key: Key,
        routing_state: RoutingState,
        lease: Lease,
        resumable: ResumableStream | None = None,
    ) -> None:
        """One metered attempt on one engine. Raises RetryElsewhere if another engine can start over because
        the client has received nothing, or can resume what it has received."""
        target, engine = routing_state.target, lease.state.engine
        version = target.version
        record = self.meter.begin(
            request_id=exchange.request_id,
            attempt=routing_state.attempts,
            tenant=key.tenant,
            key_id=key.id,
            adapter=version.adapter if version else "",
            version=f"v{version.number}" if version else "",
            base_model=target.base_model,
            engine=engine.name,
            gpu_type=engine.gpu_type,
            gpu_count=engine.gpu_count,
            n=call.n,
            prompts=call.prompts,
            adapter_loads=routing_state.loads,
            estimate=call.estimate,
            continues=resumable is not None and resumable.resumes > 0,
        )
        context = exchange.context
        context.engine, context.attempts, context.attempt = engine.name, routing_state.attempts, record
        exchange.extra_headers = [
            (b"x-florin-adapter", target.label.encode()),
            (b"x-florin-engine", engine.name.encode()),
        ]
        request_id = f"{exchange.request_id}-{routing_state.attempts}"
        relay = Relay(exchange, call, target, lease, record, self.faults, self.metrics, resumable)
        sent = False
        try:
            await record.logged()  # before the engine hears of it
            if not self.meter.accepting:
                raise unmetered()
            exchange.check_client()
            sent = True
            lease.send(streams=call.stream)
            async with self.upstream.post(
                engine, call.endpoint.path, exchange.payload, request_id, target, context.trace
            ) as response:
                await (relay.stream(response) if call.stream else relay.whole(response))
            self.router.record_answer(lease)
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
            if error.code == "request_refused":
                self.router.record_answer(lease)
            elif sent:
                lease.record_loss()
            raise
        except ClientGoneError:
            record.end(Outcome.CLIENT_ABORT, billable=False, exact=False, worked=False)
            raise
        except asyncio.CancelledError:
            if lease.acknowledge_abandonment():
                raise self._engine_lost(lease, record) from None
            # The client disconnected, or our shutdown cut the request off: then delivery is unknown.
            outcome = Outcome.CLIENT_ABORT if exchange.hung_up else Outcome.ORPHANED
            record.end(outcome, billable=exchange.hung_up, exact=False, worked=sent)
            if sent:
                lease.record_loss()
            raise
        finally:
            record.end(Outcome.ENGINE_ERROR, billable=lease.begun, exact=False)  # no-op if already ended

    def _engine_lost(self, lease: Lease, record: AttemptMeter) -> Exception:
        """The error of an attempt whose engine died, hangs, or timed out."""
        if lease.begun:
            return interrupted(lease)
        record.end(Outcome.FAILOVER, billable=False, exact=False)
        return abandoned(lease)

    def _not_resumed(self, exchange: Exchange, error: Exception) -> FlorinError:
        """The last event of a stream that no engine could resume."""
        if isinstance(error, FlorinError) and error.code in _FINAL_EVENTS:
            return error
        self.metrics.stream_resume("failed")
        log.warning("Request %s: stream not resumed: %s", exchange.request_id, error)
        return FlorinError("stream_interrupted", "The engine failed before the answer was complete.")

    async def _fail(self, exchange: Exchange, error: FlorinError) -> None:
        exchange.context.error = error.code
        self.metrics.error(error.code)
        await self.meter.settled()
        await exchange.fail(error)


USED_UP = (
    "This enrolment token has been used or revoked. If you did not use it, revoke the engine key that it was "
    "exchanged for, then create another token."
)


def authenticate(exchange: Exchange, directory: Directory, follower: Follower) -> Key:
    """The request's key: known, not revoked, not expired. Raises FlorinError."""
    text = exchange.bearer()
    if not text:
        raise FlorinError("missing_api_key", "Send your key as `Authorization: Bearer KEY`.")
    key = directory.find(text)
    if key is None:
        if not follower.connected:  # it may be newer than this worker's snapshot
            raise FlorinError("store_unavailable", "New keys cannot be looked up now.", retry_after=1)
        raise FlorinError("invalid_api_key", "This API key does not exist.")
    exchange.context.tenant, exchange.context.key_id = key.tenant, key.id
    if key.revoked is not None:
        token = key.role is Role.ENROLMENT
        raise FlorinError("revoked_api_key", USED_UP if token else "This API key has been revoked.")
    if directory.expired(key):
        raise FlorinError("expired_api_key", "This key or token has expired.")
    return key


def authenticate_caller(exchange: Exchange, directory: Directory, follower: Follower) -> Key:
    """The request's key, which must have role tenant: other roles cannot call models."""
    key = authenticate(exchange, directory, follower)
    if key.role is not Role.TENANT:
        raise FlorinError(
            "insufficient_role",
            f"Calling models requires a key of role tenant; this key has role {key.role}.",
        )
    return key


def unmetered() -> FlorinError:
    return FlorinError("metering_unavailable", "Usage cannot be recorded at the moment.", retry_after=5)


def model_not_found(model: str) -> FlorinError:
    shown = model if len(model) <= 200 else model[:200] + "…"
    return FlorinError(
        "model_not_found",
        f"The model '{shown}' does not exist or you do not have access to it.",
        param="model",
    )
