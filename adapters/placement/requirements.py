"""Labels that tenants and requests require of engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from adapters.model import DEDICATED, Task

NO_LABELS: Mapping[str, str] = {}
SCORES_PROMPTS: Mapping[str, str] = {"prompt scores": "safe"}
"""What a request requires that has its prompt scored. An operator's labels have no spaces."""


def for_task(task: Task) -> Mapping[str, str]:
    """What a request requires of the engines that may answer it. As with prompt scores, no label of an
    operator's has spaces."""
    return _TASKS[task]


_TASKS: Mapping[Task, Mapping[str, str]] = {task: {f"task {task}": "served"} for task in get_args(Task)}
CONTRADICTION = "∧"
"""Joins two values that an engine cannot both have. Labels are ASCII, so no engine has the result."""


def combined(first: Mapping[str, str], second: Mapping[str, str]) -> Mapping[str, str]:
    """What an engine must have to meet both."""
    if not first or not second or first == second:
        return first or second
    both = dict(first)
    for label, value in second.items():
        known = both.setdefault(label, value)
        if known != value:
            both[label] = f"{known}{CONTRADICTION}{value}"
    return both


def shown(requires: Mapping[str, str]) -> str:
    """`pool=acme, region=eu`"""
    return ", ".join(f"{label}={value}" for label, value in sorted(requires.items()) if label != DEDICATED)
