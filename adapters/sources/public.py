"""Sources as they may be shown and stored."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_URLS = ("http", "https", "s3", "hf")
_SHA256 = re.compile(r"sha256=[0-9a-fA-F]{64}", re.ASCII)


def public(uri: str) -> str:
    """`uri` without what may be a secret: user and password, the query, and all of what is not understood.

    This is what goes into the registry, errors and logs.
    """
    scheme = scheme_of(uri)
    if scheme == "":
        path = uri.startswith("/") and not uri.startswith("//")
        return uri if path or not set("@?") & set(uri) else "…"
    if scheme == "file" and uri[5:6] == "/":
        return f"file://{_location(uri)}"
    if scheme in _URLS and uri[len(scheme) :].startswith("://"):
        return f"{scheme}://{_location(uri)}"
    return f"{scheme}:…"


def scheme_of(uri: str) -> str:
    """In lower case; empty for a path, `?` for what is no URI at all."""
    try:
        return urlsplit(uri).scheme
    except ValueError:
        return "?"


def _location(uri: str) -> str:
    parts = urlsplit(uri)
    fragment = f"#{parts.fragment}" if _SHA256.fullmatch(parts.fragment) else ""
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}{fragment}"
