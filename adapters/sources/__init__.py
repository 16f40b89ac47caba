"""Where adapters come from: one module per kind of source, each with the same signature.

A new scheme is a new module and one line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from adapters.checks.findings import Findings, shown
from adapters.progress import Progress
from adapters.sources.options import FetchOptions
from adapters.sources.public_uri import led_to, public, scheme_of

__all__ = ["SCHEMES", "FetchOptions", "Progress", "fetch", "led_to", "public"]

Fetch = Callable[..., str]
"""`fetch(uri, destination, *, options, findings)`: puts an adapter's known files into the empty directory
`destination`, or adds findings. Returns the source as it may be shown and stored: without credentials, and
with the revision that was found. Raises OSError for what is wrong on this side. Blocking."""

SCHEMES: dict[str, str] = {
    "": "adapters.sources.file",
    "file": "adapters.sources.file",
    "http": "adapters.sources.http",
    "https": "adapters.sources.http",
    "s3": "adapters.sources.s3",
    "hf": "adapters.sources.hub",
}
"""Scheme → module. Imported when first used: the libraries behind some take half a second to import."""

KINDS = "an absolute path, or a file://, http(s)://, s3:// or hf:// URL"


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `Fetch`. `destination` must be alone in its parent directory: what is under way lies beside it."""
    module = SCHEMES.get(scheme_of(uri))
    if module is None:
        findings.add(
            "source_unsupported",
            "Adapters cannot be fetched from there.",
            found=shown(public(uri)),
            expected=KINDS,
        )
        return public(uri)
    run = cast(Fetch, import_module(module).fetch)
    return run(uri, destination, options=options, findings=findings)
