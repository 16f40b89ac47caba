"""Sources as they may be shown and stored."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

_URLS = ("http", "https", "s3", "hf")
_SHA256 = re.compile(r"sha256=[0-9a-fA-F]{64}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB = re.compile(
    r"hf://(?P<place>[^/@]+/[^/@]+)(?:@(?P<revision>refs/[a-z]+/[^/]+|[^/]+))?(?P<folder>/.*)?", re.DOTALL
)


def public(uri: str) -> str:
    """`uri` without what may be a secret: user and password, the query, and all of what is not understood.

    This is what goes into the registry, errors and logs.
    """
    scheme = scheme_of(uri)
    if scheme == "":
        path = uri.startswith("/") and not uri.startswith("//")
        return uri if path or not set("@?") & set(uri) else "…"
    if scheme == "file" and uri[5:6] == "/":
        return f"file://{_location(urlsplit(uri))}"
    if scheme in _URLS and uri[len(scheme) :].startswith("://"):
        parts = urlsplit(uri)
        return f"{scheme}://{_location(parts) if _is_host(parts) else '…'}"
    return f"{scheme}:…"


def led_to(uri: str, found: str) -> bool:
    """Whether `found`, a source as the registry has it, is what `uri` meant when it was fetched: the same; or
    the commit that a revision of it, or a hub's cache, had then."""
    if public(uri) == found:
        return True
    named, commit = _HUB.fullmatch(uri), _HUB.fullmatch(found)
    if named is not None and commit is not None:
        folders = [(match["folder"] or "").strip("/") for match in (named, commit)]
        same = named["place"] == commit["place"] and folders[0] == folders[1]
        return same and not _is_commit(named["revision"]) and _is_commit(commit["revision"])
    path = unquote(urlsplit(uri).path) if scheme_of(uri) == "file" else uri
    begin = f"{path.rstrip('/')}/snapshots/"
    return path.startswith("/") and found.startswith(begin) and _is_commit(found.removeprefix(begin))


def _is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def scheme_of(uri: str) -> str:
    """In lower case; empty for a path, `?` for what is no URI at all."""
    try:
        return urlsplit(uri).scheme
    except ValueError:
        return "?"


def _is_host(parts: SplitResult) -> bool:
    """False: a password with a `/`, `?` or `#` in it ends the host too early, and the rest of it would be
    shown as path."""
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https"):
        return host != "" and ":" not in host
    try:
        parts.port  # noqa: B018 - it looks at what stands after the colon
    except ValueError:
        return False
    return host != ""


def _location(parts: SplitResult) -> str:
    fragment = f"#{parts.fragment}" if _SHA256.fullmatch(parts.fragment) else ""
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}{fragment}"
