"""What an exchange does besides passing bytes on."""

from __future__ import annotations

import pytest

from gateway.dataplane.exchange import Exchange


class Recorder:
    """A transport and a grant that note the order in which they are called."""

    headers: list[tuple[bytes, bytes]] = []  # noqa: RUF012  # never changed
    first_headers: dict[bytes, bytes] = {}  # noqa: RUF012  # likewise
    ticket = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def leave(self) -> None:
        self.calls.append("leave")

    async def respond(self, *_: object, **__: object) -> None:
        self.calls.append("respond")

    async def begin(self, *_: object) -> None:
        self.calls.append("begin")

    async def write(self, _: bytes) -> None:
        self.calls.append("write")

    def write_now(self, _: bytes) -> bool:
        return False

    async def end(self, _: bytes) -> None:
        self.calls.append("end")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_place_among_concurrent_requests_is_given_back_before_the_answer_ends(streamed: bool):
    """Whoever has the whole answer may send the next request, and to another worker."""
    recorder = Recorder()
    exchange = Exchange(recorder)
    exchange.grant = recorder
    if streamed:
        await exchange.begin_stream()
        await exchange.write(b"a")
        await exchange.end_stream(b"b")
    else:
        await exchange.respond(200, b"{}")
    assert recorder.calls == (["begin", "write", "leave", "end"] if streamed else ["leave", "respond"])
