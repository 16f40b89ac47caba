"""The story of one request, top to bottom. Read this first.

    auth → parse → resolve → admit → schedule → ensure resident → relay → meter

A request is counted as in flight from before its body is read until it has been answered, or hung up on. Each
step is one call; what can go wrong raises FlorinError, which `Lifecycle.run` renders in one place.
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
from gateway.admission.bounds import Bounds
from gateway.admission.complexity import Complexity, check
from gateway.admission.overload import Beginning, LoopWatch
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
from gateway.routing.resume import ResumableAnswer, ResumeBuffer, obstacle
from gateway.routing.router import Router, RoutingState
from gateway.routing.upstream import RetryElsewhere, Upstream, gone
from gateway.tenants.directory import Directory, Key, Role

log = logging.getLogger(__name__)

_UNTOUCHED = {"request_refused", "metering_unavailable"}
"""Errors of an attempt on which no engine has worked: the client's mistake, and the full log."""
_LAST_WORDS = {"stream_interrupted", "shutting_down"}
"""Errors with which a stream may end."""


@dataclass(slots=True)
class Lifecycle:
    settings: Settings
    directory: Directory
    catalog: Catalog
    follower: Follower
    router: Router
    upstream: Upstream
    meter: Meter
    metrics: Metrics
    bounds: Bounds
    complexity: Complexity
    faults: EngineFaults
    cache_secret: bytes
    """Makes each tenant's prefix cache its own."""
    loop_watch: LoopWatch = field(default_factory=LoopWatch)
    _salts: dict[str, str] = field(default_factory=dict)
    _unknown: UnknownFields = field(default_factory=UnknownFields)
    _room: ResumeBuffer = field(default_factory=ResumeBuffer)
    _policy: FieldPolicy = field(init=False)

    def __post_init__(self) -> None:
        self._policy = policy(self.settings)

    def reconfigure(self, settings: Settings, *, complexity: Complexity) -> None:
        """For requests that come from now on."""
        self.settings, self.complexity, self._policy = settings, complexity, policy(settings)

    async def run(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve one request and answer it, whatever happens."""
        try:
            await self.serve(exchange, endpoint)
        except ClientGoneError:
            await exchange.noticed()
            self.metrics.client_abort("body")
        except asyncio.CancelledError:
            if exchange.hung_up:
                sent = "answer" if exchange.context.attempts else "waiting"
                self.metrics.client_abort("stream" if exchange.started else sent)
            else:  # the server stops, and the grace period is over
                await self._fail(
                    exchange, FlorinError("shutting_down", "The gateway is stopping.", retry_after=1)
                )
        except FlorinError as error:
            await self._fail(exchange, error)
        except AdaptersError as error:
            log.info("request %s: %s", exchange.request_id, error)
            await self._fail(exchange, for_tenant(error))
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await self._fail(
                exchange,
                FlorinError("internal_error", f"Something broke inside Florin ({exchange.request_id})."),
            )
        finally:
            exchange.close()

    async def serve(self, exchange: Exchange, endpoint: Endpoint) -> None:
        exchange.check_overload()  # before anything is read or looked up
        key = authenticate_caller(exchange, self.directory, self.follower)
        context = exchange.context
        exchange.place = self.bounds.enter(key.id, key.tenant)
        call = self.read(await exchange.body(self.settings.max_body_bytes), endpoint)
        exchange.watch()
        context.stream = call.stream
        target = self.resolve(key, call.model)
        if target.canary is not None:
            target = target.for_call(key.tenant, call.user)
        context.adapter = target.label
        self.admit(exchange, key, target)
        answer = self.answer(call)
        exchange.keep(call.payload(target.engine_name, self.salt(key.tenant)))  # a local would keep it too
        exchange.has_begun()
        routing_state = self.router.routing_state(
            target, self.identity(endpoint, key, target, exchange.payload)
        )
        try:
            await self.deliver(exchange, call, key, routing_state, answer)
        except (FlorinError, AdaptersError) as error:
            if answer is None or not answer.resumes or exchange.finished:
                raise
            raise self._not_resumed(exchange, error) from error
        finally:
            if answer is not None:
                answer.end()

    async def deliver(
        self,
        exchange: Exchange,
        call: Call,
        key: Key,
        routing_state: RoutingState,
        answer: ResumableAnswer | None,
    ) -> None:
        """Attempts, until the answer is delivered. Raises what the client is to hear instead of it, or at the
        end of a part of it."""
        while True:
            lease = await self.router.place(routing_state)
            try:
                return await self.attempt(exchange, call, key, routing_state, lease, answer)
            except RetryElsewhere as trouble:
                self.metrics.failover(trouble.reason)
                if lease.begun and answer is not None:
                    exchange.keep(answer.resume())
                    self.router.resume(routing_state)
                self.router.learn(routing_state, lease, trouble)
            finally:
                lease.end()

    # -- the steps

    def begin(self) -> Beginning | FlorinError:
        """A request has come, of which the server knows the headers. FlorinError: it is to be refused."""
        watch = self.loop_watch
        message = "This worker has more to do than it can."
        return watch.begin() or FlorinError("overloaded", message, retry_after=watch.retry_after)

    def read(self, raw: bytes, endpoint: Endpoint) -> Call:
        """The call, of which the body alone is kept, and that only until it is sent."""
        check(raw, self.complexity)
        call = parse(endpoint, raw, self._policy)
        call.estimate = prompt_tokens(call.body)
        if call.unknown:
            self._unknown.note(call.unknown_names)
            self.metrics.unknown_fields(call.unknown)
        return call

    def resolve(self, key: Key, model: str) -> Target:
        """Not yours and not there are one answer."""
        tenant = self.directory.tenants.get(key.tenant)
        target = self.catalog.resolve(tenant.name, model, base_access=tenant.base_access) if tenant else None
        if target is None:
            raise model_not_found(model)
        return target

    def admit(self, exchange: Exchange, key: Key, target: Target) -> None:
        """Limits, budgets and the fair queue have their place here; today, metering and engines refuse."""
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
        """The request, as it will be recognised should an engine die of it."""
        group = (key.tenant, target.version.adapter if target.version else "")
        what = f"{endpoint.path} {target.engine_name}"
        return RequestIdentity(group, what=what, payload=payload, key=self.cache_secret)

    def answer(self, call: Call) -> ResumableAnswer | None:
        """What will be kept of the answer, so that another engine can go on with it."""
        if not call.stream or not self.settings.resume_streams:
            return None
        chat = call.endpoint is CHAT
        opens = chat and not call.body.get("continue_final_message")
        return ResumableAnswer(self._room, obstacle(call.body), chat=chat, opens=opens)

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
        answer: ResumableAnswer | None = None,
    ) -> None:
        """One attempt on one engine, metered. Raises RetryElsewhere while the client has seen nothing of it,
        and where another engine can go on with what it has seen."""
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
            continues=answer is not None and answer.resumes > 0,
        )
        context = exchange.context
        context.engine, context.attempts, context.attempt = engine.name, routing_state.attempts, record
        exchange.extra_headers = [
            (b"x-florin-adapter", target.label.encode()),
            (b"x-florin-engine", engine.name.encode()),
        ]
        request_id = f"{exchange.request_id}-{routing_state.attempts}"
        relay = Relay(exchange, call, target, lease, record, self.faults, self.metrics, answer)
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
            self.router.served(lease)
        except RetryElsewhere as trouble:
            worked = trouble.counts or bool(lease.abandoned)
            if not lease.begun:  # else its part of the answer is delivered: see below
                record.end(Outcome.FAILOVER, billable=False, exact=False, worked=worked)
            if worked:
                lease.lost()
            raise
        except FlorinError as error:
            if error.code in _UNTOUCHED:
                record.end(Outcome.REJECTED, billable=False, exact=False, worked=False)
            if error.code == "request_refused":
                self.router.served(lease)
            elif sent:
                lease.lost()
            raise
        except ClientGoneError:
            record.end(Outcome.CLIENT_ABORT, billable=False, exact=False, worked=False)
            raise
        except asyncio.CancelledError:
            if lease.reclaim():
                raise self._engine_lost(lease, record) from None
            # Hung up on, or cut off by our own shutdown: then nobody can say that it was delivered.
            outcome = Outcome.CLIENT_ABORT if exchange.hung_up else Outcome.ORPHANED
            record.end(outcome, billable=exchange.hung_up, exact=False, worked=sent)
            if sent:
                lease.lost()
            raise
        finally:
            record.end(Outcome.ENGINE_ERROR, billable=lease.begun, exact=False)  # unless it has ended

    def _engine_lost(self, lease: Lease, record: AttemptMeter) -> Exception:
        """The engine was found dead, or hangs, or has left this attempt alone for too long."""
        if lease.begun:
            return interrupted(lease)
        record.end(Outcome.FAILOVER, billable=False, exact=False)
        return gone(lease)

    def _not_resumed(self, exchange: Exchange, error: Exception) -> FlorinError:
        """What the client of a stream hears when no engine has gone on with it."""
        if isinstance(error, FlorinError) and error.code in _LAST_WORDS:
            return error
        self.metrics.stream_resume("failed")
        log.warning("request %s: no engine goes on with its stream: %s", exchange.request_id, error)
        return FlorinError("stream_interrupted", "The engine failed before the answer was whole.")

    async def _fail(self, exchange: Exchange, error: FlorinError) -> None:
        exchange.context.error = error.code
        self.metrics.error(error.code)
        await self.meter.settled()
        await exchange.fail(error)


USED_UP = (
    "This enrolment token has been used, or withdrawn. If it was not you who used it, revoke the key of role "
    "engine that it became; then make another token."
)


def authenticate(exchange: Exchange, directory: Directory, follower: Follower) -> Key:
    """The key that the request carries, known and not revoked."""
    text = exchange.bearer()
    if not text:
        raise FlorinError("missing_api_key", "Send your key as `Authorization: Bearer KEY`.")
    key = directory.find(text)
    if key is None:
        if not follower.connected:  # it may have been made since this worker last heard
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
    """The key of a tenant's application: the other roles do not call models."""
    key = authenticate(exchange, directory, follower)
    if key.role is not Role.TENANT:
        raise FlorinError(
            "insufficient_role", f"Models are called with a tenant's key; this one's role is {key.role}."
        )
    return key


def unmetered() -> FlorinError:
    return FlorinError("metering_unavailable", "Usage cannot be recorded now.", retry_after=5)


def model_not_found(model: str) -> FlorinError:
    shown = model if len(model) <= 200 else model[:200] + "…"
    return FlorinError(
        "model_not_found",
        f"The model '{shown}' does not exist or you do not have access to it.",
        param="model",
    )
