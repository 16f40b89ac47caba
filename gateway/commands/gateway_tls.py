"""TLS between commands or agents and the gateway: FLORIN_CA_FILE, FLORIN_CLIENT_CERT, FLORIN_CLIENT_KEY."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from adapters.security.handshake_errors import EXPIRED, NOT_YET_VALID, explain
from adapters.security.renewal import Identity, day
from adapters.security.tls import TlsError, client_context

CA, CERT, KEY = "FLORIN_CA_FILE", "FLORIN_CLIENT_CERT", "FLORIN_CLIENT_KEY"
_SECONDS = 5.0


def identity(environ: Mapping[str, str] = os.environ) -> Identity | None:
    """The client certificate, if one is configured. Raises TlsError."""
    certificate, key = file(environ, CERT), file(environ, KEY)
    if certificate and key:
        return Identity("client", certificate, key)
    if certificate or key:
        raise TlsError(f"{CERT}, {KEY}: set both or neither.")
    return None


def trust(
    url: str, shown: Identity | None = None, environ: Mapping[str, str] = os.environ
) -> ssl.SSLContext | None:
    """Verifies the gateway at `url`; None: the HTTP client's default trust store. Raises TlsError."""
    ca = file(environ, CA)
    if not url.startswith("https://"):
        return None
    try:
        if shown:
            return shown.client_context(ca)
        # A client that ignores proxies from the environment also ignores these two variables.
        if ca or environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR"):
            return client_context(ca)
    except TlsError as error:
        raise TlsError(f"{CA}: {error}") from error
    return None


def file(environ: Mapping[str, str], name: str) -> Path | None:
    value = environ.get(name)
    return Path(value).expanduser().absolute() if value else None


def advice(error: BaseException, url: str) -> str:
    """Why the TLS connection failed, and the remedy; empty if TLS is not the cause."""
    words = explain(error)
    if words in {EXPIRED, NOT_YET_VALID}:
        return (
            f"The gateway at {url} is reachable, but {words}{_when(url, expired=words == EXPIRED)}. Renew it "
            "in FLORIN_TLS_CERT of the gateway, which needs no restart, or in the proxy in front of it; and "
            "check this machine's clock."
        )
    if words:
        return f"The gateway at {url} is reachable, but {words}. {_remedy(words)}".strip()
    if not isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError):
        return ""
    if url.startswith("http://"):
        return (
            f"The server at {url} does not speak plain HTTP ({error}). If it uses TLS, FLORIN_URL must begin "
            "with https://."
        )
    return (
        f"The gateway at {url} closed the connection ({error}). A gateway with FLORIN_TLS_CLIENT_CA rejects "
        f"clients without a certificate: set {CERT} and {KEY}."
    )


def _when(url: str, *, expired: bool) -> str:
    """` on 2026-07-01 12:00 UTC`; empty if it is not to be had. Connects again: who refuses a certificate
    does not get it."""
    from cryptography import x509

    server = urlsplit(url)
    try:
        pem = ssl.get_server_certificate((server.hostname or "", server.port or 443), timeout=_SECONDS)
        leaf = x509.load_pem_x509_certificate(pem.encode())
    except (OSError, ValueError):
        return ""
    moment = (leaf.not_valid_after_utc if expired else leaf.not_valid_before_utc).timestamp()
    if expired == (moment > time.time()):
        return ", or one that signed it"
    return f" {'on' if expired else 'before'} {day(moment)}"


def _remedy(words: str) -> str:
    if "client" in words:
        return f"Set {CERT} and {KEY} to a certificate signed by the gateway's FLORIN_TLS_CLIENT_CA."
    if "certificate" in words:
        return f"Set {CA} to the file of the CA that signed it, and FLORIN_URL to a name that it covers."
    return ""
