"""Fetches adapters: one module per kind of source, all with the same signature.

A new scheme is a new module and one line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from adapters.checks.findings import Findings, shown
from adapters.sources.options import FetchOptions
from adapters.sources.public_uri import public, scheme_of

Fetch = Callable[..., str]
"""`fetch(uri, destination, *, options, findings)` writes an adapter's known files to the empty directory
`destination`, or adds findings. Returns the source without credentials, with the resolved revision. Raises
OSError for local failures. Blocking."""

SCHEMES: dict[str, str] = {
    "": "adapters.sources.file",
    "file": "adapters.sources.file",
    "http": "adapters.sources.http",
    "https": "adapters.sources.http",
    "s3": "adapters.sources.object_store",
    "gs": "adapters.sources.object_store",
    "az": "adapters.sources.object_store",
    "hf": "adapters.sources.hub",
    "oci": "adapters.sources.oci",
    "models": "adapters.sources.mlflow",
}
"""Scheme → module, imported on first use because some libraries take half a second to import."""

KINDS = "an absolute path, a URL of file, http(s), s3, gs, az, hf or oci, or models:/NAME/VERSION"


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `Fetch`. `destination` must be alone in its parent directory, which takes the temporary files."""
    module = SCHEMES.get(scheme_of(uri))
    if module is None:
        findings.add(
            "source_unsupported",
            "The source is of an unsupported kind.",
            found=shown(public(uri)),
            expected=KINDS,
        )
        return public(uri)
    run = cast(Fetch, import_module(module).fetch)
    return run(uri, destination, options=options, findings=findings)
