"""All settings together, and where they are read from."""

from __future__ import annotations

from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from gateway.config.alerts import AlertSettings
from gateway.config.batches import BatchSettings
from gateway.config.engines import EngineSettings
from gateway.config.events import EventSettings
from gateway.config.exports import ExportSettings
from gateway.config.limits import LimitSettings
from gateway.config.requests import RequestSettings
from gateway.config.server import ServerSettings
from gateway.config.storage import StorageSettings
from gateway.config.tracing import TracingSettings

_SECRET = {
    *("redis_url", "ledger_url", "operator_key", "budget_webhook", "cost_webhook", "cost_webhook_secret"),
    *("events_secret", "audit_events_to", "audit_events_token", "usage_events_to", "usage_events_token"),
}


class SettingsError(Exception):
    """A setting is invalid; the message names it and its allowed values."""


# Pydantic orders fields from the last base to the first, and so does docs/reference/settings.md.
class Settings(
    AlertSettings,
    BatchSettings,
    EngineSettings,
    EventSettings,
    ExportSettings,
    LimitSettings,
    RequestSettings,
    ServerSettings,
    StorageSettings,
    TracingSettings,
    BaseSettings,
):
    """The settings of one gateway: frozen, so a reload replaces them as a whole."""

    model_config = SettingsConfigDict(
        env_prefix="FLORIN_", yaml_file="florin.yaml", extra="forbid", frozen=True, env_ignore_empty=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


RELOADABLE: Final = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("reload")
)
"""Settings that SIGHUP reloads from florin.yaml."""


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment and florin.yaml. Raises SettingsError."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("\n".join(_describe(e) for e in error.errors())) from None
    except (yaml.YAMLError, TypeError, ValueError, OSError) as error:
        raise SettingsError(f"florin.yaml cannot be read: {error}") from None


def _describe(error: Any) -> str:
    """One line for an invalid setting. Values that may contain passwords are left out."""
    name = str(error["loc"][0])
    shown = "" if name in _SECRET else f" (got {error['input']!r})"
    known = name in Settings.model_fields
    where = f"FLORIN_{name.upper()}" if known else f"florin.yaml: {name}"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}{shown}"
