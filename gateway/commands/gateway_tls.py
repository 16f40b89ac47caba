"""How commands and agents know the gateway, and the gateway them: FLORIN_CA_FILE, FLORIN_CLIENT_CERT,
FLORIN_CLIENT_KEY."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

from adapters.security.tls import Identity, TlsError, client_context, explain

CA, CERT, KEY = "FLORIN_CA_FILE", "FLORIN_CLIENT_CERT", "FLORIN_CLIENT_KEY"


def identity(environ: Mapping[str, str] = os.environ) -> Identity | None:
    """What is shown to a gateway that asks for a certificate. Raises TlsError."""
    certificate, key = file(environ, CERT), file(environ, KEY)
    if certificate and key:
        return Identity("client", certificate, key)
    if certificate or key:
        raise TlsError(f"{CERT}, {KEY}: set both or neither.")
    return None


def trust(
    url: str, shown: Identity | None = None, environ: Mapping[str, str] = os.environ
) -> ssl.SSLContext | None:
    """What the gateway at `url` is verified with; None: what the HTTP client trusts by itself. Raises
    TlsError."""
    ca = file(environ, CA)
    if not url.startswith("https://"):
        return None
    try:
        if shown:
            return shown.client_context(ca)
        # HTTP clients that ignore the environment, because of proxies, ignore these two with it.
        if ca or environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR"):
            return client_context(ca)
    except TlsError as error:
        raise TlsError(f"{CA}: {error}") from error
    return None


def file(environ: Mapping[str, str], name: str) -> Path | None:
    value = environ.get(name)
    return Path(value).expanduser().absolute() if value else None


def advice(error: BaseException, url: str) -> str:
    """Why no TLS connection to the gateway came about, and the remedy; empty: it is not about TLS."""
    if words := explain(error):
        return f"The gateway at {url} is there, but {words}. {_remedy(words)}".strip()
    if not isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        return ""
    if url.startswith("http://"):
        return (
            f"What listens at {url} does not speak plain HTTP ({error}): if it speaks TLS, FLORIN_URL must "
            "begin with https://."
        )
    return (
        f"The gateway at {url} broke the connection off ({error}). One with FLORIN_TLS_CLIENT_CA does that "
        f"to whoever shows no certificate: set {CERT} and {KEY}."
    )


def _remedy(words: str) -> str:
    if "client" in words:
        return f"Set {CERT} and {KEY} to a certificate that the gateway's FLORIN_TLS_CLIENT_CA signed."
    if "certificate" in words:
        return f"Set {CA} to the file of the CA that signed it, and FLORIN_URL to a name that it is for."
    return ""
