"""Begins a sign-in with a code: secrets that tie the issuer's answer to the client that asked (OpenID Connect
Core 3.1, and PKCE in RFC 7636)."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class Request:
    """Secrets of one sign-in. Keep them with who began it, and use them once."""

    state: str
    """Comes back with the code: the answer is to this request."""
    nonce: str
    """Comes back in the ID token: the token was made for this request."""
    verifier: str
    """Sent with the code, so that nobody else can use the code."""

    @classmethod
    def new(cls) -> Self:
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))

    def url(
        self,
        endpoint: str,
        *,
        client_id: str,
        redirect: str,
        scopes: Iterable[str],
        audience: str = "",
        prompt: str = "",
    ) -> str:
        """Where the browser goes. `audience`: that of the access token, for issuers that require it.
        `prompt`: the parameter of that name in OpenID Connect."""
        query = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": redirect,
            "scope": " ".join(scopes),
            "state": self.state,
            "nonce": self.nonce,
            "code_challenge": challenge(self.verifier),
            "code_challenge_method": "S256",
            **({"audience": audience} if audience else {}),
            **({"prompt": prompt} if prompt else {}),
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


def challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def scopes_for(scopes: Iterable[str], supported: Iterable[str]) -> list[str]:
    """The scopes to request. Some issuers give refresh tokens without `offline_access`, and refuse it."""
    known = set(supported)
    return [scope for scope in scopes if scope != "offline_access" or not known or scope in known]
