"""The image's HEALTHCHECK: does the gateway of this container answer /healthz? Ends with 0 if so.

It speaks TLS if the gateway does, without verifying the certificate, which need not cover 127.0.0.1. Where
the gateway asks clients for certificates, it presents FLORIN_CLIENT_CERT, as Florin's commands do.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 2.0


def problem(env: Mapping[str, str]) -> str:
    """Empty: it answers."""
    port = int(env.get("FLORIN_PORT", "8080"))
    try:
        connection: HTTPConnection
        if env.get("FLORIN_TLS_CERT"):
            connection = HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=_unverified(env))
        else:
            connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, HTTPException) as error:  # also TLS, and a certificate that is missing
        return f"/healthz: {error!r}"
    return "" if status == 200 else f"/healthz: {status}"  # OK


def _unverified(env: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate := env.get("FLORIN_CLIENT_CERT"):
        context.load_cert_chain(certificate, env.get("FLORIN_CLIENT_KEY"))
    return context


if __name__ == "__main__":
    sys.exit(problem(os.environ) or 0)
