from __future__ import annotations

from tests.integration.conftest import admin, deployment, engine, gateway, model, unload  # noqa: F401  # fixtures
