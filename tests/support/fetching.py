"""One fetch of a source as the tests of every kind of source look at it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapters import sources
from adapters.checks.findings import Findings
from adapters.sources.options import FetchOptions


@dataclass
class Fetched:
    codes: list[str]
    landed: dict[str, bytes]
    """Name → content of what lies at the destination."""
    public: str
    said: str
    """All that the findings say, for a look for secrets."""


SERVER_THREADS = ("_accept", "_serve", "process_request")
"""In the names of the threads of the tests' own servers, the hostile one's and moto's: they may end late."""


def fetcher(tmp_path: Path, options: FetchOptions) -> Callable[..., Fetched]:
    """A function that fetches into a fresh directory each time, and sees that it leaves no thread."""
    count = itertools.count()

    def ours() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if not any(name in t.name for name in SERVER_THREADS)}

    def fetch(uri: str, **changes: Any) -> Fetched:
        destination = tmp_path / f"box-{next(count)}" / "files"
        destination.mkdir(parents=True)
        findings, before = Findings(), ours()
        public = sources.fetch(uri, destination, options=replace(options, **changes), findings=findings)
        assert not ours() - before, "a thread is left"
        assert list(destination.parent.iterdir()) == [destination]
        landed = {path.name: path.read_bytes() for path in destination.iterdir()}
        said = " ".join(f"{f.message} {f.found} {f.expected}" for f in findings.all())
        return Fetched([f.code for f in findings.all()], landed, public, said)

    return fetch
