"""An OpenID Connect issuer on 127.0.0.1, with real keys: discovery, JWK set, code with PKCE, refresh tokens that
work once, device flow, revocation. Everybody who comes to its page is `person`, at once.

Its own, because packages of the kind neither rotate keys, nor are away for a while, nor sign rubbish."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT = "florin"
SETTINGS = {
    "oidc_client_id": CLIENT,
    "oidc_roles": "ops=operator, money=finance, acme-admins=tenant-admin:acme, users=tenant, admins=tenant-admin",
    "oidc_tenant_claim": "org",
}


@dataclass(frozen=True)
class SigningKey:
    id: str
    private: Any
    algorithm: str

    @property
    def jwk(self) -> dict[str, Any]:
        codec = RSAAlgorithm if self.algorithm.startswith(("RS", "PS")) else ECAlgorithm
        public = codec.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.id, "use": "sig", "alg": self.algorithm}


@cache
def rsa_key(name: str = "rsa", bits: int = 2048) -> SigningKey:
    """The same in all tests of a process: an RSA key takes a while to find."""
    return SigningKey(name, rsa.generate_private_key(65537, bits), "RS256")


def ec_key(name: str) -> SigningKey:
    return SigningKey(name, ec.generate_private_key(ec.SECP256R1()), "ES256")


@dataclass
class OidcIssuer:
    url: str = ""
    keys: list[SigningKey] = field(default_factory=lambda: [rsa_key()])
    """Published; the first signs."""
    person: dict[str, Any] = field(
        default_factory=lambda: {"sub": "u-1", "email": "jane@example.com", "groups": ["ops"]}
    )
    lifetime: int = 300
    secret: str = ""
    """What the client must send, if it is not public."""
    keys_secret: str = ""
    """What it asks of those who read its keys, as a Kubernetes API server does."""
    asked: list[str] = field(default_factory=list)
    """Paths, without queries."""
    device_entered: bool = False
    grants: dict[str, dict[str, str]] = field(default_factory=dict)
    """Code, refresh token or device code → what it was given for. Each works once."""

    def token(
        self, *, key: SigningKey | None = None, headers: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """Signed; a claim that is None is left out."""
        key, now = key or self.keys[0], int(time.time())
        whole = {
            "iss": self.url,
            "aud": CLIENT,
            "iat": now,
            "exp": now + self.lifetime,
            **self.person,
            **claims,
        }
        body = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(
            body, key.private, algorithm=key.algorithm, headers={"kid": key.id, **(headers or {})}
        )

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            **{
                name: f"{self.url}/{path}"
                for name, path in (
                    ("authorization_endpoint", "authorize"), ("token_endpoint", "token"), ("jwks_uri", "keys"),
                    ("device_authorization_endpoint", "device"), ("revocation_endpoint", "revoke"),
                )
            },
            "scopes_supported": ["openid", "email", "offline_access"],
        }  # fmt: skip

    def answer(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        """Status, and JSON or a place to go to."""
        public = path not in {"/.well-known/openid-configuration", "/keys"} or not self.keys_secret
        if not public and authorization != f"Bearer {self.keys_secret}":
            return 401, {"error": "unauthorized"}
        if path == "/.well-known/openid-configuration":
            return 200, self.document()
        if path == "/keys":
            return 200, {"keys": [key.jwk for key in self.keys]}
        if path == "/authorize":
            return self._authorize(form)
        if path == "/device":
            code = self._grant(form, "device")
            return 200, {
                "device_code": code, "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/enter",
                "expires_in": 60, "interval": 0,
            }  # fmt: skip
        if path == "/token":
            return self._token(form, authorization)
        if path == "/revoke":
            self.grants.pop(form["token"], None)
            return 200, {}
        return 404, {"error": "not_found"}

    def _authorize(self, form: dict[str, str]) -> tuple[int, Any]:
        if (
            form["client_id"] != CLIENT
            or form["response_type"] != "code"
            or form["code_challenge_method"] != "S256"
        ):
            return 400, {"error": "invalid_request"}
        code = self._grant(form, "code")
        back = {"code": code, "state": form["state"], "iss": self.url}
        return 302, f"{form['redirect_uri']}?{urlencode(back)}"

    def _grant(self, form: dict[str, str], kind: str) -> str:
        code = secrets.token_urlsafe(16)
        self.grants[code] = {**form, "kind": kind}
        return code

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        if self.secret:
            pair = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
            if authorization != f"Basic {pair}":
                return 401, {"error": "invalid_client"}
        kind = {"authorization_code": "code", "refresh_token": "refresh"}.get(form["grant_type"], "device")
        code = form.get("code") or form.get("refresh_token") or form["device_code"]
        given = self.grants.get(code)
        if kind == "device" and given and not self.device_entered:
            return 400, {"error": "authorization_pending"}
        given = self.grants.pop(code, None)
        if given is None or given["kind"] != kind or form["client_id"] != given["client_id"]:
            return 400, {"error": "invalid_grant", "error_description": "The grant is not known, or used up."}
        if kind == "code":
            digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
            if (
                digest.rstrip(b"=").decode() != given["code_challenge"]
                or form["redirect_uri"] != given["redirect_uri"]
            ):
                return 400, {"error": "invalid_grant"}
        nonce = given.get("nonce") if kind == "code" else None
        access = self.token(aud=given.get("audience", "somebody-else"), headers={"typ": "at+jwt"})
        refresh = self._grant(
            {"client_id": form["client_id"], "audience": given.get("audience", "")}, "refresh"
        )
        return 200, {
            "id_token": self.token(nonce=nonce), "access_token": access, "refresh_token": refresh,
            "expires_in": self.lifetime, "token_type": "Bearer",
        }  # fmt: skip


@contextmanager
def answering(issuer: OidcIssuer, port: int = 0) -> Iterator[None]:
    """`port`: where it was before; 0: a free one."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            url = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            form = {name: values[0] for name, values in parse_qs(raw or url.query).items()}
            issuer.asked.append(url.path)
            status, body = issuer.answer(url.path, form, self.headers.get("authorization", ""))
            data = json.dumps(body).encode() if status != 302 else b""
            self.send_response(status)
            if status == 302:
                self.send_header("location", body)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815  # the names that http.server calls

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", port), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
