"""Labels, as people type them: `--label pool=acme`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.commands.client import UsageError


def labels(option: str, given: Iterable[str] | None) -> dict[str, str]:
    """Parses `LABEL=VALUE` pairs. Raises UsageError."""
    found: dict[str, str] = {}
    for pair in given or ():
        label, equals, value = pair.partition("=")
        if not (label and equals and value):
            raise UsageError(f"{option}: {pair!r} is not LABEL=VALUE.")
        if found.setdefault(label, value) != value:
            raise UsageError(f"{option}: {label} is given twice, as {found[label]!r} and {value!r}.")
    return found


def shown(labels: Mapping[str, str]) -> list[str]:
    return [f"{label}={value}" for label, value in sorted(labels.items())]
