"""A chat's events become the same events of a Response however they arrive, and the same answer as a whole
chat."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.dataplane.reply import ReplyUsage
from gateway.routing.translation import TranslatingRewriter
from tests.support.search import examples
from tests.unit.gateway.dialects.responses.answers import Delta, events, reply, stream, translate

TEXTS = st.text(max_size=6) | st.sampled_from(["One", '"', "\\", "\n", "\x7f", "ü", " "])
SAID = st.one_of(
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"reasoning": text}, TEXTS),
    st.builds(
        lambda index, text: {"tool_calls": [{"index": index, "function": {"name": "f", "arguments": text}}]},
        st.integers(0, 2),
        TEXTS,
    ),
)


class ParsingRewriter(TranslatingRewriter):
    def _learn(self, event: bytes, chunk: dict[str, Any]) -> None:
        """Nothing, so that every event is parsed."""


@examples(60)
@given(st.lists(SAID, max_size=12), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_a_stream_is_the_same_however_it_arrives(deltas: list[Delta], sizes: list[int]):
    data = stream(deltas)
    parsing = ParsingRewriter(reply(), answer=None, so_far=None).feed(data)
    assert translate(reply(), data) == parsing
    rewriter, out, at, turn = TranslatingRewriter(reply(), answer=None, so_far=None), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        out.append(rewriter.feed(data[at : at + size]))
        at, turn = at + size, turn + 1
    assert b"".join(out) == parsing
    events(parsing)


@examples(60)
@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=3))
def test_a_stream_ends_with_the_answer_of_a_whole_chat(reasoning: str, content: str, calls: list[str]):
    said = [
        {"id": f"c{n}", "index": n, "function": {"name": "f", "arguments": a}} for n, a in enumerate(calls)
    ]
    deltas = [{"reasoning": reasoning}, {"content": content}, *({"tool_calls": [call]} for call in said)]
    message = {"reasoning": reasoning, "content": content, "tool_calls": said}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = ReplyUsage(prompt=5, completion=len(deltas), cached=None, reasoning=0)
    whole = reply().whole({"choices": [choice]}, usage)
    *_, last, _ = translate(reply(), stream(deltas)).rsplit(b"\n\n", 2)
    assert orjson.loads(last.partition(b"data: ")[2])["response"] == orjson.loads(whole)
