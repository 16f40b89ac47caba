"""The loads that every contestant gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from loadtests.mock_engine import text
from loadtests.overhead.apis import APIS, QUESTION
from loadtests.overhead.loadgen import Ask, Job

MESSAGES = [{"role": "user", "content": QUESTION}]
ANSWER_TOKENS = 4000
"""Natural length of the mock's answers; each request asks for fewer."""
MOST_STREAMS = 500
"""With more, the mock and the load generator would need more than half of their core."""


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    title: str
    unit: str
    connections: int
    """0: as many as keep half of the contestant's core busy."""
    tokens: int
    warmup: float
    stream: bool = True
    event_delay: float = 0.0
    """Seconds between the events of a stream."""
    stagger: float = 0.0
    api: str = "chat"
    kind: str = ""
    """The load that it is another API's form of; empty: it is chat's own."""

    def body(self, model: str) -> dict[str, Any]:
        body = {"model": model} | APIS[self.api].body(self.tokens)
        return body | ({"stream": True} if self.stream else {})

    def job(self, port: int, asks: list[Ask], seconds: float, pids: dict[str, list[int]]) -> Job:
        times = (self.connections, seconds, self.warmup, self.stagger)
        return Job("127.0.0.1", port, asks, *times, pids=pids, api=self.api)

    def expect(self, speaker: str) -> str:
        return text(speaker, self.tokens, "length")


_OWN = {
    load.name: load
    for load in (
        Load("crowd", "2,000 streams at once, 200 ms between events", "event", 2000, 30, 3.5, True, 0.2, 3.0),
        Load("plain", "plain requests, 16 connections", "request", 16, 8, 0.5, stream=False),
        Load("streams", "200 streams, 20 ms between events", "event", 200, 250, 1.2, True, 0.02, 1.0),
        Load(
            "half",
            "streams of one second at half load, 20 ms between events",
            "event",
            0,
            50,
            1.5,
            True,
            0.02,
            1.0,
        ),
    )
}
LOADS = _OWN | {
    f"{kind}-{api}": replace(
        _OWN[kind], name=f"{kind}-{api}", title=f"{api}: {_OWN[kind].title}", api=api, kind=kind
    )
    for api in APIS
    if api != "chat"
    for kind in ("plain", "streams")
}
"""In this order: memory per stream is that of processes that have not served streams before."""


def half(load: Load, request_us: float, event_us: float) -> Load:
    """As many streams as use half of a core at this cost of a request and of an event."""
    cost = (request_us + load.tokens * event_us) / 1e6
    lasts = load.tokens * load.event_delay
    return replace(load, connections=max(1, min(MOST_STREAMS, round(0.5 * lasts / cost))))
