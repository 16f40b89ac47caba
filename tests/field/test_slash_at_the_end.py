"""A slash at the end of a route.

Source: a survey of clients
Sent: `POST /v1/chat/completions/`, `GET /v1/models/`, `POST /tokenize/`.
Right: the answer of the route without the slash.
Why: a vLLM server redirects, so programs that add one have always worked; they got a 404 here.
"""

from __future__ import annotations

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO


async def test_it_does_not_matter(deployment: Deployment):
    chat = {"model": "support", "messages": HELLO, "max_tokens": 4}
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        assert (await http.post("/v1/chat/completions/", json=chat)).json()["choices"]
        assert (await http.get("/v1/models/")).json() == (await http.get("/v1/models")).json()
        assert (await http.get("/admin/v1/me/")).json() == (await http.get("/admin/v1/me")).json()
        for path in ("/v1/messages/", "/tokenize/"):  # reached: it lacks a field
            answer = await http.post(path, json={"model": "support"})
            assert answer.status_code == 400
