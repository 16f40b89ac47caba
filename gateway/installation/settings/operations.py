"""The settings that a gateway works with, and where they come from. Secrets are left out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Final, Literal

from pydantic import SecretStr

from gateway.config.settings import RELOADABLE, SECRET, Settings
from gateway.installation.schemas import Certificate, Setting
from gateway.observability import build_info
from gateway.runtime.transport_security import TransportSecurity

_SECRET_NAME: Final = re.compile(r".*_(secret|password|token)")


def effective(settings: Settings, environment: Mapping[str, str]) -> list[Setting]:
    """One row for each setting, in the order of the documentation. `environment`: that of this process."""
    names = {name.upper() for name, value in environment.items() if value}  # like `env_ignore_empty`
    fields = {name: f"FLORIN_{name.upper()}" for name in type(settings).model_fields}
    return [
        _row(settings, name, in_environment=bool(names & {variable, f"{variable}_FILE"}))
        for name, variable in fields.items()
    ]


def _row(settings: Settings, name: str, *, in_environment: bool) -> Setting:
    field = type(settings).model_fields[name]
    value = getattr(settings, name)
    secret = name in SECRET or isinstance(value, SecretStr) or _SECRET_NAME.fullmatch(name) is not None
    source: Literal["default", "environment", "florin.yaml"] = "default"
    if name in settings.model_fields_set:
        source = "environment" if in_environment else "florin.yaml"
    return Setting(
        name=f"FLORIN_{name.upper()}",
        group=_group(name),
        value=None if secret else _shown(value),
        set=bool(value.get_secret_value() if isinstance(value, SecretStr) else value),
        default=None if secret else _shown(field.default),
        secret=secret,
        source=source,
        reloadable=name in RELOADABLE,
        description=field.description or "",
    )


def _group(name: str) -> str:
    """The module of `gateway.config` that declares it."""
    owner = next(kind for kind in Settings.__mro__ if name in inspect.get_annotations(kind))
    return owner.__module__.rpartition(".")[2]


def _shown(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def certificates(security: TransportSecurity) -> list[Certificate]:
    """The certificates in use."""
    return [
        Certificate(
            name=identity.name, expires=int(identity.pair.not_after * 1e6), trouble=identity.trouble or ""
        )
        for identity in security.identities
    ]


@cache  # reading them takes 10 ms
def versions() -> dict[str, str]:
    libraries = {name: version(name) for name in ("fastapi", "sqlalchemy", "redis")}
    return {"florin-gateway": build_info.build(), **libraries}
