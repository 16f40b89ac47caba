"""Templates and static files: compiled and compressed once per worker."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.console import cells, formats
from gateway.console.visit import Entry, Visit

_MEDIA: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
BUNDLES: Final = {
    "console.js": ("vendor/htmx.js", "vendor/htmx-sse.js", "vendor/idiomorph.js", "console.js"),
    "console.css": (
        "tokens.css",
        "layout.css",
        "components.css",
        "adapters.css",
        "tenants.css",
        "fleet.css",
        "requests.css",
        "money.css",
    ),
    "charts.js": ("vendor/uplot.js", "charts.js"),
    "charts.css": ("vendor/uplot.css",),
    "adapters.js": ("adapters.js",),
    "chat.js": ("chat.js",),
    "icons.svg": ("icons.svg",),
}
"""What browsers load, and the files in `static/` that it is made of."""


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    compressed: bytes
    media: str
    version: str
    """A digest of its content; in its URL, so that browsers may keep it for ever."""


class Renderer:
    """One per worker. Importing jinja2 and compiling take a moment: made at the first page."""

    def __init__(self, entries: tuple[Entry, ...], clock: Callable[[], int]) -> None:
        """`clock`: Unix microseconds."""
        self.assets = {name: _asset(name, parts) for name, parts in BUNDLES.items()}
        self._clock = clock
        env = Environment(
            loader=PackageLoader("gateway.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Callable[..., str]] = {
            "exact": formats.exact,
            "iso": formats.iso,
            "relative": lambda moment: formats.relative(moment, clock()),
            "number": formats.number,
            "compact": formats.compact,
            "size": formats.size,
            "percent": formats.percent,
            "seconds": formats.seconds,
            "money": formats.money,
            "rate": formats.rate,
            "prose": cells.prose,
        }
        env.filters |= filters
        env.globals |= {
            "asset": self._url,
            "entries": entries,
            "moment": lambda moment: cells.time(moment, clock()),
            "table_rows": lambda view, visit: cells.rows(view.heads, view.rows, visit.reaches, clock()),
        }
        self._env = env

    def templates(self) -> list[str]:
        return self._env.list_templates(extensions=["j2"])

    def compile(self, template: str) -> None:
        """Ahead of its first use, which then takes a tenth of the time. From any thread."""
        self._env.get_template(template)

    def render(self, template: str, *, visit: Visit | None = None, **context: Any) -> str:
        """`visit`: None for a page that needs no sign-in."""
        return self._env.get_template(template).render(visit=visit, now=self._clock(), **context)

    def _url(self, name: str) -> str:
        return f"/console/static/{self.assets[name].version}/{name}"


def _asset(name: str, parts: tuple[str, ...]) -> Asset:
    folder = files("gateway.console") / "static"
    body = b"\n".join((folder / part).read_bytes() for part in parts)
    version = hashlib.sha256(body).hexdigest()[:12]
    return Asset(body, gzip.compress(body, mtime=0), _MEDIA[name.rpartition(".")[2]], version)
