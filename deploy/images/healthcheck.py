"""The images' health checks: does a server of this container answer its health route? Ends with 0 if so.

Without arguments, it asks the gateway for /healthz, with TLS if the gateway speaks TLS. `PORT PATH` asks an
engine or its agent at POD_IP with mutual TLS: kubelets cannot, since they have no client certificate.

It never verifies the server's certificate, which need not cover the address. It presents the certificate that
Florin's own calls present: FLORIN_CLIENT_CERT to the gateway, FLORIN_ENGINE_CERT to an engine.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 2.0


def problem(env: Mapping[str, str], arguments: Sequence[str] = ()) -> str:
    """Empty: it answers. `arguments`: an engine's port and path; empty: the gateway's."""
    if arguments:
        port, path = arguments
        host, certificate, tls = env.get("POD_IP", "127.0.0.1"), "FLORIN_ENGINE", True
    else:
        port, path = env.get("FLORIN_PORT", "8080"), "/healthz"
        host, certificate, tls = "127.0.0.1", "FLORIN_CLIENT", bool(env.get("FLORIN_TLS_CERT"))
    try:
        connection: HTTPConnection
        if tls:
            context = _unverified(env.get(f"{certificate}_CERT"), env.get(f"{certificate}_KEY"))
            connection = HTTPSConnection(host, int(port), timeout=TIMEOUT_S, context=context)
        else:
            connection = HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, HTTPException) as error:  # also TLS, and a certificate that is missing
        return f"{path}: {error!r}"
    return "" if status == 200 else f"{path}: {status}"  # OK


def _unverified(certificate: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


if __name__ == "__main__":
    sys.exit(problem(os.environ, sys.argv[1:]) or 0)
