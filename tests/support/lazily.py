"""Libraries that take seconds to import, and that few tests need: every worker collects every test, and would import
them all."""

from __future__ import annotations

import importlib
from typing import Any


class ImportedWhenUsed:
    """In place of `import name`. (importlib's LazyLoader imports for any attribute, and pytest asks every object of a
    test module for some.)"""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
