"""Secrets from files, as Docker, Kubernetes and systemd hand them out: `FLORIN_REDIS_URL_FILE` names the file
with the value of `FLORIN_REDIS_URL`; in florin.yaml, `redis_url_file`.

Files of any mode are read: what mounts secrets often gives no choice. `florin doctor` warns of those that
others can read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource, YamlConfigSettingsSource

SECRETS: Final = frozenset(
    {
        *("redis_url", "ledger_url", "cache_secret", "oidc_client_secret"),
        *("budget_webhook", "cost_webhook", "cost_webhook_secret", "top_up_secret"),
        *("events_secret", "audit_events_to", "audit_events_token", "usage_events_to", "usage_events_token"),
    }
)
"""Settings that may stand in a file. (The bootstrap key and engines' token have their own settings.)"""
OTHERS: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"),
)
"""Variables of libraries that Florin uses, which files can provide, too, at start."""
_SUFFIX: Final = "_file"
_MOST: Final = 64 * 1024


class SecretFileError(Exception):
    """The file cannot be used; the message begins with the setting's name."""


def variable(name: str) -> str:
    return f"FLORIN_{name.upper()}_FILE"


def in_environment(environ: Mapping[str, str]) -> dict[str, Path]:
    """Setting → its file, of those that the environment names. Raises SecretFileError if it also has the
    value."""
    paths = {}
    for name in sorted(SECRETS):
        if path := environ.get(variable(name)):
            if environ.get(f"FLORIN_{name.upper()}"):
                raise SecretFileError(
                    f"{variable(name)}: FLORIN_{name.upper()} is also set; set only one of them"
                )
            paths[name] = Path(path)
    return paths


def export_others(environ: MutableMapping[str, str]) -> None:
    """Set the variables of OTHERS whose files are named. Raises SecretFileError."""
    for name in OTHERS:
        if path := environ.get(f"{name}_FILE"):
            if environ.get(name):
                raise SecretFileError(f"{name}_FILE: {name} is also set; set only one of them")
            environ[name] = read(Path(path), f"{name}_FILE")


def read(path: Path, name: str) -> str:
    """The one line in the file. `name`: of the setting, for errors. Raises SecretFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise SecretFileError(f"{name}: {path} cannot be read: {_reason(error)}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SecretFileError(f"{name}: {path} is not a file")
        content = os.read(descriptor, _MOST + 1)
    except OSError as error:
        raise SecretFileError(f"{name}: {path} cannot be read: {_reason(error)}") from error
    finally:
        os.close(descriptor)
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        text = "\0"
    if not text:
        raise SecretFileError(f"{name}: {path} is empty")
    if len(content) > _MOST or not text.isprintable():
        raise SecretFileError(f"{name}: {path} does not hold one line of text")
    return text


def open_to_others(paths: Mapping[str, Path]) -> Iterator[tuple[str, Path, int]]:
    """(setting, file, mode) of the files that all users can read. Blocking."""
    for name, path in sorted(paths.items()):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            yield name, path, mode


class EnvironmentFiles(PydanticBaseSettingsSource):
    """The secrets whose files the environment names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return None, field_name, False  # `__call__` reads all at once

    def __call__(self) -> dict[str, Any]:
        files = in_environment(os.environ)
        return {name: read(path, variable(name)) for name, path in files.items()}


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is there twice; PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # `port: {{ PORT }}`: PyYAML says where it is
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ValueError(f"line {line}: {key.value!r} is already in line {lines[key.value]}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class YamlWithFiles(YamlConfigSettingsSource):
    """florin.yaml, in which `redis_url_file` stands for the content of that file as `redis_url`."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        with file_path.open("rb") as file:
            document = yaml.load(file, _UniqueKeys) or {}  # noqa: S506  # a SafeLoader
        if not isinstance(document, dict):
            raise TypeError("it must map settings to values, like `port: 8080`")
        return document

    def files(self) -> dict[str, Path]:
        """Setting → its file. Raises SecretFileError if the value is there, too."""
        document, paths = super().__call__(), {}
        for name in sorted(SECRETS):
            if path := document.get(name + _SUFFIX):
                if document.get(name):
                    raise SecretFileError(
                        f"florin.yaml: {name}{_SUFFIX}: {name} is also set; set only one of them"
                    )
                paths[name] = Path(str(path))
        return paths

    def __call__(self) -> dict[str, Any]:
        names = {name + _SUFFIX for name in SECRETS}
        document = {name: value for name, value in super().__call__().items() if name not in names}
        return document | {
            name: read(path, f"florin.yaml: {name}{_SUFFIX}") for name, path in self.files().items()
        }


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
