"""The health routes of a vLLM server.

Source: a survey of clients (guidellm 0.8.1, aiperf)
Sent: `GET /health` or `/v1/health`, `/ping` and `/version`, without a key, before any other request.
Right: 200 and nothing private while requests are served, 503 while they are not; no `/load`, which would show one customer
how much the others send.
Why: guidellm ends before its first request if `/health` is not there.
"""

from __future__ import annotations

from gateway.observability.conditions import Condition
from tests.integration.conftest import Deployment


async def test_they_answer_without_a_key(deployment: Deployment):
    gateway = deployment.gateway
    conditions: list[Condition] = []
    gateway.state.conditions.add(lambda: conditions)
    async with gateway.http() as http:
        del http.headers["authorization"]
        for path in ("/health", "/v1/health", "/ping"):
            conditions[:] = [Condition("engine_hung", "a")]
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
            conditions[:] = [Condition("usage_unrecorded")]
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})
        assert (await http.get("/version")).json().keys() == {"version"}
        assert (await http.get("/load")).status_code == 404
