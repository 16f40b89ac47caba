"""The engine's answer on its way to the client, counted as it passes.

Whatever a client may take for the end of its answer (the last choice's finish reason, the closing counts,
[DONE], a whole body, an error) goes out only when the attempt's final is in the usage log.

Everything here happens within one attempt. While the client has seen nothing, trouble is RetryElsewhere.
After that it is RetryElsewhere where another engine can go on (see `resume`), or else an error event, the
last of the stream.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import aiohttp

from adapters.registry.catalog import Target
from gateway.dataplane.exchange import Exchange
from gateway.dataplane.request import Call
from gateway.errors import FlorinError
from gateway.metering.attempt import AttemptMeter
from gateway.metering.records import Outcome
from gateway.observability.metrics import Metrics
from gateway.routing.engine_answers import MalformedError, read_answer, render
from gateway.routing.engine_faults import EngineFaults
from gateway.routing.pool import Lease
from gateway.routing.resume import ResumableAnswer
from gateway.routing.sse import ContinuedRewriter, StreamError, StreamRewriter, Usage
from gateway.routing.upstream import BROKEN, RetryElsewhere, died, gone, read_whole, refused

log = logging.getLogger(__name__)

MOST_HELD = 16 * 1024 * 1024
"""Bytes of events that wait here: before the first that says something, and after the last."""


@dataclass(slots=True)
class Relay:
    exchange: Exchange
    call: Call
    target: Target
    lease: Lease
    record: AttemptMeter
    faults: EngineFaults
    metrics: Metrics
    answer: ResumableAnswer | None = None
    """What the client has of a stream that another engine may go on with."""

    async def whole(self, response: aiohttp.ClientResponse) -> None:
        """A whole answer: nothing reaches the client before all of it is here."""
        call = self.call
        body = await read_whole(response)
        self.lease.hear()
        self.lease.waits_from = None
        usage = Usage()
        try:
            answer = read_answer(body, choices=call.n * call.prompts)
            usage.read(answer.get("usage"), prompts=call.prompts, choices=call.n * call.prompts)
            self._observe(usage)
            if any(choice.get("finish_reason") == "abort" for choice in answer["choices"]):
                raise _stopping()
            answer["model"] = call.model
            rendered = render(answer)
        except MalformedError as error:
            raise self._malformed(error) from error
        self._check(usage)
        self.lease.begin()
        self.record.end(Outcome.OK, billable=True, exact=usage.exact)
        await self.record.logged()
        await self.exchange.respond(200, rendered)

    async def stream(self, response: aiohttp.ClientResponse) -> None:
        """Events as they come. Until the first that says something the request can still go elsewhere; after
        that another engine may go on where this one fails (see `resume`)."""
        rewriter = self._rewriter()
        try:
            held = await self._pass_on(response, rewriter)
        except _FailedError as failed:
            held = await self._save(rewriter, failed)
        finally:
            self._check(rewriter.usage)
        await self._begin(rewriter)
        self.record.end(Outcome.OK, billable=True, exact=rewriter.usage.exact)
        with self.lease.undisturbed():
            await self.record.logged()
            await self.exchange.end_stream(held)

    def _rewriter(self) -> StreamRewriter:
        call, answer = self.call, self.answer
        if answer is not None:
            answer.begin()
            if answer.before:
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
            answer=answer if answer is not None and not answer.obstacle else None,
        )

    async def _pass_on(self, response: aiohttp.ClientResponse, rewriter: StreamRewriter) -> bytes:
        """All but the end, which is returned: nobody sees it before it is in the log. Raises _FailedError."""
        lease, held = self.lease, b""
        try:
            while data := await response.content.readany():
                lease.hear()
                held += rewriter.feed(data)
                self._observe(rewriter.usage)
                if rewriter.aborted:
                    raise _FailedError(_stopping(), held)
                if rewriter.closing or not rewriter.has_content:
                    if len(held) > MOST_HELD:
                        raise StreamError("the engine says nothing, without end", malformed=True)
                    continue
                if held:
                    await self._begin(rewriter)
                    out, held = held, b""
                    await self._write(out)
                    if lease.abandoned:
                        raise _FailedError(gone(lease), b"")
        except StreamError as error:
            self._observe(rewriter.usage)  # of events that came in one piece with the bad one
            raise _FailedError(self._broken_by(error), held + rewriter.unsent) from error
        except BROKEN as error:
            if not rewriter.done:
                raise _FailedError(died(error), held) from error
        except asyncio.CancelledError:
            if not lease.reclaim():
                raise
            raise _FailedError(gone(lease), held) from None
        finally:
            lease.waits_from = None
        if not rewriter.done:
            raise _FailedError(died(ConnectionError("the stream ended early")), held)
        return held

    async def _begin(self, rewriter: StreamRewriter) -> None:
        """The first event is here: from now on the answer is this engine's."""
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
        if exchange.started:
            exchange.let_go()
            self.metrics.stream_resume("resumed")
            log.info("request %s goes on on engine %s", exchange.request_id, lease.state.engine.name)
            return
        with lease.undisturbed():
            await exchange.begin_stream()

    async def _write(self, data: bytes) -> None:
        """Not to be interrupted: what an engine's end finds here is either delivered or not."""
        with self.lease.undisturbed():
            await self.exchange.write(data)

    # -- when the engine fails

    async def _save(self, rewriter: StreamRewriter, failed: _FailedError) -> bytes:
        """The end of the answer, if only that is missing. Otherwise raises RetryElsewhere, for another engine
        to begin or to go on, or FlorinError, the stream's last event."""
        trouble, lease, answer = failed.trouble, self.lease, self.answer
        if isinstance(trouble, FlorinError) or not lease.begun:
            raise trouble
        if trouble.suspect:
            lease.doubt(str(trouble))
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
        self.record.observe(rewriter.usage.prompt, done, None, 0)  # what was delivered, and no more
        raise trouble

    def _read_otherwise(self, answer: ResumableAnswer, prompt: int) -> FlorinError:
        self.record.end(Outcome.FAILOVER, billable=False, exact=False)
        self.metrics.stream_resume("refused")
        read = f"what was delivered is read as {prompt - answer.prompt} tokens, not {answer.before}"
        return interrupted(self.lease, answer.spoilt or read)

    def _observe(self, usage: Usage) -> None:
        self.record.observe(usage.prompt, usage.completion, usage.cached, usage.reasoning)

    def _check(self, usage: Usage) -> None:
        """The customer is not punished for counts that cannot be: the answer is delivered."""
        if usage.unsound:
            self.faults.note(self.lease.state.engine.name, "usage", "token counts that cannot be")

    def _malformed(self, error: Exception) -> RetryElsewhere:
        self.faults.note(self.lease.state.engine.name, "malformed", str(error))
        return RetryElsewhere("malformed", str(error), suspect=True)

    def _broken_by(self, error: StreamError) -> RetryElsewhere | FlorinError:
        """The engine said so in its stream, or sent what is none."""
        if error.malformed:
            return self._malformed(error)
        refusal = refused(error.status, error.error, self.target)
        if refusal is not None:
            return interrupted(self.lease) if self.lease.begun else refusal
        return RetryElsewhere("status_5xx", str(error))


class _FailedError(Exception):
    """The engine failed in its stream. `held`: what of it is for the client, and was not sent yet."""

    def __init__(self, trouble: RetryElsewhere | FlorinError, held: bytes) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble
        self.held = held


def interrupted(lease: Lease, why: str = "") -> FlorinError:
    """The stream's last event. `why` nobody goes on with it."""
    log.warning("engine %s cut a stream short%s", lease.state.engine.name, why and f"; not resumed: {why}")
    return FlorinError("stream_interrupted", "The engine failed before the answer was whole.")


def _stopping() -> RetryElsewhere:
    return RetryElsewhere("aborted", "the engine is stopping, and says so with a 200", counts=False)
