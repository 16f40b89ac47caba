"""What the client may see before the usage record is in the log, and what only after."""

from __future__ import annotations

from types import SimpleNamespace

import orjson
import pytest

from gateway.dataplane.request import CHAT
from gateway.errors import FlorinError
from gateway.metering.records import Outcome
from gateway.routing.engine_state import Lease
from gateway.routing.relay import Relay
from gateway.runtime.cancel_scope import CancelScope
from tests.unit.gateway.routing.test_sse import FINAL, ended, event, token

DONE = b"data: [DONE]\n\n"


class Content:
    def __init__(self, pieces):
        self.pieces = list(pieces)

    async def deliver(self, consume):
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, Exception):
                raise piece
            if not consume(piece):
                return True
        return False


class Played:
    """A relay between an engine and a client that are both played; `story` is what happened, in order."""

    def __init__(self, pieces, *, n=1, include_usage=True, begun=False, body=b"", slow=0):
        """`slow`: how often the client has no room for what is written at once."""
        self.story = []
        self.counts = None
        say = self.story.append

        async def begin_stream():
            say("begin")

        async def write(data):
            assert lease.waits_from is None  # the client is slow, not the engine
            say(data)

        def write_now(data):
            nonlocal slow
            slow -= 1
            if slow >= 0:
                return False
            say(data)
            return True

        async def end_stream(data):
            say(("end", data))

        async def respond(status, data):
            say(("answer", status, data))

        async def logged():
            say("logged")

        async def read(limit):
            return body

        def observe(*counts):
            self.counts = counts

        exchange = SimpleNamespace(
            answering=begun,
            drop_payload=lambda: None,
            request_id="r",
            begin_stream=begin_stream,
            write=write,
            write_now=write_now,
            end_stream=end_stream,
            respond=respond,
        )
        record = SimpleNamespace(
            observe=observe,
            first_token=lambda: say("first"),
            end=lambda outcome, **how: say((outcome, how["exact"])),
            logged=logged,
            written=False,
        )
        call = SimpleNamespace(
            model="m", include_usage=include_usage, continuous_usage=False, n=n, prompts=1, reply=None,
            endpoint=CHAT, choices=n, hides_reasoning=False,
        )  # fmt: skip
        lease = SimpleNamespace(
            begun=begun, clock=lambda: 0.0, mark_suspect=say, abandoned="",
            waits_from=0.0, scope=CancelScope(),
            state=SimpleNamespace(engine=SimpleNamespace(name="a", driver="vllm")),
        )  # fmt: skip
        lease.received = lambda: setattr(lease, "waits_from", 0.0)
        lease.writing = lambda: Lease.writing(lease)
        lease.begin = lambda: setattr(lease, "begun", True)
        self.faults = []
        faults = SimpleNamespace(note=lambda *what: self.faults.append(what[:2]))
        metrics = SimpleNamespace(stream_resume=lambda result: None)
        self.relay = Relay(
            exchange, call, SimpleNamespace(engine_name="fl", label="m"), lease, record, faults, metrics,
            answer=None, max_answer_bytes=1 << 20,
        )  # fmt: skip
        self.response = SimpleNamespace(
            deliver=Content(pieces).deliver, read=read, arrived=lambda _limit: None
        )

    def seen_before_logged(self):
        return b"".join(s for s in self.story[: self.story.index("logged")] if isinstance(s, bytes))


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize(
    "pieces",
    [
        [token("He", 1), token("y", 2), ended(), FINAL, DONE],
        [token("He", 1), token("y", 2) + ended(), FINAL + DONE],
        [token("He", 1), token("y", 2) + ended() + FINAL + DONE],
        [token("He", 1) + token("y", 2) + ended() + FINAL + DONE],
        [token("He", 1) + token("y", 2), FINAL, DONE],
    ],
)
async def test_no_end_is_seen_before_the_record_is_in_the_log(pieces, include_usage):
    played = Played(pieces, include_usage=include_usage)
    await played.relay.stream(played.response)
    before = played.seen_before_logged()
    assert b'finish_reason":"stop' not in before
    assert b"DONE" not in before
    assert b'"prompt_tokens"' not in before
    final, logged, (end, rest) = played.story[-3:]
    assert (final, logged, end) == ((Outcome.OK, True), "logged", "end")
    assert (b'"completion_tokens":3' in rest) == include_usage
    assert rest.endswith(DONE)
    assert played.counts == (5, 3, 4, 0)
    text = "".join(
        orjson.loads(e[6:])["choices"][0]["delta"].get("content", "")
        for e in (before + rest).split(b"\n\n")
        if e.startswith(b"data: {") and b'"delta"' in e
    )
    assert text == "Hey"


@pytest.mark.parametrize("slow", [1, 2, 9])
async def test_a_slow_client_gets_the_same(slow):
    pieces = [token(text, number) for number, text in enumerate("abcdef", 1)]
    pieces = [*pieces[:3], pieces[3] + pieces[4], pieces[5], ended(), FINAL + DONE]
    quick, played = Played(pieces), Played(pieces, slow=slow)
    for each in (quick, played):
        await each.relay.stream(each.response)
    assert played.story == quick.story


async def test_with_several_choices_all_but_the_last_end_pass():
    pieces = [token("a", 1, 0), token("b", 1, 1), ended(0), token("c", 2, 1), ended(1), FINAL, DONE]
    played = Played(pieces, n=2)
    await played.relay.stream(played.response)
    before = played.seen_before_logged()
    assert before.count(b'finish_reason":"stop') == 1
    assert b'"content":"c"' in before


async def test_a_whole_answer_goes_out_when_its_record_is_in_the_log():
    choice = {"index": 0, "message": {"content": "Hey"}, "finish_reason": "stop"}
    answer = {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    played = Played([], body=orjson.dumps(answer))
    await played.relay.whole(played.response)
    assert [s if isinstance(s, str) else s[0] for s in played.story] == [Outcome.OK, "logged", "answer"]
    assert played.counts == (5, 3, None, 0)


async def test_counts_that_come_in_one_piece_with_an_error_are_not_lost():
    broken = token("a", 1) + token("b", 2) + event(error={"message": "died", "code": 500})
    played = Played([token("x", 1), broken])
    with pytest.raises(Exception, match="before the answer was complete"):
        await played.relay.stream(played.response)
    assert played.counts[:2] == (5, 2)


async def test_an_end_that_is_cut_off_is_no_end():
    played = Played([token("He", 1), ended() + FINAL, ConnectionResetError("gone")])
    with pytest.raises(Exception, match="before the answer was complete"):
        await played.relay.stream(played.response)
    assert not any(b"stop" in s for s in played.story if isinstance(s, bytes))


async def test_a_comment_is_no_sign_of_the_engine_s_core():
    """The engine's HTTP server sends it, and may go on when the core hangs."""
    played, signs = Played([b": keep-alive\n\n", token("a", 1), b":\n\n", ended(), FINAL + DONE]), []
    played.relay.lease.received = lambda: signs.append(len(played.story))
    await played.relay.stream(played.response)
    assert len(signs) == 3


@pytest.mark.parametrize("cut", [1, 2])
async def test_the_last_event_may_lack_its_blank_line(cut):
    played = Played([token("a", 1), ended() + FINAL, DONE[:-cut]])
    await played.relay.stream(played.response)
    assert played.story[-1][1].endswith(DONE)


async def test_half_an_event_is_an_early_end_and_no_malformed_one():
    played = Played([token("a", 1), ended()[:-20]])
    with pytest.raises(FlorinError, match="failed before"):
        await played.relay.stream(played.response)
    assert played.faults == []
