"""What the pages of one adapter share: its paths, here and in the API, and its tabs."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import quote

from gateway.console.api_client import ApiError, Json
from gateway.console.visit import CUSTOMERS, OPERATORS, Visit
from gateway.fleet.adapters.schemas.adapters import AdapterDetails
from gateway.tenants.directory import Role

VISITORS = OPERATORS | CUSTOMERS
"""Who has these pages. Keys of role `tenant` see what they may call, and try it."""


def full_name(visit: Visit) -> str:
    """The name of the adapter in the path, with its tenant."""
    return f"{visit.params['tenant']}/{visit.params['name']}"


def page_of(name: str, *rest: str) -> str:
    """The path of an adapter's page."""
    return "/console/adapters/" + quote("/".join((name, *rest)), safe="/@")


def api_of(name: str, *rest: str) -> str:
    """The path of an adapter in the admin API."""
    return "/admin/v1/adapters/" + "/".join((name, *rest))


def command(*words: str) -> str:
    """A command of the CLI, quoted for a shell."""
    return shlex.join(("florin", *words))


async def adapter(visit: Visit) -> AdapterDetails:
    """The adapter in the path, as the API shows it. Raises ApiError."""
    return await visit.api.get(api_of(full_name(visit)), AdapterDetails)


def tabs(visit: Visit, name: str) -> list[tuple[str, str]]:
    """(title, path) of an adapter's pages that the visitor has."""
    if visit.role is Role.TENANT:
        return [("Try it", page_of(name, "try"))]
    return [
        ("Versions", page_of(name)),
        ("Try it", page_of(name, "try")),
        ("Evaluations", page_of(name, "evaluations")),
        ("Settings", page_of(name, "settings")),
    ]


def whole(text: str, param: str, what: str) -> int | None:
    """A whole number that somebody typed; None: nothing. Raises ApiError."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise wrong(param, f"{what}: {text[:40]!r} is not a whole number.")
    return int(text)


def decimal(text: str, param: str, what: str) -> float | None:
    """A number that somebody typed, with a point or a comma; None: nothing. Raises ApiError."""
    if not text:
        return None
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        raise wrong(param, f"{what}: {text[:40]!r} is not a number.") from None
    if not abs(number) < 1e12:  # nor infinite, nor not a number
        raise wrong(param, f"{what}: {text[:40]!r} is not a number.")
    return number


def wrong(param: str, message: str) -> ApiError:
    return ApiError(400, "invalid_value", message, param)


def confirmed(visit: Visit, name: str) -> None:
    """Raises ApiError unless the visitor has typed `name`."""
    if visit.text("confirm") != name:
        raise wrong("confirm", f"Nothing was done: type {name} to confirm.")


def known(fields: dict[str, Any]) -> Json:
    """Without those that were left empty."""
    return {name: value for name, value in fields.items() if value not in (None, "")}
