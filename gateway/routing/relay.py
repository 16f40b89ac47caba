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
import orjson

from adapters.catalog import Target
from gateway.call import Call
from gateway.errors import FlorinError
from gateway.exchange import Exchange
from gateway.metering.attempt import AttemptMeter
from gateway.metering.records import Outcome
from gateway.routing.pool import Lease
from gateway.routing.stream import StreamError, StreamRewriter, Usage
from gateway.routing.upstream import BROKEN, GoElsewhere, died, read_whole, refused

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Relay:
    exchange: Exchange
    call: Call
    target: Target
    lease: Lease
    record: AttemptMeter

    async def answer(self, response: aiohttp.ClientResponse) -> None:
        """A whole answer: nothing reaches the client before all of it is here."""
        body = await read_whole(response)
        try:
            answer = orjson.loads(body)
            choices = answer["choices"]
        except (ValueError, KeyError, TypeError) as error:
            raise GoElsewhere("status_5xx", f"not an answer: {error!r}") from error
        usage = Usage()
        usage.read(answer.get("usage") or {})
        self._observe(usage)
        if any(choice.get("finish_reason") == "abort" for choice in choices):
            raise _stopping()
        answer["model"] = self.call.model
        self.lease.begun = True
        self.record.end(Outcome.OK, billable=True, exact=True)
        await self.record.logged()
        await self.exchange.respond(200, orjson.dumps(answer))

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
        lease.heard = lease.clock()
        try:
            while data := await response.content.readany():
                lease.heard = lease.clock()
                held += rewriter.feed(data)
                self._observe(rewriter.usage)
                if rewriter.aborted:
                    raise interrupted(lease) if lease.begun else _stopping()
                if rewriter.closing or not rewriter.has_content:
                    continue  # nobody sees an end before it is in the log
                if held:
                    if not lease.begun:
                        self._begin()
                        await exchange.begin_stream()
                    out, held = held, b""
                    await exchange.write(out)
        except StreamError as error:
            self._observe(rewriter.usage)  # of events that came in one piece with the bad one
            raise self._broken_by(error) from error
        except BROKEN as error:
            if not rewriter.done:
                raise self._broken_off(error) from error
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
        self.lease.begun = True
        self.record.first_token()

    def _observe(self, usage: Usage) -> None:
        self.record.observe(usage.prompt, usage.completion, usage.cached, usage.reasoning)

    def _broken_by(self, error: StreamError) -> Exception:
        """The engine said so in its stream."""
        if self.lease.begun:
            return interrupted(self.lease)
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
