"""What the API tells of the settings."""

from __future__ import annotations

from gateway.config import Settings
from gateway.installation.schemas import Setting
from gateway.installation.settings.operations import effective

ENVIRONMENT = {"florin_port": "9", "FLORIN_REDIS_URL_FILE": "/run/redis", "FLORIN_HOST": ""}


def rows(**given: object) -> dict[str, Setting]:
    settings = Settings(**given)  # type: ignore[arg-type]  # as in florin.yaml
    return {row.name: row for row in effective(settings, ENVIRONMENT)}


def test_where_a_value_comes_from():
    found = rows(port=9, redis_url="redis://u:hidden@h", log_level="debug")
    assert found["FLORIN_PORT"].source == "environment"
    assert found["FLORIN_REDIS_URL"].source == "environment"
    assert found["FLORIN_LOG_LEVEL"].source == "florin.yaml"
    assert found["FLORIN_HOST"].source == "default"
    assert (found["FLORIN_LOG_LEVEL"].reloadable, found["FLORIN_PORT"].reloadable) == (True, False)
    assert (found["FLORIN_PORT"].value, found["FLORIN_PORT"].default) == (9, 8080)
    assert all(row.description for row in found.values())


def test_no_secret_is_told():
    found = rows(
        redis_url="redis://user:hidden@host",
        operator_key="hidden-operator-key",
        budget_webhook="https://hooks.example/hidden",
    )
    assert "hidden" not in str(found)
    assert (found["FLORIN_REDIS_URL"].set, found["FLORIN_REDIS_URL"].value) == (True, None)
    assert found["FLORIN_LEDGER_URL"].set is False
