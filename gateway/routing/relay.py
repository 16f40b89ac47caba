"""Relays the engine's response to the client, and counts its tokens.

Whatever a client may take for the end of the response (the last choice's finish reason, the final counts,
[DONE], a complete body, an error) is sent only after the attempt's final record is in the usage log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from adapters.drivers import driver_of
from adapters.registry.catalog import Target
from gateway.dataplane.exchange import Exchange
from gateway.dataplane.request import Call
from gateway.errors import FlorinError
from gateway.metering.attempt import AttemptMeter
from gateway.metering.records import Outcome
from gateway.observability.metrics import Metrics
from gateway.routing.answer_kinds import read_kind
from gateway.routing.engine_answers import EngineFaults, MalformedError, render
from gateway.routing.engine_state import EngineLostError, Lease
from gateway.routing.final_counts import FinalCounts
from gateway.routing.resume import ResumableStream
from gateway.routing.sse import ContinuedRewriter, StreamError, StreamRewriter, Usage
from gateway.routing.translation import TranslatingRewriter, translated
from gateway.routing.upstream import (
    RetryElsewhere,
    abandoned,
    connection_lost,
    read_whole,
    refused,
    trouble_of,
)
from gateway.transport.engine_connection import EngineConnection, ResponseTooLargeError

log = logging.getLogger(__name__)

MOST_HELD = 16 * 1024 * 1024
"""Maximum bytes of events held back: those before the first with content, and the last ones."""


@dataclass(slots=True)
class Relay:
    """Relays one attempt's response. `Delivery.attempt` creates it and calls `stream` or `whole` once.

    Before the client has received anything, a failure is raised as RetryElsewhere. After that, it is raised
    as RetryElsewhere if another engine can resume the stream (see `resume`), otherwise as FlorinError, which
    becomes the last event of the stream. The caller ends record and lease on failure; on success the relay
    ends the record.
    """

    exchange: Exchange
    call: Call
    target: Target
    lease: Lease
    record: AttemptMeter
    faults: EngineFaults
    metrics: Metrics
    answer: ResumableStream | None
    """What the client has received of a stream that another engine can resume; None: not resumable."""
    max_answer_bytes: int
    """Maximum size of a response that is not a stream."""
    cost: Callable[[], str] | None = None
    """What the attempt cost the client, once its record has ended; None: it did not ask."""
    _held: bytearray = field(default_factory=bytearray)
    """Events of a stream that were not sent yet."""
    _counts: FinalCounts | None = None
    """Reads the events of an engine whose streams have no running counts."""

    async def whole(self, response: EngineConnection) -> None:
        """Relay a response that is not a stream, after reading all of it."""
        call, lease = self.call, self.lease
        body = response.arrived(self.max_answer_bytes)
        if body is None:
            try:
                with lease.scope:
                    body = await read_whole(response, self.max_answer_bytes)
            except ResponseTooLargeError as error:
                raise self._malformed(error) from error
        lease.received()
        lease.waits_from = None
        usage, choices = Usage(), call.choices
        generates = choices > 0
        try:
            answer = read_kind(body, call)
            if not call.endpoint.free:
                usage.read(answer.get("usage"), prompts=call.prompts, choices=choices)
                self._observe(usage)
            if generates and "abort" in [choice.get("finish_reason") for choice in answer["choices"]]:
                raise _stopping()
            if call.reply is not None:
                rendered = translated(call.reply, answer, usage)
            else:
                if generates or "model" in answer:
                    answer["model"] = call.model
                rendered = render(answer)
        except MalformedError as error:
            raise self._malformed(error) from error
        if usage.unsound:
            self._check(usage)
        lease.begin()
        self.record.end(Outcome.OK, billable=True, exact=usage.exact)
        if not self.record.written:
            await self.record.logged()
        if self.cost is not None:
            self.exchange.extra_headers.append((b"x-florin-cost", self.cost().encode()))
        await self.exchange.respond(200, rendered)

    async def stream(self, response: EngineConnection) -> None:
        """Relay events as they arrive. Before the first one with content, another engine can start over;
        after that, another may resume."""
        rewriter = self._rewriter()
        engine, call = self.lease.state.engine, self.call
        if engine.driver != "vllm" and not driver_of(engine).capabilities.running_counts:
            self._counts = FinalCounts(prompt=call.estimate, prompts=call.prompts, n=call.n)
            rewriter.estimated = True
            self.record.guess()
        try:
            unsent = await self._pass_on(response, rewriter)
        except _FailedError as failed:
            unsent = await self._save(rewriter, failed)
        finally:
            self._check(rewriter.usage)
        await self._begin(rewriter)
        self.record.end(Outcome.OK, billable=True, exact=rewriter.usage.exact)
        with self.lease.writing():
            await self.record.logged()
            await self.exchange.end_stream(unsent)

    def _rewriter(self) -> StreamRewriter:
        call, answer = self.call, self.answer
        if answer is not None:
            answer.begin()
        if call.reply is not None:
            resumed = answer is not None and answer.before
            return TranslatingRewriter(
                call.reply,
                answer=answer if answer is not None and not answer.obstacle else None,
                so_far=answer if resumed else None,
                hides_reasoning=call.hides_reasoning,
            )
        if answer is not None and answer.before:
            return ContinuedRewriter(
                call.model,
                answer,
                include_usage=call.include_usage,
                continuous_usage=call.continuous_usage,
            )
        return StreamRewriter(
            call.model,
            include_usage=call.include_usage,
            continuous_usage=call.continuous_usage,
            choices=call.n * call.prompts,
            n=call.n,
            hides_reasoning=call.hides_reasoning,
            answer=answer if answer is not None and not answer.obstacle else None,
        )

    async def _pass_on(self, response: EngineConnection, rewriter: StreamRewriter) -> bytes:
        """Relay all events but the last ones, which are returned: they must not be sent before the usage is
        logged. Raises _FailedError."""
        lease = self.lease
        try:
            while True:
                with lease.scope:
                    stopped = await response.deliver(partial(self._forward, rewriter))
                if not stopped:
                    if not rewriter.done:
                        self._end_input(rewriter)
                    break
                if rewriter.aborted:
                    raise _FailedError(_stopping(), self._take())
                await self._begin(rewriter)
                await self._write(self._take())
        except StreamError as error:
            self._observe(rewriter.usage)  # of events before the bad one in the same chunk
            raise _FailedError(self._broken_by(error), self._take() + rewriter.unsent) from error
        except OSError as error:
            if not rewriter.done:
                raise _FailedError(connection_lost(error), self._take()) from error
        except EngineLostError as error:
            raise _FailedError(abandoned(lease), self._take()) from error
        finally:
            lease.waits_from = None
        if not rewriter.done:
            raise _FailedError(connection_lost(ConnectionError("the stream ended early")), self._take())
        return self._take()

    def _forward(self, rewriter: StreamRewriter, data: bytes) -> bool:
        """Forward part of the stream, in the callback that received it. Returns False if the task must act:
        start the response, wait for the client, or fail."""
        lease = self.lease
        if not data.startswith(b":"):  # a comment comes from the engine's HTTP server; its core may hang
            lease.received()
        if self._counts is not None:
            data = self._counts.feed(data)
        out = rewriter.feed(data)
        usage = rewriter.usage
        self.record.observe(usage.prompt, usage.completion, usage.cached, usage.reasoning)
        if rewriter.aborted:
            self._held += out
            return False
        if rewriter.closing or not rewriter.has_content:
            self._held += out
            if len(self._held) > MOST_HELD:
                raise StreamError("too many events without content", malformed=True)
            return True
        if not self._held and lease.begun and self.exchange.write_now(out):
            return True
        self._held += out
        return not self._held

    def _take(self) -> bytes:
        """Take the events that were held back, in order to send them."""
        unsent, self._held = bytes(self._held), bytearray()
        return unsent

    def _end_input(self, rewriter: StreamRewriter) -> None:
        """All has arrived. The last event may lack its blank line, or be no event at all."""
        try:
            self._forward(rewriter, b"\n\n")
        except StreamError as error:
            if not error.malformed:
                raise

    async def _begin(self, rewriter: StreamRewriter) -> None:
        """The first content has arrived: commit to this engine and start the response."""
        lease, answer, exchange = self.lease, self.answer, self.exchange
        if lease.begun:
            return
        if answer is not None and answer.before:
            if rewriter.usage.prompt != answer.read or answer.spoilt:
                raise self._read_otherwise(answer, rewriter.usage.prompt)
        elif answer is not None:
            answer.start(exchange.payload)
        lease.begin()
        lease.resumable = answer is not None and not answer.obstacle
        self.record.first_token()
        if exchange.answering:
            exchange.drop_payload()
            self.metrics.stream_resume("resumed")
            log.info("Request %s: stream resumed on engine %s", exchange.request_id, lease.state.engine.name)
            return
        with lease.writing():
            await exchange.begin_stream()

    async def _write(self, data: bytes) -> None:
        with self.lease.writing():
            await self.exchange.write(data)

    # -- when the engine fails

    async def _save(self, rewriter: StreamRewriter, failed: _FailedError) -> bytes:
        """Handle a failure in the stream. If only the end is missing, return it. Otherwise raises
        RetryElsewhere, if another engine can start over or resume, or FlorinError, the stream's last
        event."""
        trouble, lease, answer = failed.trouble, self.lease, self.answer
        if isinstance(trouble, FlorinError) or not lease.begun:
            raise trouble
        lease.trouble = trouble.reason
        if trouble.suspect:
            lease.mark_suspect(str(trouble))
        if answer is None or trouble.reason == "malformed":
            raise interrupted(lease)
        if rewriter.closing and not rewriter.aborted and answer.head:
            self.metrics.stream_resume("completed")
            return failed.held + rewriter.ending()
        if failed.held:
            await self._write(failed.held)
        done = answer.tokens - answer.before
        hindrance = answer.keep(rewriter.usage.prompt)
        if hindrance:
            self.metrics.stream_resume("not_resumable")
            raise interrupted(lease, hindrance)
        self.record.observe(rewriter.usage.prompt, done, None, 0)  # only what was delivered
        raise trouble

    def _read_otherwise(self, answer: ResumableStream, prompt: int) -> FlorinError:
        self.record.end(Outcome.FAILOVER, billable=False, exact=False)
        self.metrics.stream_resume("refused")
        read = f"the engine reads the delivered text as {prompt - answer.prompt} tokens, not {answer.before}"
        return interrupted(self.lease, answer.spoilt or read)

    def _observe(self, usage: Usage) -> None:
        self.record.observe(usage.prompt, usage.completion, usage.cached, usage.reasoning)

    def _check(self, usage: Usage) -> None:
        """Report impossible token counts. The response is delivered all the same."""
        if usage.unsound:
            self.faults.note(self.lease.state.engine.name, "usage", "impossible token counts")

    def _malformed(self, error: Exception) -> RetryElsewhere:
        self.faults.note(self.lease.state.engine.name, "malformed", str(error))
        return RetryElsewhere("malformed", str(error), suspect=True)

    def _broken_by(self, error: StreamError) -> RetryElsewhere | FlorinError:
        """The exception for an error event, or for a malformed stream."""
        if error.malformed:
            return self._malformed(error)
        trouble = trouble_of(self.lease.state.engine, error.status, error.error)
        if trouble is not None:
            return trouble
        refusal = refused(error.status, error.error, self.target)
        if refusal is not None:
            return interrupted(self.lease) if self.lease.begun else refusal
        return RetryElsewhere("status_5xx", str(error))


class _FailedError(Exception):
    """The engine failed during the stream. `unsent`: events for the client that were not sent yet."""

    def __init__(self, trouble: RetryElsewhere | FlorinError, unsent: bytes) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble
        self.held = unsent


def interrupted(lease: Lease, reason: str = "") -> FlorinError:
    """The stream's last event. `reason`: why it was not resumed."""
    log.warning(
        "Engine %s: stream interrupted%s", lease.state.engine.name, reason and f"; not resumed: {reason}"
    )
    return FlorinError("stream_interrupted", "The engine failed before the answer was complete.")


def _stopping() -> RetryElsewhere:
    return RetryElsewhere(
        "aborted", "the engine is stopping: it aborted the request with a 200", engine_worked=False
    )
