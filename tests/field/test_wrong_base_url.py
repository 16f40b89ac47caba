"""A base_url that is nearly right.

Source: a survey of clients
Sent: `/v1//chat/completions`, a route twice, `/v1/v1/…`, and a route without `/v1`: what clients make of a base_url with a
slash at its end, with the route in it, with one `/v1` too many, or with none.
Right: a 404 that names the path that was meant and what to change in the base_url.
Why: the client's own error shows nothing but this message, and the old hint spoke of Anthropic to OpenAI's clients and the
other way round.
"""

from __future__ import annotations

import pytest

from tests.support.harness import Gateway

CORRECTIONS = {
    "/v1//chat/completions": ("/v1/chat/completions", "Leave out the slash at the end"),
    "//v1/completions": ("/v1/completions", "Leave out the slash at the end"),
    "/v1/chat/completions/chat/completions": ("/v1/chat/completions", "Leave /chat/completions out of"),
    "/v1/messages/v1/messages": ("/v1/messages", "Leave /v1/messages out of"),
    "/v1/v1/chat/completions": ("/v1/chat/completions", "Leave /v1 out of"),
    "/v1/v1/messages/": ("/v1/messages", "Leave /v1 out of"),
    "/messages": ("/v1/messages", "Add /v1 to"),
    "/models": ("/v1/models", "Add /v1 to"),
    "/openai/deployments/support/embeddings": ("/v1/embeddings", "base_url must end in /v1"),
}


async def test_the_answer_says_what_to_change(gateway: Gateway, subtests: pytest.Subtests):
    async with gateway.http() as http:
        for path, (route, correction) in CORRECTIONS.items():
            with subtests.test(path):
                answer = await http.post(f"{gateway.url}{path}", json={})
                message = answer.json()["error"]["message"]
                assert answer.status_code == 404
                assert f"Did you mean {route}?" in message
                assert correction in message
        for path in ("/v1/chat", "/admin/v1/typo"):
            assert "Did you mean" not in (await http.get(path)).text
