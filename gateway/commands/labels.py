"""Options of engines, however they are registered: `--label pool=acme`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import UsageError

EngineLabels = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL=VALUE",
        help="Label that tenants may require. Region and GPU type are labels already. Repeatable.",
    ),
]
EngineDomain = Annotated[
    str,
    typer.Option(
        "--host", help="Failure domain that it shares with other engines. Default: the host of its URL."
    ),
]


class PromptScores(StrEnum):
    SAFE = "safe"
    UNSAFE = "unsafe"


PromptScoresOption = Annotated[
    PromptScores | None,
    typer.Option(
        help="Whether the engine survives requests that have their prompts scored (`prompt_logprobs`, `echo` "
        "with `logprobs`). Left out: it is tried, unless its version is known to crash."
    ),
]


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
