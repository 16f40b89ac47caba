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
import time
from dataclasses import dataclass, field

from adapters.catalog import Catalog, Target
from adapters.errors import AdaptersError
from adapters.feed import Follower
from gateway.admission.bounds import Bounds
from gateway.admission.complexity import Complexity, check
from gateway.call import Call, Endpoint, parse, policy
from gateway.config import Settings
from gateway.errors import FlorinError, translate
from gateway.exchange import ClientGoneError, Exchange
from gateway.fields.rule import Policy
from gateway.fields.unknown import UnknownFields
from gateway.metering.attempt import AttemptMeter
from gateway.metering.estimate import prompt_tokens
from gateway.metering.meter import Meter
from gateway.metering.records import Outcome
from gateway.metrics import Metrics
from gateway.routing.faults import EngineFaults
from gateway.routing.identity import RequestIdentity
from gateway.routing.pool import Lease
from gateway.routing.relay import Relay, interrupted
from gateway.routing.router import Journey, Router
from gateway.routing.upstream import GoElsewhere, Upstream
from gateway.tenants.directory import Directory, Key, Role

log = logging.getLogger(__name__)

_UNTOUCHED = {"request_refused", "metering_unavailable"}
"""Errors of an attempt on which no engine has worked: the client's mistake, and the full log."""


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
    _salts: dict[str, str] = field(default_factory=dict)
    _unknown: UnknownFields = field(default_factory=UnknownFields)
    _policy: Policy = field(init=False)

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
            pass
        except asyncio.CancelledError:
            if not exchange.hung_up:  # the server stops, and the grace period is over
                await self._fail(
                    exchange, FlorinError("shutting_down", "The gateway is stopping.", retry_after=1)
                )
        except FlorinError as error:
            await self._fail(exchange, error)
        except AdaptersError as error:
            await self._fail(exchange, translate(error))
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await self._fail(
                exchange,
                FlorinError("internal_error", f"Something broke inside Florin ({exchange.request_id})."),
            )
        finally:
            exchange.close()

    async def serve(self, exchange: Exchange, endpoint: Endpoint) -> None:
        key = authenticate_caller(exchange, self.directory, self.follower)
        exchange.place = self.bounds.enter(key.id, key.tenant)
        call = self.read(await exchange.body(self.settings.max_body_bytes), endpoint)
        exchange.watch()
        target = self.resolve(key, call.model)
        if target.canary is not None:
            target = target.for_call(key.tenant, call.user)
        self.admit(exchange, key, target)
        exchange.keep(call.payload(target.engine_name, self.salt(key.tenant)))  # a local would keep it too
        journey = self.router.journey(target, self.identity(endpoint, key, target, exchange.payload))
        while True:
            lease = await self.router.place(journey)
            try:
                return await self.attempt(exchange, call, key, journey, lease)
            except GoElsewhere as trouble:
                self.metrics.failover(trouble.reason)
                self.router.learn(journey, lease, trouble)
            finally:
                lease.end()

    # -- the steps

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
        """Limits, budgets and the fair queue have their place here; today, only metering can refuse."""
        if not self.meter.accepting:
            self.meter.reject(
                request_id=exchange.request_id,
                tenant=key.tenant,
                key_id=key.id,
                adapter=target.version.adapter if target.version else "",
                base_model=target.base_model,
            )
            raise unmetered()

    def identity(self, endpoint: Endpoint, key: Key, target: Target, payload: bytes) -> RequestIdentity:
        """The request, as it will be recognised should an engine die of it."""
        group = (key.tenant, target.version.adapter if target.version else "")
        what = f"{endpoint.path} {target.engine_name}"
        return RequestIdentity(group, what=what, payload=payload, key=self.cache_secret)

    def salt(self, tenant: str) -> str:
        salt = self._salts.get(tenant)
        if salt is None:
            digest = hmac.new(self.cache_secret, tenant.encode(), hashlib.sha256)
            salt = self._salts[tenant] = digest.hexdigest()
        return salt

    async def attempt(self, exchange: Exchange, call: Call, key: Key, journey: Journey, lease: Lease) -> None:
        """One attempt on one engine, metered. Raises GoElsewhere while the client has seen nothing of it."""
        target, engine = journey.target, lease.state.engine
        version = target.version
        record = self.meter.begin(
            request_id=exchange.request_id,
            attempt=journey.attempts,
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
            adapter_loads=journey.loads,
            estimate=call.estimate,
        )
        exchange.extra_headers = [
            (b"x-florin-adapter", target.label.encode()),
            (b"x-florin-engine", engine.name.encode()),
        ]
        request_id = f"{exchange.request_id}-{journey.attempts}"
        relay = Relay(exchange, call, target, lease, record, self.faults)
        sent = False
        try:
            await record.logged()  # before the engine hears of it
            if not self.meter.accepting:
                raise unmetered()
            sent = True
            async with self.upstream.post(
                engine, call.endpoint.path, exchange.payload, request_id, target
            ) as response:
                await (relay.stream(response) if call.stream else relay.answer(response))
            self.router.served(lease)
        except GoElsewhere as trouble:
            record.end(Outcome.FAILOVER, billable=False, exact=False, worked=trouble.counts)
            if trouble.counts:
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
        except asyncio.CancelledError:
            if lease.abandoned and _uncancel() == 0:  # else somebody else has cancelled it too
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
        """The pool found the engine dead while this attempt waited for it."""
        if lease.begun:
            return interrupted(lease)
        record.end(Outcome.FAILOVER, billable=False, exact=False)
        return GoElsewhere("down", f"{lease.state.engine.name} was found dead", counts=False)

    async def _fail(self, exchange: Exchange, error: FlorinError) -> None:
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
    if key.revoked is not None:
        token = key.role is Role.ENROLMENT
        raise FlorinError("revoked_api_key", USED_UP if token else "This API key has been revoked.")
    if key.expires is not None and key.expires <= time.time_ns() // 1000:
        raise FlorinError("expired_api_key", "This key or token has expired.")
    return key


def authenticate_caller(exchange: Exchange, directory: Directory, follower: Follower) -> Key:
    """The key of a tenant's application: the other roles do not call models."""
    key = authenticate(exchange, directory, follower)
    if key.role is not Role.TENANT:
        raise FlorinError(
            "role_too_small", f"Models are called with a tenant's key; this one's role is {key.role}."
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


def _uncancel() -> int:
    """The cancellation was a message from the pool, and it has arrived. Returns how many are left."""
    task = asyncio.current_task()
    assert task is not None
    return task.uncancel()
