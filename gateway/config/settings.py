"""All settings together, and where they are read from."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gateway.config.alerts import AlertSettings
from gateway.config.approvals import ApprovalSettings
from gateway.config.batches import BatchSettings
from gateway.config.engines import EngineSettings
from gateway.config.events import EventSettings
from gateway.config.exports import ExportSettings
from gateway.config.identity import IdentitySettings
from gateway.config.limits import LimitSettings
from gateway.config.requests import RequestSettings
from gateway.config.secret_files import (
    SECRETS,
    EnvironmentFiles,
    SecretFileError,
    YamlWithFiles,
    in_environment,
)
from gateway.config.server import ServerSettings
from gateway.config.storage import StorageSettings
from gateway.config.top_ups import TopUpSettings
from gateway.config.tracing import TracingSettings

SECRET: Final = SECRETS | {"operator_key"}
"""Settings whose values are never shown."""


class SettingsError(Exception):
    """A setting is invalid; the message names it and its allowed values."""


# Pydantic orders fields from the last base to the first, and so does docs/reference/settings.md.
class Settings(
    AlertSettings,
    ApprovalSettings,
    BatchSettings,
    EngineSettings,
    EventSettings,
    ExportSettings,
    IdentitySettings,
    LimitSettings,
    RequestSettings,
    ServerSettings,
    StorageSettings,
    TopUpSettings,
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
        return init_settings, env_settings, EnvironmentFiles(settings_cls), YamlWithFiles(settings_cls)


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
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    except (yaml.YAMLError, TypeError, ValueError, OSError) as error:
        raise SettingsError(f"florin.yaml cannot be read: {error}") from None


def secret_files() -> dict[str, Path]:
    """Setting → the file that it comes from, as of now. Raises SecretFileError, and what an unreadable
    florin.yaml raises."""
    return YamlWithFiles(Settings).files() | in_environment(os.environ)


def _describe(error: Any) -> str:
    """One line for an invalid setting. Values that may contain passwords are left out."""
    name = str(error["loc"][0])
    if name not in Settings.model_fields:
        meant = name.lower().removeprefix("florin_")
        close = difflib.get_close_matches(meant, Settings.model_fields, n=1, cutoff=0.7)
        return (
            f"florin.yaml: {name}: there is no such setting.{f' Did you mean {close[0]}?' if close else ''}"
        )
    shown = "" if name in SECRET else f" (got {error['input']!r})"
    return f"FLORIN_{name.upper()}: {error['msg'].removeprefix('Value error, ')}{shown}"
