"""The story of one request, top to bottom. Read this first.

    auth → parse → resolve → limit → admit → schedule → ensure resident → relay → meter

Each step is one call. `Lifecycle.serve` takes a request as far as `admit`, and hands it to `Delivery`
(`gateway.delivery`), which takes the other steps once for each attempt on an engine.

A request counts as in flight from before its body is read until it is answered or its client disconnects.
Errors are raised as FlorinError, or by `adapters` as an AdaptersError; `Lifecycle.run` renders them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adapters.errors import AdaptersError
from adapters.registry.catalog import Catalog
from adapters.store.feed import Follower
from gateway.admission.complexity import Complexity, check
from gateway.admission.fair_queue.fleet_queue import BATCH
from gateway.admission.in_flight import InFlightLimits
from gateway.admission.overload import AdmissionTicket, LoopWatch, Sender
from gateway.call_plans import CallPlan, CallPlans
from gateway.config import Settings
from gateway.dataplane.exchange import ClientGoneError, Exchange
from gateway.dataplane.keep_alives import KeepAlives
from gateway.dataplane.request import Call, Endpoint, parse, policy
from gateway.delivery import Delivery, Request, unmetered
from gateway.errors import FlorinError, for_tenant
from gateway.fields.rule import UnknownFields
from gateway.metering.meter import Meter
from gateway.metering.prompt_estimate import CHARACTERS_PER_TOKEN, prompt_tokens
from gateway.metering.records import Labels
from gateway.observability.metrics import Metrics
from gateway.observability.tracing import Tracing
from gateway.routing.canary_counts import CanaryCounts
from gateway.routing.prefixes import blocks_of
from gateway.routing.queue_ticket import queue_ticket
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.resume import ResumableStream, ResumeBuffer, obstacle
from gateway.routing.retries import Retries
from gateway.routing.router import Router
from gateway.tenants.activity import Activity
from gateway.tenants.authentication import authenticate_caller
from gateway.tenants.cache_salts import CacheSalts
from gateway.tenants.directory import Directory, Key
from gateway.tenants.limits.grant import UNLIMITED, Grant
from gateway.tenants.limits.limiter import Limiter
from gateway.tenants.request_policy import RequestPolicies
from gateway.tenants.terms import DEFAULT_POLICY

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Lifecycle:
    """Serves the requests of one worker's data plane.

    `run` is the entry point, called once per request in that request's own task. It always answers the
    client and never raises. `serve` is the list of its steps. Everything runs on the worker's event loop.
    """

    settings: Settings
    directory: Directory
    catalog: Catalog
    follower: Follower
    router: Router
    retries: Retries
    delivery: Delivery
    meter: Meter
    metrics: Metrics
    activity: Activity
    in_flight: InFlightLimits
    limiter: Limiter
    complexity: Complexity
    canaries: CanaryCounts
    keep_alives: KeepAlives
    cache_secret: bytes
    """The installation's own. It recognizes requests that engines die of, and without FLORIN_CACHE_SECRET it
    makes the cache salts, which keep the prefix cache of each tenant or group of tenants private."""
    tracing: Tracing | None = None
    """None: no spans are made."""
    loop_watch: LoopWatch = field(default_factory=LoopWatch)
    _unknown: UnknownFields = field(default_factory=UnknownFields)
    _resume_buffer: ResumeBuffer = field(default_factory=ResumeBuffer)
    plans: CallPlans = field(init=False)
    _policies: RequestPolicies = field(init=False)
    _salts: CacheSalts = field(init=False)

    def __post_init__(self) -> None:
        self.plans = CallPlans(self.directory, self.catalog, self.router)
        self._policies = RequestPolicies(policy(self.settings))
        self._salts = CacheSalts(self._salt_secret(self.settings))

    def _salt_secret(self, settings: Settings) -> bytes:
        return settings.cache_secret.encode() or self.cache_secret

    def reconfigure(self, settings: Settings, *, complexity: Complexity) -> None:
        """Apply new settings to future requests."""
        self.settings, self.complexity = settings, complexity
        self.delivery.max_answer_bytes = settings.max_answer_bytes
        self.keep_alives.interval = settings.keep_alive_interval
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
        self.limiter.check_rate(key)  # before the body costs anything
        context, batch = exchange.context, exchange.batch is not None
        exchange.reservation = self.in_flight.reserve(key.id, key.tenant)
        call = self.parse(await exchange.body(self.settings.max_body_bytes), endpoint, key.tenant)
        exchange.watch()  # from here on, a disconnect cancels `exchange.scope`
        context.stream = call.stream
        if call.reply is not None:
            exchange.error_events = call.reply.fail
        plan = self.plans.of(key, endpoint, call.model)
        if plan.canary is not None:
            plan = plan.for_call(call.user)
        context.adapter, context.model = plan.label, call.model
        requires = self.required_labels(plan, call)
        call.context = plan.context
        call.sold = plan.sold._replace(batch=True) if batch else plan.sold
        grant = self.limiter.enter(plan.tenant, key, call, exchange.headers)
        if grant is None:
            grant = await self.wait_for_grant(exchange, key, call)
        if grant is not UNLIMITED:
            exchange.grant = grant
        labels = Labels(call.end_user, call.tag, plan.cost_centre)
        self.admit(exchange, plan, labels)
        resumable = self.resumable(call)
        salt = self._salts.of(plan.cache_owner)
        # No local variable for the payload: it would keep it in memory as long as the request lasts.
        exchange.keep(call.payload(plan.engine_name, salt))
        exchange.close_admission_ticket()
        routing_state = self.retries.begin(
            plan.target,
            RequestIdentity(plan.group, what=plan.what, payload=exchange.payload, key=self.cache_secret),
            requires=requires,
            prompt_tokens=call.estimate + call.tools_size // CHARACTERS_PER_TOKEN,
            blocks=blocks_of(exchange.payload, salt) if call.choices else (),
            ticket=queue_ticket(plan.tenant, BATCH if batch else plan.level),
        )
        if (compared := self.canaries.begin(plan.target, batch=batch)) is not None:
            routing_state.compared = (compared,)
        request = Request(exchange, plan, call, labels, resumable, routing_state, grant)
        if call.stream:
            self.keep_alives.watch(exchange, [plan.header, *grant.headers])
        try:
            await self.delivery.deliver(request)
        finally:
            if call.stream:
                self.keep_alives.forget(exchange)

    # -- the steps

    def issue_ticket(self, sender: Callable[[], Sender]) -> AdmissionTicket | FlorinError:
        """A ticket for a request whose headers have arrived, or the error to refuse it with."""
        watch = self.loop_watch
        ticket = watch.issue_ticket(sender() if watch.overloaded else None)
        return ticket or FlorinError(
            "overloaded", "This worker is overloaded.", retry_after=watch.retry_after
        )

    def parse(self, raw: bytes, endpoint: Endpoint, tenant: str) -> Call:
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

    def required_labels(self, plan: CallPlan, call: Call) -> Mapping[str, str]:
        """The labels that an engine must have. Raises FlorinError if no engine of the fleet will do."""
        if not call.scored:
            return plan.requires
        return self.router.require_scoring(plan.target, plan.requires, call.scored)

    async def wait_for_grant(self, exchange: Exchange, key: Key, call: Call) -> Grant:
        """Reserve what the request needs of all limits that apply to it, or refuse it."""
        with exchange.scope:
            return await self.limiter.wait(key, call, exchange.headers)

    def admit(self, exchange: Exchange, plan: CallPlan, labels: Labels) -> None:
        """Refuse the request if its usage cannot be recorded."""
        if not self.meter.accepting:
            self.meter.reject(
                request_id=exchange.request_id,
                tenant=plan.key.tenant,
                key_id=plan.key.id,
                adapter=plan.group[1],
                base_model=plan.target.base_model,
                labels=labels,
            )
            raise unmetered()

    def resumable(self, call: Call) -> ResumableStream | None:
        """The record of a stream that lets another engine resume it; None: the call is not to be resumed."""
        if not call.stream or not self.settings.resume_streams:
            return None
        chat = call.endpoint.chat
        opens = chat and not call.body.get("continue_final_message")
        return ResumableStream(self._resume_buffer, obstacle(call.body), chat=chat, opens=opens)

    async def _note_disconnect(self, exchange: Exchange) -> None:
        if not exchange.arrived:
            await exchange.transport.wait_for_disconnect()
            self.metrics.client_abort("body")
        elif exchange.answering:
            self.metrics.client_abort("stream")
        else:
            self.metrics.client_abort("answer" if exchange.context.attempts else "waiting")

    async def _fail(self, exchange: Exchange, error: FlorinError) -> None:
        exchange.context.error = error.code
        if exchange.batch is None:  # batches repeat what fails, and have metrics of their own
            self.metrics.error(error.code)
        await self.meter.settled()
        await exchange.fail(error)
