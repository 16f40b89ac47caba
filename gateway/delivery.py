"""From an admitted request to its answer: attempts on engines, one after the other, until one has answered.

    schedule → ensure resident → relay → meter

The second half of the story that `gateway.lifecycle` begins.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from adapters.errors import AdaptersError
from adapters.model import GENERATE, Engine
from gateway.call_plans import CallPlan
from gateway.dataplane.exchange import ClientGoneError, Exchange
from gateway.dataplane.request import ENGINES_REFUSALS, Call
from gateway.errors import FlorinError
from gateway.metering.attempt import AttemptMeter
from gateway.metering.held_finals import HeldFinals
from gateway.metering.meter import Meter
from gateway.metering.records import BATCH, Labels, Outcome
from gateway.observability.metrics import Metrics
from gateway.routing.decision_log import DecisionLog
from gateway.routing.engine_answers import EngineFaults
from gateway.routing.engine_state import EngineLostError, EngineState, Lease
from gateway.routing.relay import Relay, interrupted
from gateway.routing.resume import ResumableStream
from gateway.routing.retries import Retries
from gateway.routing.router import Router
from gateway.routing.routing_state import RoutingState
from gateway.routing.upstream import RetryElsewhere, Upstream, abandoned, resumes_on
from gateway.tenants.limits.grant import UNLIMITED, Grant
from gateway.tenants.limits.needs import Prices
from gateway.units import decimal_text

log = logging.getLogger(__name__)

_UNTOUCHED = {*ENGINES_REFUSALS, "metering_unavailable"}
"""Errors of attempts on which no engine worked: the client's mistake, or a full usage log."""
_FINAL_EVENTS = {"stream_interrupted", "shutting_down"}
"""Errors that may end a stream."""


@dataclass(slots=True)
class Request:
    """One request that has been admitted."""

    exchange: Exchange
    plan: CallPlan
    call: Call
    labels: Labels
    resumable: ResumableStream | None
    """Records a stream so that another engine can resume it; None: the request is not to be resumed."""
    routing_state: RoutingState
    grant: Grant


@dataclass(slots=True)
class Delivery:
    """Delivers the answers of one worker's data plane. `deliver` is the entry point.

    Invariants: `attempt` ends its usage record on every path, `deliver` ends each lease, and nothing is sent
    to an engine before the attempt is in the usage log. Everything runs on the worker's event loop.
    """

    router: Router
    retries: Retries
    upstream: Upstream
    meter: Meter
    metrics: Metrics
    faults: EngineFaults
    decisions: DecisionLog
    max_answer_bytes: int
    prices: Prices
    authenticate: Callable[[Exchange], object]
    """Raises FlorinError for a request whose key has been revoked, or has expired, while it waited."""

    async def deliver(self, request: Request) -> None:
        """Make attempts until the answer is delivered. Raises FlorinError and AdaptersError for the client,
        which may already have received part of a stream, and ClientGoneError."""
        exchange, routing_state, resumable = request.exchange, request.routing_state, request.resumable
        try:
            while True:
                lease = self.router.place_at_once(routing_state)
                waited = lease is None
                if lease is None:
                    with exchange.scope:
                        lease = await self.router.place(routing_state)
                lease.scope.within = exchange.scope
                self.note_decision(request, lease)
                try:
                    if waited:
                        self.authenticate(exchange)
                    return await self.attempt(request, lease)
                except RetryElsewhere as retry:
                    self.metrics.failover(retry.reason)
                    lease.trouble = retry.reason
                    if lease.begun and resumable is not None:
                        exchange.keep(resumable.resume())
                        self.retries.resume(routing_state)
                    self.retries.record_failure(routing_state, lease, retry)
                finally:
                    for compared in routing_state.compared:
                        compared.ended(lease, answers=request.call.choices, loads=routing_state.loads)
                    lease.end()
        except (FlorinError, AdaptersError) as error:
            if resumable is None or not resumable.resumes or exchange.finished:
                raise
            raise self._not_resumed(exchange, error) from error
        finally:
            if resumable is not None:
                resumable.end()

    async def attempt(self, request: Request, lease: Lease) -> None:
        """One metered attempt on one engine. Raises RetryElsewhere if another engine can start over because
        the client has received nothing, or can resume what it has received."""
        exchange, call, routing_state = request.exchange, request.call, request.routing_state
        exchange.check_client()  # while nothing is recorded
        target, engine, context = routing_state.target, lease.state.engine, exchange.context
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
        record = self.begin_record(request, lease.state)
        context.engine, context.attempts, context.attempt = engine.name, routing_state.attempts, record
        exchange.extra_headers = [
            request.plan.header,
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
            max_answer_bytes=self.max_answer_bytes,
            cost=self.cost_of(request, engine, record),
        )
        try:
            with exchange.scope:
                if not record.written:
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

    def begin_record(self, request: Request, state: EngineState) -> AttemptMeter:
        """The usage record of an attempt on this engine."""
        call, routing_state, resumable = request.call, request.routing_state, request.resumable
        version, batch, engine = routing_state.target.version, request.exchange.batch, state.engine
        record = self.meter.begin(
            request_id=request.exchange.request_id,
            attempt=routing_state.attempts,
            tenant=request.plan.key.tenant,
            key_id=request.plan.key.id,
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
            labels=request.labels,
            service_tier=BATCH if batch else "",
            task="" if call.endpoint.task in {None, GENERATE} else str(call.endpoint.task),
            held_finals=cast("HeldFinals", batch.finals) if batch else None,
        )
        if call.choices and not call.stream:
            record.reports_at_end(state.answer_speed, most=call.most_output, context=engine.max_model_len)
        return record

    def cost_of(self, request: Request, engine: Engine, record: AttemptMeter) -> Callable[[], str] | None:
        """For the header `x-florin-cost`, which a client asks for by sending it; None: it did not, or its
        tenant has no rate card."""
        if not any(name == b"x-florin-cost" for name, _ in request.exchange.headers):
            return None
        tenant = request.plan.tenant.name
        currency = self.prices.currency(tenant)
        price = self.prices.of(tenant, request.call.sold, engine.gpu_type)
        if currency is None or price is None:
            return None

        def cost() -> str:
            reasoning, requests = record.billed_besides
            billionths = price.cost(*record.billed, reasoning=reasoning, requests=requests)
            return f"{decimal_text(billionths, 9)} {currency}"

        return cost

    def count(self, request: Request, engine: Engine, record: AttemptMeter) -> None:
        """Count an attempt that has ended in the tenant's limits, and end its span."""
        if request.grant is not UNLIMITED:
            reasoning, requests = record.billed_besides
            request.grant.count(
                *record.billed,
                choices=request.call.choices,
                reasoning=reasoning,
                requests=requests,
                gpu_type=engine.gpu_type,
            )
        spans = request.exchange.context.spans
        if spans is not None:
            waited = request.routing_state.ticket.waited
            spans.attempt_ended(engine, record, waited=waited, error=sys.exception())

    def note_decision(self, request: Request, lease: Lease) -> None:
        """For `florin explain`."""
        state = request.routing_state
        label, engine = request.plan.label, lease.state.engine.name
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


def unmetered() -> FlorinError:
    return FlorinError("metering_unavailable", "Usage cannot be recorded at the moment.", retry_after=5)
