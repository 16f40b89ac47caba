"""Reloads settings from `florin.yaml` on SIGHUP. (A process's environment cannot change.)

Changes to settings marked `RELOAD` in `gateway.config` take effect; for others, a warning says that they need
a restart. An invalid file changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from gateway.config import RELOADABLE, Settings, SettingsError, load_settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reload:
    settings: Settings
    """In effect from now on."""
    changed: tuple[str, ...] = ()
    """Names of settings that take effect."""
    waiting: tuple[str, ...] = ()
    """Names of changed settings that need a restart."""
    refused: str = ""
    """Why nothing was changed."""

    @property
    def message(self) -> dict[str, Any]:
        """The message to workers, as JSON: see `received`."""
        return {"changed": {n: getattr(self.settings, n) for n in self.changed}, "refused": self.refused}


def received(current: Settings, message: dict[str, Any]) -> Reload:
    """The reload in a message from the parent process."""
    changed = dict(message["changed"])
    return Reload(current.model_copy(update=changed), tuple(changed), refused=message["refused"])


def reread(current: Settings) -> Reload:
    """Read the settings and log what has changed since `current`. Blocks."""
    try:
        found = load_settings()
    except SettingsError as error:
        log.error("Settings not reloaded: %s", error)
        return Reload(current, refused=str(error))
    reload = compare(current, found)
    for name in reload.changed:
        old, new = getattr(current, name), getattr(found, name)
        log.info("%s changed from %r to %r", variable(name), old, new)
    if reload.waiting:
        log.warning("Changed settings that need a restart: %s", ", ".join(map(variable, reload.waiting)))
    log.info("Settings reloaded: %d changed", len(reload.changed))
    return reload


def compare(current: Settings, found: Settings) -> Reload:
    differ = [name for name in Settings.model_fields if getattr(current, name) != getattr(found, name)]
    if not found.redis_url:  # `current` has the embedded server's URL
        differ = [name for name in differ if name != "redis_url"]
    changed = tuple(name for name in differ if name in RELOADABLE)
    return Reload(
        current.model_copy(update={name: getattr(found, name) for name in changed}),
        changed,
        tuple(name for name in differ if name not in RELOADABLE),
    )


def variable(name: str) -> str:
    return f"FLORIN_{name.upper()}"
