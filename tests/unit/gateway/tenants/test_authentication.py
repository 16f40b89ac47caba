"""Who is let in, and what the others are told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.dataplane.asgi import AsgiRequest
from gateway.dataplane.exchange import Exchange
from gateway.errors import FlorinError
from gateway.tenants.authentication import authenticate, authenticate_caller
from gateway.tenants.directory import Directory, Key, Role, Tenant, dump, mint
from gateway.tenants.terms import Scopes

NOW = 1_790_000_000_000_000
ACME = Tenant("acme", base_access=False, created=NOW)
CALLERS = {Role.TENANT, Role.TENANT_ADMIN}


def code(
    key: Key | None,
    *,
    text: str = "",
    connected: bool = True,
    check: Any = authenticate,
    tenant: Tenant = ACME,
    api_key: str = "",
) -> str:
    """What is said to whoever sends `text`, and `api_key` as x-api-key, where `key` is known."""
    directory = Directory(clock=lambda: NOW)
    if key:
        directory.load({"tenant": {"acme": dump(tenant)}, "key": {key.id: dump(key)}})
    headers = [(b"authorization", f"Bearer {text}".encode())] if text else []
    if api_key:
        headers.append((b"x-api-key", api_key.encode()))
    scope = {"path": "/v1/completions", "method": "POST", "headers": headers}
    exchange = Exchange(AsgiRequest(scope, None, None))  # type: ignore[arg-type]  # nothing is read or sent
    try:
        check(exchange, directory, SimpleNamespace(connected=connected))
    except FlorinError as error:
        return error.code
    return "" if exchange.context.key_id == (key and key.id) else "another"


KEY, TEXT = mint("acme", Role.TENANT, NOW)


def test_a_known_key_is_let_in():
    assert code(KEY, text=TEXT) == ""


def test_who_calls_models_may_send_the_key_as_anthropics_clients_do():
    assert code(KEY, api_key=TEXT, check=authenticate_caller) == ""
    assert code(KEY, text=TEXT, api_key=TEXT, check=authenticate_caller) == ""
    assert code(KEY, api_key=TEXT) == "missing_api_key"  # nobody else
    assert code(KEY, text=TEXT, api_key="sk-ant-another") == ""  # it is not looked at


def test_two_different_keys_are_refused_whichever_is_known():
    for one, other in ((TEXT, "x"), ("x", TEXT)):
        assert code(KEY, text=one, api_key=other, check=authenticate_caller) == "invalid_api_key"


def test_no_key_and_an_unknown_one():
    assert code(KEY) == "missing_api_key"
    assert code(None, text=TEXT) == "invalid_api_key"


def test_a_key_that_may_have_been_made_meanwhile_is_not_called_invalid():
    assert code(None, text=TEXT, connected=False) == "store_unavailable"
    assert code(KEY, text=TEXT, connected=False) == ""


def test_revoked_and_expired_keys():
    assert code(replace(KEY, revoked=NOW), text=TEXT) == "revoked_api_key"
    assert code(replace(KEY, expires=NOW - 1), text=TEXT) == "expired_api_key"


@pytest.mark.parametrize("role", sorted(set(Role) - CALLERS))
def test_only_tenants_call_models(role):
    key, text = mint("", role, NOW)
    assert code(key, text=text) == ""
    assert code(key, text=text, check=authenticate_caller) == "insufficient_role"


call = partial(authenticate_caller, calls="/v1/completions")


@pytest.mark.parametrize("role", sorted(CALLERS))
def test_suspension_refuses_the_tenants_own_keys(role):
    key, text = mint("acme", role, NOW)
    suspended = replace(ACME, suspended=NOW)
    assert code(key, text=text, check=call) == ""
    for check in (authenticate, authenticate_caller, call):
        assert code(key, text=text, check=check, tenant=suspended) == "tenant_suspended"
    assert code(replace(key, tenant="bolt"), text=text, tenant=suspended) == ""


def test_suspension_does_not_refuse_staff():
    key, text = mint("acme", Role.FINANCE, NOW)
    assert code(key, text=text, tenant=replace(ACME, suspended=NOW)) == ""


@pytest.mark.parametrize("role", sorted(CALLERS))
@pytest.mark.parametrize(
    ("scopes", "called", "listed"),
    [
        (Scopes(), "", ""),
        (Scopes(endpoints=("/v1/completions",)), "", ""),
        (Scopes(endpoints=("/v1/chat/completions",)), "insufficient_scope", ""),
        (Scopes(read_only=True), "insufficient_scope", ""),
        (Scopes(read_only=True, endpoints=("/v1/completions",)), "insufficient_scope", ""),
        (Scopes(adapters=("support",)), "", ""),
    ],
)
def test_scopes_limit_which_endpoints_a_key_calls_but_not_listing(role, scopes, called, listed):
    key, text = mint("acme", role, NOW)
    key = replace(key, scopes=scopes)
    assert code(key, text=text, check=call) == called
    assert code(key, text=text, check=authenticate_caller) == listed
