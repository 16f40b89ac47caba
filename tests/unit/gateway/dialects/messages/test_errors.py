"""Errors, response headers and lists of models in that API's vocabulary."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
import pytest

from gateway.dialects.messages.errors import DIALECT, error_body, headers_at
from gateway.dialects.messages.models import asks, page
from gateway.errors import CODES, FlorinError
from gateway.tenants.limits.wording import duration
from gateway.transport.http_request import STATUS_LINES
from tests.support.lazily import ImportedWhenUsed

anthropic = ImportedWhenUsed("anthropic")

RETRIED = {429, 500, 502, 503, 529}
"""What that API's clients retry, of the statuses that we have."""


@pytest.mark.parametrize("code", CODES)
def test_every_error_is_one_of_that_apis(code: str):
    error = FlorinError(code, "Why.", param="messages")
    body = orjson.loads(error_body(error, "req-1"))
    if body["error"]["type"] != "request_too_large":  # the SDK has the status only
        anthropic.types.ErrorResponse.model_validate(body)
    assert body["request_id"] == "req-1"
    kind, status = body["error"]["type"], DIALECT.status(error)
    assert body["error"]["message"] == "Why."
    assert status in STATUS_LINES
    expected = {
        400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
        404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
        502: "api_error", 503: "api_error", 529: "overloaded_error",
    }  # fmt: skip
    assert kind == expected.get(status, "invalid_request_error")


def test_only_what_may_pass_is_retried():
    def retried(code: str) -> bool:
        return DIALECT.status(FlorinError(code, "")) in RETRIED

    for code in ("overloaded", "engine_failed", "no_engine", "rate_limit_exceeded", "too_many_requests"):
        assert retried(code)
    for code in ("budget_exhausted", "invalid_value", "model_not_found", "invalid_api_key"):
        assert not retried(code)
    assert DIALECT.status(FlorinError("overloaded", "")) == 529
    assert DIALECT.status(FlorinError("no_engine", "")) == HTTPStatus.SERVICE_UNAVAILABLE


def test_headers_have_that_apis_names_too():
    ours = [
        (b"x-request-id", b"req-1"), (b"x-ratelimit-limit-requests", b"60"), (b"x-ratelimit-remaining-tokens", b"5"),
        (b"x-ratelimit-reset-requests", b"1m1.5s"), (b"retry-after", b"2"),
    ]  # fmt: skip
    assert headers_at(ours, 1_790_000_000.0) == [
        (b"request-id", b"req-1"),
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-tokens-remaining", b"5"),
        (b"anthropic-ratelimit-requests-reset", b"2026-09-21T14:14:21Z"),
    ]


@pytest.mark.parametrize("seconds", [0, 0.02, 1, 1.5, 59.999, 60, 360, 3600, 86_400, 90_061.25])
def test_every_duration_is_read_as_it_was_meant(seconds: float):
    (reset,) = headers_at([(b"x-ratelimit-reset-tokens", duration(seconds).encode())], 0.0)
    whole = int(seconds)
    wanted = (
        f"1970-01-{1 + whole // 86_400:02}T{whole // 3600 % 24:02}:{whole // 60 % 60:02}:{whole % 60:02}Z"
    )
    assert reset[1].decode() == wanted


def test_a_header_that_cannot_be_read_is_now():
    (reset,) = headers_at([(b"x-ratelimit-reset-tokens", b"soon")], 0.0)
    assert reset[1] == b"1970-01-01T00:00:00Z"


# -- models

CARDS: list[dict[str, Any]] = [
    {"id": f"acme/m{n:02}", "created": 1_790_000_000, "owned_by": "acme", "max_model_len": 4096}
    for n in range(45)
]


def ids(query: str) -> tuple[list[str], bool]:
    found = page(CARDS, query.encode())
    for one in found["data"]:
        anthropic.types.ModelInfo.model_validate(one)
    listed = [one["id"] for one in found["data"]]
    assert (found["first_id"], found["last_id"]) == ((listed[0], listed[-1]) if listed else (None, None))
    return listed, found["has_more"]


def all_ids(*numbers: int) -> list[str]:
    return [f"acme/m{n:02}" for n in range(*numbers)]


def test_pages():
    assert ids("") == (all_ids(20), True)
    assert ids("limit=3&after_id=acme/m19") == (all_ids(20, 23), True)
    assert ids("after_id=acme%2Fm40") == (all_ids(41, 45), False)
    assert ids("after_id=acme/m44") == ([], False)
    assert ids("before_id=acme/m05&limit=2") == (all_ids(3, 5), True)
    assert ids("before_id=acme/m05") == (all_ids(5), False)
    assert ids("limit=1000&beta=true") == (all_ids(45), False)
    assert page([], b"")["data"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=%D9%A1", "limit=99999999999", "after_id=bolt/x", "before_id=x", "limit=-1"])  # fmt: skip
def test_a_wrong_page_is_named(query: str):
    with pytest.raises(FlorinError) as caught:
        page(CARDS, query.encode())
    assert caught.value.param == query.partition("=")[0]


def test_who_asks_for_this_list():
    assert asks([(b"host", b"x"), (b"anthropic-version", b"2023-06-01")])
    assert asks([(b"x-api-key", b"k")])
    assert not asks([(b"authorization", b"Bearer k")])
