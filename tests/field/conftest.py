from __future__ import annotations

from tests.integration.conftest import admin, deployment, engine, gateway, model  # noqa: F401  # fixtures
