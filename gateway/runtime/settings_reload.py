"""Settings read again while the gateway runs, on SIGHUP: `florin.yaml` may have changed; the environment of a
process cannot.

What is marked `reload` in `gateway.config` is taken into use; a change of anything else is logged as waiting
for a restart. A file with any mistake in it changes nothing.
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
    """In force from now on."""
    changed: tuple[str, ...] = ()
    """Taken into use."""
    waiting: tuple[str, ...] = ()
    """Changed, but for the next start."""
    refused: str = ""
    """Why nothing was changed."""

    @property
    def message(self) -> dict[str, Any]:
        """For a worker, as JSON: see `received`."""
        return {"changed": {n: getattr(self.settings, n) for n in self.changed}, "refused": self.refused}


def received(current: Settings, message: dict[str, Any]) -> Reload:
    """What the parent of workers has read and checked."""
    changed = dict(message["changed"])
    return Reload(current.model_copy(update=changed), tuple(changed), refused=message["refused"])


def reread(current: Settings) -> Reload:
    """What has changed since `current`; said in the log. Blocking."""
    try:
        found = load_settings()
    except SettingsError as error:
        log.error("Settings were not reloaded, and nothing was changed: %s", error)
        return Reload(current, refused=str(error))
    reload = compare(current, found)
    for name in reload.changed:
        old, new = getattr(current, name), getattr(found, name)
        log.info("%s is now %r; it was %r", variable(name), new, old)
    if reload.waiting:
        log.warning(
            "Changed, but only a restart takes it into use: %s", ", ".join(map(variable, reload.waiting))
        )
    log.info("Settings reloaded: %d changed", len(reload.changed))
    return reload


def compare(current: Settings, found: Settings) -> Reload:
    differ = [name for name in Settings.model_fields if getattr(current, name) != getattr(found, name)]
    if not found.redis_url:  # an embedded server has a URL of its own
        differ = [name for name in differ if name != "redis_url"]
    changed = tuple(name for name in differ if name in RELOADABLE)
    return Reload(
        current.model_copy(update={name: getattr(found, name) for name in changed}),
        changed,
        tuple(name for name in differ if name not in RELOADABLE),
    )


def variable(name: str) -> str:
    return f"FLORIN_{name.upper()}"
