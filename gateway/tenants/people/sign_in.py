"""A person's sign-in in a browser, for the console: authorization code with PKCE.

The caller keeps `Request` with the browser that began, for a few minutes and for one use.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from urllib.parse import quote_plus

import orjson

from gateway.errors import FlorinError
from gateway.tenants.directory import Key
from gateway.tenants.people.issuer import IssuerError, ask
from gateway.tenants.people.pkce import Request, scopes_for
from gateway.tenants.people.verification import People

SECONDS = 600
"""How long a person may take at the issuer."""


async def begin(people: People, redirect: str) -> tuple[str, Request]:
    """Where to send the browser, and what to keep. `redirect`: the URL it comes back to, as registered at the
    issuer. Raises FlorinError."""
    endpoints = await people.issuer.endpoints()
    if not endpoints.authorization:
        raise _failed("The issuer has no page to sign in at (authorization_endpoint).")
    request = Request.new()
    scopes = [scope for scope in people.settings.oidc_scopes.split() if scope != "offline_access"]
    url = request.url(
        endpoints.authorization,
        client_id=people.settings.oidc_client_id,
        redirect=redirect,
        scopes=scopes_for(scopes, endpoints.scopes),
        audience=people.settings.oidc_audience,
    )
    return url, request


async def finish(people: People, request: Request, answer: Mapping[str, str], redirect: str) -> Key:
    """The person who comes back with this answer (the query's fields). The key's `expires` ends their rights.
    Raises FlorinError."""
    if not hmac.compare_digest(answer.get("state", "").encode(), request.state.encode()):
        raise _failed("This is not the answer to the sign-in that this browser began.")
    if answer.get("iss", people.issuer.url) != people.issuer.url:  # RFC 9207: another issuer's answer
        raise _failed("The answer came from another issuer.")
    if "code" not in answer:
        reason = answer.get("error_description") or answer.get("error") or "no code"
        raise _failed(f"The issuer refused: {reason[:300]}")
    tokens = await _exchange(people, answer["code"], request, redirect)
    claims = await people.claims(_token(tokens, "id_token"), (people.settings.oidc_client_id,))
    if not hmac.compare_digest(str(claims.get("nonce")).encode(), request.nonce.encode()):
        raise _failed("The issuer's token was not made for this sign-in.")
    if not people.settings.oidc_audience:
        return people.person(claims)
    return await people.identify(_token(tokens, "access_token").encode())


async def _exchange(people: People, code: str, request: Request, redirect: str) -> Mapping[str, object]:
    settings = people.settings
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect,
        "client_id": settings.oidc_client_id,
        "code_verifier": request.verifier,
    }
    headers = {}
    if secret := settings.oidc_client_secret.get_secret_value():
        pair = f"{quote_plus(settings.oidc_client_id)}:{quote_plus(secret)}"  # RFC 6749 2.3.1
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    endpoints = await people.issuer.endpoints()
    try:
        async with people.issuer.session() as session:
            status, body = await ask(session, endpoints.token, form, headers)
        answer = orjson.loads(body)
    except (IssuerError, ValueError) as error:
        raise FlorinError("issuer_unavailable", f"The sign-in failed: {error}", retry_after=5) from error
    if status != 200 or not isinstance(answer, dict):
        reason = answer.get("error_description") or answer.get("error") if isinstance(answer, dict) else ""
        raise _failed(f"The issuer refused: {str(reason)[:300]}")
    return answer


def _token(tokens: Mapping[str, object], name: str) -> str:
    token = tokens.get(name)
    if not isinstance(token, str):
        raise _failed(f"The issuer sent no {name.replace('_', ' ')}.")
    return token


def _failed(reason: str) -> FlorinError:
    return FlorinError("invalid_token", reason)
