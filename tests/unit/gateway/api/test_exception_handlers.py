"""What FastAPI refuses before a route runs, as the routes would say it."""

from __future__ import annotations

from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI, Query, Request
from pydantic import BaseModel

from gateway.api.dependencies import check_query
from gateway.api.exception_handlers import install


class Thing(BaseModel):
    name: str


class Filter(BaseModel):
    tenant: str | None = None


@pytest.fixture
async def http():
    app = FastAPI()
    install(app)

    @app.get("/things/{number}")
    async def show(
        request: Request,
        number: int,
        chosen: Annotated[Filter, Query()],
        limit: Annotated[int, Query(ge=1)] = 1,
    ) -> int:
        check_query(request)
        return number + limit

    @app.delete("/things/{number}")
    async def remove(number: int) -> int:
        return number

    @app.post("/things")
    async def add(thing: Thing) -> str:
        return thing.name

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://florin") as client:
        yield client


JSON = {"content-type": "application/json"}
REFUSALS: list[tuple[str, str, dict[str, Any], tuple[int, str, str | None]]] = [
    ("GET", "/things/1?limit=0", {}, (400, "invalid_value", "limit")),
    ("GET", "/things/1?tenant=acme&limit=2&tennant=acme", {}, (400, "invalid_value", "tennant")),
    ("GET", "/things/1?number=1", {}, (400, "invalid_value", "number")),
    ("GET", "/things/x", {}, (400, "invalid_value", "number")),
    ("POST", "/things", {"json": {"name": 1}}, (400, "invalid_value", "name")),
    ("POST", "/things", {"json": []}, (400, "invalid_json", None)),
    ("POST", "/things", {}, (400, "invalid_json", None)),
    ("POST", "/things", {"content": b"{", "headers": JSON}, (400, "invalid_json", None)),
    (
        "POST",
        "/things",
        {"data": {"name": "x"}},
        (415, "invalid_value", "content-type"),
    ),  # as curl -d sends it
    ("PUT", "/things/1", {}, (405, "method_not_allowed", None)),
    ("GET", "/nothing", {}, (404, "not_found", None)),
]


@pytest.mark.parametrize(("method", "path", "body", "refusal"), REFUSALS)
async def test_a_refusal_names_the_field(http, method, path, body, refusal):
    answer = await http.request(method, path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == refusal


async def test_a_wrong_method_is_told_the_right_ones(http):
    answer = await http.put("/things/1")
    assert answer.headers["allow"] == "GET, HEAD, DELETE"
    assert answer.json()["error"]["message"] == "/things/1 only supports GET, HEAD, DELETE."
