"""What `florin login` asks of an OpenID Connect issuer, over HTTP."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.commands.client import Json, UnreachableError, UsageError

if TYPE_CHECKING:
    import ssl

_SECONDS = 30.0


class IssuerRefusalError(Exception):
    """The issuer refused; `code` is OAuth's, such as `authorization_pending`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def discover(issuer: str) -> Json:
    """The issuer's discovery document. Raises UnreachableError, IssuerRefusalError."""
    from gateway.config.identity import safe_url

    if not safe_url(issuer):
        raise IssuerRefusalError(
            "", f"{issuer!r} is no issuer to send anything to: it must begin with https://."
        )
    document = ask(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        named = document.get("issuer")
        raise IssuerRefusalError("", f"{issuer} names itself {named!r}: the gateway's setting is wrong.")
    return document


def endpoint(document: Mapping[str, Any], name: str) -> str:
    """Raises IssuerRefusalError if there is none that may be used."""
    from gateway.config.identity import safe_url

    url = document.get(name)
    if not isinstance(url, str) or not safe_url(url.partition("?")[0]):
        raise IssuerRefusalError("", f"The issuer has no {name.replace('_', ' ')}.")
    return url


def ask(url: str, form: Mapping[str, str] | None = None) -> Json:
    """GET, or POST the form. Raises UnreachableError, IssuerRefusalError."""
    import httpx2

    try:
        with httpx2.Client(verify=_trust(), timeout=_SECONDS) as client:
            answer = client.get(url) if form is None else client.post(url, data=dict(form))
        body = answer.json() if answer.content else {}
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UnreachableError(f"The issuer does not answer at {url} ({error}).") from error
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise IssuerRefusalError("", f"{url} answered HTTP {answer.status_code}, and not with a JSON object.")
    if answer.is_success:
        return body
    code = str(body.get("error") or "")
    reason = str(body.get("error_description") or code or f"HTTP {answer.status_code}")
    raise IssuerRefusalError(code, f"The issuer refused: {reason[:300]}")


def payload(token: str) -> Json:
    """The claims of a token, unverified: for what the gateway verifies anyway. Empty if it is no JWT."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _trust() -> ssl.SSLContext:
    """The system's CAs and FLORIN_CA_FILE, which often signs an installation's own issuer, too."""
    import ssl

    from adapters.security.tls import client_context

    ca = os.environ.get("FLORIN_CA_FILE")
    context = client_context(None)
    if ca:
        try:
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"FLORIN_CA_FILE: {ca} cannot be used: {error}.") from error
    return context
