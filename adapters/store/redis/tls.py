"""TLS to Redis. redis-py would read the certificates, all of the system's among them, for every connection;
that blocks the event loop for 20 to 80 ms, and a failover opens dozens."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio.connection import RedisSSLContext, SSLConnection

_FILES = ("ca_certs", "certfile", "keyfile")


class TlsConnection(SSLConnection):
    """A connection whose certificates are read again only when their files have changed."""

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.ssl_context.context = _shared(self.ssl_context)
        return super()._connection_arguments()


def _shared(options: RedisSSLContext) -> ssl.SSLContext:
    """Raises ConnectionError."""
    values = {name: getattr(options, name) for name in RedisSSLContext.__slots__ if name != "context"}
    for name in ("include_verify_flags", "exclude_verify_flags"):
        values[name] = tuple(values[name] or ())
    files = [values[name] for name in _FILES if values[name]]
    try:
        return _read(tuple(values.items()), tuple((path, Path(path).stat().st_mtime_ns) for path in files))
    except OSError as error:
        cause = f"{error.filename}: {error.strerror}" if error.filename else f"{', '.join(files)}: {error}"
        raise redis_errors.ConnectionError(f"the certificates for TLS cannot be read: {cause}") from error


@functools.lru_cache(maxsize=8)
def _read(options: tuple[tuple[str, Any], ...], _files: tuple[tuple[str, int], ...]) -> ssl.SSLContext:
    """Trusts the authorities that are named, and the system's only if none is."""
    requested = RedisSSLContext(**dict(options))
    context = ssl.create_default_context(
        cafile=requested.ca_certs, capath=requested.ca_path, cadata=requested.ca_data
    )
    context.check_hostname = requested.check_hostname
    context.verify_mode = requested.cert_reqs
    for flag in requested.include_verify_flags or ():
        context.verify_flags |= flag
    for flag in requested.exclude_verify_flags or ():
        context.verify_flags &= ~flag
    if requested.certfile:
        context.load_cert_chain(requested.certfile, requested.keyfile, requested.password)
    if requested.min_version is not None:
        context.minimum_version = requested.min_version
    if requested.ciphers is not None:
        context.set_ciphers(requested.ciphers)
    return context
