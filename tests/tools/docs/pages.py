"""Every reference page, by its file in docs/reference/. A new page is a function and a line here (and one in
zensical.toml, where the site's navigation is)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.fields import page as parameters
from loadtests.gpu import page as gpu
from tests.tools.docs import cli, fleet_file, http_api, roles, tables

DIRECTORY: Final = Path(__file__).parents[3] / "docs" / "reference"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": tables.settings,
    "cli.md": cli.page,
    "fleet-file.md": fleet_file.page,
    "fleet-file.schema.json": fleet_file.schema,
    "http-api.md": http_api.page,
    "openapi.json": http_api.openapi_file,
    "roles.md": roles.page,
    "parameters.md": parameters.page,
    "errors.md": tables.errors,
    "checks.md": tables.checks,
    "conditions.md": tables.conditions,
    "audit.md": tables.audit,
    "metrics.md": tables.metrics,
    "engine-flags.md": tables.engine_flags,
    "gpu.md": gpu.page,
}
