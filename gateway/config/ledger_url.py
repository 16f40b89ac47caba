"""The ledger's URL: SQLAlchemy's, or with several PostgreSQL servers, as libpq writes it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, urlencode

from sqlalchemy import make_url

_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+)(?::(?P<port>[0-9]{1,5}))?\Z")
_WRITABLE: Final = ("target_session_attrs", "read-write")
"""libpq's option to connect to whichever of several servers accepts writes."""


def sqlalchemy_url(url: str) -> str:
    """`postgresql+psycopg://USER@HOST:PORT,HOST:PORT/DB` as SQLAlchemy writes it; other URLs unchanged. Among
    several servers, it chooses the one that accepts writes. Raises ValueError, and SQLAlchemy's errors."""
    scheme, separator, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, _, database = rest.partition("/")
    login, at, hosts = netloc.rpartition("@")
    options = parse_qsl(query, keep_blank_values=True)
    if not scheme.startswith("postgresql") or ("," not in hosts and not _several(options)):
        make_url(url)
        return url
    if "," in hosts:
        found = [_HOST.match(host) for host in hosts.split(",")]
        if not all(found) or any(name in {"host", "port"} for name, _ in options):
            msg = "with several servers, must be postgresql+psycopg://USER@HOST:PORT,HOST:PORT/DATABASE"
            raise ValueError(msg)
        options = [
            ("host", ",".join(match["host"].strip("[]") for match in found if match)),
            ("port", ",".join(match["port"] or "" for match in found if match)),
            *options,
        ]
    if _WRITABLE[0] not in dict(options):
        options.append(_WRITABLE)
    written = f"{scheme}{separator}{login}{at}/{database}?{urlencode(options)}"
    make_url(written)
    return written


def _several(options: list[tuple[str, str]]) -> bool:
    hosts = [value for name, value in options if name == "host"]
    return len(hosts) > 1 or any("," in host for host in hosts)
