"""The engine's answer on its way to the client, counted as it passes.

Whatever a client may take for the end of its answer (the last choice's finish reason, the closing counts,
[DONE], a whole body, an error) goes out only when the attempt's final is in the usage log.

Everything here happens within one attempt. While the client has seen nothing, trouble is GoElsewhere; after
that it is an error event, the last of the stream.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import aiohttp

from adapters.catalog import Target
from gateway.call import Call
from gateway.errors import FlorinError
from gateway.exchange import Exchange
from gateway.metering.attempt import AttemptMeter
from gateway.metering.records import Outcome
from gateway.routing.answers import MalformedError, read_answer, render
from gateway.routing.faults import EngineFaults
from gateway.routing.pool import Lease
from gateway.routing.stream import StreamError, StreamRewriter, Usage
from gateway.routing.upstream import BROKEN, GoElsewhere, died, read_whole, refused

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

    async def answer(self, response: aiohttp.ClientResponse) -> None:
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
        """Events as they come. Until the first that says something the request can still go elsewhere."""
        call, lease, exchange = self.call, self.lease, self.exchange
        rewriter = StreamRewriter(
            call.model,
            include_usage=call.include_usage,
            continuous_usage=call.continuous_usage,
            choices=call.n * call.prompts,
            n=call.n,
        )
        held = b""
        try:
            while data := await response.content.readany():
                lease.hear()
                held += rewriter.feed(data)
                self._observe(rewriter.usage)
                if rewriter.aborted:
                    raise interrupted(lease) if lease.begun else _stopping()
                if rewriter.closing or not rewriter.has_content:
                    if len(held) > MOST_HELD:
                        raise StreamError("the engine says nothing, without end", malformed=True)
                    continue  # nobody sees an end before it is in the log
                if held:
                    if not lease.begun:
                        self._begin()
                        await exchange.begin_stream()
                    out, held = held, b""
                    lease.waits_from = None  # a client that reads slowly is no fault of the engine's
                    await exchange.write(out)
                    lease.waits_from = lease.clock()
        except StreamError as error:
            self._observe(rewriter.usage)  # of events that came in one piece with the bad one
            raise self._broken_by(error) from error
        except BROKEN as error:
            if not rewriter.done:
                raise self._broken_off(error) from error
        finally:
            self._check(rewriter.usage)
        if not rewriter.done:
            raise self._broken_off(ConnectionError("the stream ended early"))
        if not lease.begun:
            self._begin()
            await exchange.begin_stream()
        self.record.end(Outcome.OK, billable=True, exact=rewriter.usage.exact)
        await self.record.logged()
        await exchange.end_stream(held)

    def _begin(self) -> None:
        """The first event is here: the request stays on this engine."""
        self.lease.begin()
        self.record.first_token()

    def _observe(self, usage: Usage) -> None:
        self.record.observe(usage.prompt, usage.completion, usage.cached, usage.reasoning)

    def _check(self, usage: Usage) -> None:
        """The customer is not punished for counts that cannot be: the answer is delivered."""
        if usage.unsound:
            self.faults.note(self.lease.state.engine.name, "usage", "token counts that cannot be")

    def _malformed(self, error: Exception) -> GoElsewhere:
        self.faults.note(self.lease.state.engine.name, "malformed", str(error))
        return GoElsewhere("malformed", str(error), suspect=True)

    def _broken_by(self, error: StreamError) -> Exception:
        """The engine said so in its stream, or sent what is none."""
        trouble = self._malformed(error) if error.malformed else None
        if self.lease.begun:
            if trouble:
                self.lease.doubt(str(trouble))
            return interrupted(self.lease)
        if trouble:
            return trouble
        return refused(error.status, error.error, self.target) or GoElsewhere("status_5xx", str(error))

    def _broken_off(self, error: Exception) -> Exception:
        """The engine's connection ended in the middle."""
        trouble = died(error)
        if not self.lease.begun:
            return trouble
        self.lease.doubt(str(trouble))
        return interrupted(self.lease)


def interrupted(lease: Lease) -> FlorinError:
    log.warning("engine %s cut a stream short", lease.state.engine.name)
    return FlorinError("stream_interrupted", "The engine failed before the answer was whole.")


def _stopping() -> GoElsewhere:
    return GoElsewhere("aborted", "the engine is stopping, and says so with a 200", counts=False)
