"""Explains failed TLS handshakes."""

from __future__ import annotations

import errno
import ssl
from typing import Final

EXPIRED: Final = "its certificate has expired"
NOT_YET_VALID: Final = "its certificate is not valid yet"
_OUT_OF_TIME: Final = {10: EXPIRED, 9: NOT_YET_VALID}
"""By OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID. No other CA helps there."""


def explain(error: BaseException, url: str = "") -> str:
    """Explain a failed handshake; empty if `error` is not a TLS error. `url`: the URL called."""
    tls_error = _tls_error(error)
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        if tls_error.verify_code in _OUT_OF_TIME:
            return _OUT_OF_TIME[tls_error.verify_code]
        return f"its certificate is not accepted: {tls_error.verify_message.rstrip('.')}"
    if tls_error is None:
        # In TLS 1.3 the client's certificate is verified after the handshake, and the alert is easily lost.
        if url.startswith("https://") and (_is_reset(error) or _is_disconnected(error)):
            return "it closed the connection; it may require a client certificate"
        return ""
    reason = tls_error.reason or ""
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "it does not speak TLS; use http:// in the URL"
    if "CERTIFICATE_REQUIRED" in reason:
        return "it requires a client certificate"
    if "ALERT" in reason or "CERTIFICATE" in reason:
        return f"it rejected the client certificate ({reason.replace('_', ' ').lower()})"
    return f"TLS failed ({(reason or str(tls_error)).replace('_', ' ').lower()})"


def _is_reset(error: BaseException) -> bool:
    """Whether the peer closed the connection; the gateway's own connections tell no number."""
    numbers = {None, errno.ECONNRESET, errno.EPIPE}
    return isinstance(error, ConnectionError) and error.errno in numbers


def _is_disconnected(error: BaseException) -> bool:
    import aiohttp  # noqa: PLC0415  # the CLI does not use it

    return isinstance(error, aiohttp.ServerDisconnectedError)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # HTTP clients wrap OpenSSL's error in subclasses without details; the original is the cause.
        if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
