"""Removes credentials from source URIs, so that they can be shown and stored."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

_URLS = ("http", "https", "s3", "gs", "az", "hf", "oci")
_SHA256 = re.compile(r"sha256=[0-9a-fA-F]{64}", re.ASCII)
_MODEL = re.compile(r"(?P<name>models:/[^/?#@:\x00-\x1f]{1,256})(?:/[0-9]{1,9}|@[^/?#@:\x00-\x1f]{1,256})")
_IMAGE = re.compile(r"(?P<name>oci://[^/@]+/[^:@]+)(?::[^@]+)?(?P<digest>@sha256:[0-9a-f]{64})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB = re.compile(
    r"hf://(?P<place>[^/@]+/[^/@]+)(?:@(?P<revision>refs/[a-z]+/[^/]+|[^/]+))?(?P<folder>/.*)?", re.DOTALL
)


def public(uri: str) -> str:
    """`uri` without possible secrets: user and password, the query, and anything that cannot be parsed.

    The registry, errors and logs use this form.
    """
    scheme = scheme_of(uri)
    if scheme == "":
        path = uri.startswith("/") and not uri.startswith("//")
        return uri if path or not set("@?") & set(uri) else "…"
    if scheme == "file" and uri[5:6] == "/":
        return f"file://{_location(urlsplit(uri))}"
    if scheme == "models" and _MODEL.fullmatch(uri):
        return uri
    if scheme in _URLS and uri[len(scheme) :].startswith("://"):
        parts = urlsplit(uri)
        return f"{scheme}://{_location(parts) if _is_host(parts) else '…'}"
    return f"{scheme}:…"


def led_to(uri: str, registered: str) -> bool:
    """Whether `registered`, a source in the registry, may result from fetching `uri`: it is the same, or what
    a revision, a tag, an alias or the Hub's cache resolved to."""
    if public(uri) == registered:
        return True
    named, commit = _HUB.fullmatch(uri), _HUB.fullmatch(registered)
    if named is not None and commit is not None:
        folders = [(match["folder"] or "").strip("/") for match in (named, commit)]
        same = named["place"] == commit["place"] and folders[0] == folders[1]
        return same and not _is_commit(named["revision"]) and _is_commit(commit["revision"])
    for kind in (_MODEL, _IMAGE):
        named, resolved = kind.fullmatch(uri), kind.fullmatch(registered)
        if named is not None and resolved is not None:
            fixed = uri[len(named["name"])] == "/" if kind is _MODEL else named["digest"]
            return named["name"] == resolved["name"] and not fixed
    path = unquote(urlsplit(uri).path) if scheme_of(uri) == "file" else uri
    begin = f"{path.rstrip('/')}/snapshots/"
    return (
        path.startswith("/") and registered.startswith(begin) and _is_commit(registered.removeprefix(begin))
    )


def _is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def scheme_of(uri: str) -> str:
    """The scheme in lower case; empty for a path, `?` if `uri` is not a URI."""
    try:
        return urlsplit(uri).scheme
    except ValueError:
        return "?"


def _is_host(parts: SplitResult) -> bool:
    """False if a password may contain `/`, `?` or `#`: it would end the host too early, and the rest of it
    would be shown as the path."""
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https", "oci"):
        return host != "" and ":" not in host
    try:
        parts.port  # noqa: B018 - accessing it validates the port
    except ValueError:
        return False
    return host != ""


def _location(parts: SplitResult) -> str:
    fragment = f"#{parts.fragment}" if _SHA256.fullmatch(parts.fragment) else ""
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}{fragment}"
