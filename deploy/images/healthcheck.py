"""The image's HEALTHCHECK: does the gateway of this container answer /healthz? Ends with 0 if so.

It speaks TLS if the gateway does, without verifying the certificate, which need not cover 127.0.0.1. Where the
gateway asks clients for certificates, it presents FLORIN_CLIENT_CERT, as Florin's commands do.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from collections.abc import Mapping

TIMEOUT_S = 2.0


def problem(env: Mapping[str, str]) -> str:
    """Empty: it answers."""
    secure = bool(env.get("FLORIN_TLS_CERT"))
    url = f"{'https' if secure else 'http'}://127.0.0.1:{env.get('FLORIN_PORT', '8080')}/healthz"
    try:
        context = _unverified(env) if secure else None
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context):  # noqa: S310  # this container
            return ""
    except OSError as error:  # URLError, HTTPError, a timeout, TLS, a missing certificate
        return f"{url}: {error}"


def _unverified(env: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate := env.get("FLORIN_CLIENT_CERT"):
        context.load_cert_chain(certificate, env.get("FLORIN_CLIENT_KEY"))
    return context


if __name__ == "__main__":
    sys.exit(problem(os.environ) or 0)
