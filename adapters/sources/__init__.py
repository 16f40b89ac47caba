"""Where adapters come from: one module per URI scheme, each with the same signature.

A new scheme is a new module and one line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from adapters.findings import Findings, shown
from adapters.sources import file

Fetch = Callable[..., None]
"""`fetch(uri, destination, *, max_bytes, findings)`: puts the two files of an adapter into the empty
directory `destination`, or adds findings. Raises OSError for what is wrong on this side. Blocking."""

SCHEMES: dict[str, Fetch] = {"": file.fetch, "file": file.fetch}


def fetch(uri: str, destination: Path, *, max_bytes: int, findings: Findings) -> None:
    try:
        scheme = urlsplit(uri).scheme
    except ValueError:
        scheme = "?"
    if scheme not in SCHEMES:
        findings.add(
            "source_unsupported",
            "Adapters cannot be fetched from there.",
            found=shown(uri),
            expected="an absolute directory path, or file:// and such a path",
        )
        return
    SCHEMES[scheme](uri, destination, max_bytes=max_bytes, findings=findings)
