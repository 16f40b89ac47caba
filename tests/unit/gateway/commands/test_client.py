from __future__ import annotations

import socket

import pytest

from gateway.commands.client import Api, ApiError, UnreachableError, UsageError, full_name, segment
from gateway.schemas.base import Answer


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [
        ("ftp://host", "k", "must look like"),
        ("http://", "k", "must look like"),
        ("http://[bad", "k", "is not a URL"),
        ("http://host", "", "No key is set: export yours as FLORIN_KEY"),
        ("http://host", "k k", "contains invalid characters"),
        ("http://host", "ключ", "contains invalid characters"),
        ("http://host", "k\r\nx: y", "contains invalid characters"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error(url, key, says):
    with pytest.raises(UsageError, match=says):
        Api.to(url, key)


def test_a_refusal_carries_the_gateways_own_sentence_and_findings(fake):
    finding = {"code": "rank_too_high", "message": "Too high.", "found": "64", "expected": "at most 16"}
    fake.answer(
        "POST", "/x", {"error": {"message": "No.", "code": "adapter_rejected", "findings": [finding]}}, 422
    )
    with pytest.raises(ApiError) as caught:
        Api.to(fake.url, "k").post("/x", {}, Answer)
    assert (caught.value.status, str(caught.value), caught.value.code) == (422, "No.", "adapter_rejected")
    assert caught.value.findings == (finding,)


def test_an_invalid_key_says_which_variable_to_set(fake):
    fake.answer("GET", "/x", {"error": {"message": "No such key.", "code": "invalid_api_key"}}, 401)
    with pytest.raises(ApiError, match="set FLORIN_KEY or FLORIN_OPERATOR_KEY to a valid key"):
        Api.to(fake.url, "k").get("/x", Answer)


def test_a_tenant_is_not_told_to_set_an_operator_s_key(fake):
    refusal = {"message": "This requires the finance or operator role.", "code": "insufficient_role"}
    fake.answer("GET", "/x", {"error": refusal}, 403)
    with pytest.raises(ApiError, match="ask the operator of the gateway") as caught:
        Api.to(fake.url, "k").get("/x", Answer)
    assert "OPERATOR_KEY" not in str(caught.value)


@pytest.mark.parametrize("body", [b"<html>", b"", b"[1]", b"\xff"])
def test_something_else_than_florin_is_recognized(fake, body):
    fake.answer("GET", "/x", body)
    with pytest.raises(ApiError, match="is not a Florin gateway"):
        Api.to(fake.url, "k").get("/x", Answer)


def test_unreachable_gateway():
    with socket.socket() as taken:  # bound, not listening: refuses
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnreachableError, match="florin serve"):
            Api.to(f"http://127.0.0.1:{taken.getsockname()[1]}", "k").get("/x", Answer)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("acme", "acme"), ("a/b", "a%2Fb"), ("..", "%2E.."), ("", "%2E"), ("é?", "%C3%A9%3F")],
)
def test_a_segment_cannot_leave_its_place(text, quoted):
    assert segment(text) == quoted


@pytest.mark.parametrize("text", ["acme", "/x", "acme/", ""])
def test_a_full_name_has_two_parts(text):
    with pytest.raises(UsageError, match="TENANT/NAME"):
        full_name(text)
