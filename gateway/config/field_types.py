"""What the groups of settings share: types, the mark of reloadable settings, parsing of lists and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, JsonValue
from yarl import URL

RELOAD: Final[dict[str, JsonValue]] = {"reload": True}
"""Marks settings that SIGHUP reloads, see `gateway.runtime.settings_reload`."""

Port = Annotated[int, Field(ge=0, le=65535)]


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


def http_url(text: str) -> str:
    """`text`, if it is empty or an http(s) URL. Raises ValueError."""
    url = URL(text)
    if text and (url.scheme not in ("http", "https") or not url.raw_host):
        raise ValueError("must be an http:// or https:// URL")
    return text


def listed(entries: str) -> tuple[str, ...]:
    """The entries of a comma-separated setting."""
    return tuple(entry.strip() for entry in entries.split(",") if entry.strip())
