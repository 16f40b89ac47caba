"""Settings: FLORIN_* environment variables, or `florin.yaml` in the working directory (the environment wins).

Each field's description becomes a line of docs/reference/settings.md, which `python -m tests.tools.docs`
writes.
"""

from __future__ import annotations

from gateway.config.settings import RELOADABLE, SECRET, Settings, SettingsError, load_settings, secret_files

__all__ = ["RELOADABLE", "SECRET", "Settings", "SettingsError", "load_settings", "secret_files"]
