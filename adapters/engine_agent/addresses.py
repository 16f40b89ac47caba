"""Finds the addresses on which the engine and the agent listen and are reached."""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit

ANYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognized, not bound


def route_to(gateway: str) -> str:
    """The local address used to reach the gateway, at which the gateway should reach this host. Raises
    ValueError."""
    parts = urlsplit(gateway)
    try:
        where = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[0]
        with socket.socket(where[0], socket.SOCK_DGRAM) as probe:
            probe.connect(where[4])  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(str(error)) from error


def split(url: str) -> tuple[str, int | None]:
    """Host and port of `http[s]://host[:port]`. Raises ValueError for any other URL."""
    parts = urlsplit(url)
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or parts.port == 0
        or parts.path not in {"", "/"}
    ):
        raise ValueError(url)
    return parts.hostname, parts.port


def to_bind(host: str) -> str:
    """`host` if it is an address of this machine; otherwise all addresses, assuming that `host` forwards
    here."""
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
            return str(address[0])
    return "0.0.0.0"  # noqa: S104 - as the docstring says


def bracketed(host: str) -> str:
    """The address as written in a URL, with brackets for IPv6."""
    return f"[{host}]" if ":" in host else host
