"""Names of tenants, adapters and engines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from adapters.errors import InvalidNameError

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
"""Names of tenants, adapters and engines. They appear in URLs, labels, file names and Redis keys."""


def check_name(what: str, name: str) -> str:
    """Return `name`, or raise InvalidNameError with the rules for a valid one."""
    if NAME_PATTERN.fullmatch(name):
        return name
    shown = name if len(name) <= 80 else name[:80] + "…"
    raise InvalidNameError(
        f"{what} name {shown!r} is not valid: use 1 to 63 of a-z, 0-9, '-' and '_', "
        "beginning and ending with a letter or a digit."
    )


@dataclass(frozen=True, slots=True, order=True)
class AdapterName:
    """An adapter's full name, `acme/support`."""

    tenant: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        tenant, slash, name = text.partition("/")
        if not slash:
            raise InvalidNameError(f"{text[:80]!r} is not TENANT/NAME.")
        return cls(check_name("tenant", tenant), check_name("adapter", name))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"
