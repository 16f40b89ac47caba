"""The terms of tenants and keys as fields of forms, and what the API gets of a form. Pure.

A form tells every field, and an empty one means no limit: so a body replaces what was there, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.console import amounts
from gateway.console.api_client import ApiError

Json = dict[str, Any]
Text = Callable[[str], str]
"""A field of the form, see `Visit.text`."""


def _size(value: int) -> str:
    """As people type it: `10 GB` where that is exact."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB")):
        if value and value % 1000**power == 0:
            return f"{value // 1000**power} {unit}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Field:
    section: str
    name: str
    label: str
    help: str = ""
    parse: Callable[[str, str], Any] = amounts.count
    show: Callable[[Any], str] = str

    @property
    def form_name(self) -> str:
        return f"{self.section}.{self.name}"


LIMITS: Final = (
    Field("limits", "requests_per_minute", "Requests per minute"),
    Field("limits", "tokens_per_minute", "Tokens per minute", "Prompt and output tokens together."),
    Field("limits", "concurrent", "Requests at a time", "Those that wait for an engine count, too."),
    Field("limits", "queued", "Requests that may wait", "0: none waits."),
    Field("limits", "max_context", "Tokens of one request", "Prompt and output together."),
    Field("limits", "max_output", "Output tokens of one request"),
)
BUDGETS: Final = (
    Field("budget", "money_per_month", "Money per month", parse=amounts.money),
    Field("budget", "money_per_day", "Money per day", parse=amounts.money),
    Field("budget", "tokens_per_month", "Tokens per month"),
    Field("budget", "tokens_per_day", "Tokens per day", "Days and months are UTC's."),
)
QUOTAS: Final = (
    Field("quotas", "adapters", "Adapters"),
    Field("quotas", "versions", "Versions of one adapter"),
    Field("quotas", "bytes", "Size of all versions", "Such as 10 GB.", amounts.size, _size),
    Field("quotas", "max_rank", "Rank of an adapter"),
    Field("quotas", "uploads_per_hour", "Uploads per hour"),
    Field("quotas", "keys", "Valid keys"),
)
CHOICES: Final = (("", "As the settings say"), ("yes", "Allowed"), ("no", "Refused"))
PRIORITIES: Final = (("normal", "Normal"), ("high", "High: served first"), ("low", "Low: served last"))
_FIELDS: Final = {field.form_name: field for field in (*LIMITS, *BUDGETS, *QUOTAS)}


def values(document: Json) -> Mapping[str, str]:
    """What the fields show of a tenant or key."""
    shown = {}
    for name, field in _FIELDS.items():
        value = document.get(field.section, {}).get(field.name)
        shown[name] = "" if value is None else field.show(value)
    return shown


def limits(text: Text) -> Json:
    return _section(text, LIMITS)


def budget(text: Text) -> Json:
    """Raises ApiError."""
    warn = amounts.count("budget.warn_percent", text("budget.warn_percent"))
    return _section(text, BUDGETS) | ({} if warn is None else {"warn_percent": warn})


def tenant(text: Text) -> Json:
    """The body for a tenant. Raises ApiError."""
    return {
        "base_access": bool(text("base_access")),
        "weight": amounts.number("weight", text("weight") or "1", 0.001, 1000),
        "requires": amounts.labels("requires", text("requires")),
        "cache_group": text("cache_group") or None,
        "cost_centre": text("cost_centre") or None,
        "limits": limits(text),
        "budget": budget(text),
        "quotas": _section(text, QUOTAS),
        "policy": {
            "media_hosts": _entries(text, "media_hosts"),
            "pass_fields": _entries(text, "pass_fields"),
            "chat_templates": _choice(text, "chat_templates"),
            "structured_outputs": _choice(text, "structured_outputs"),
        },
    }


def one(text: Text) -> Json:
    """A body that changes a single limit or budget: `field` says which, `value` to what. Raises ApiError."""
    field = _FIELDS.get(text("field"))
    if field is None or field.section == "quotas":
        raise ApiError(400, "invalid_value", "There is no such limit.")
    return {field.section: {field.name: field.parse(field.label, text("value"))}}


def key(text: Text, *, of_tenant: bool) -> Json:
    """The part of a body that new and changed keys have in common. `of_tenant`: only tenants' keys have
    scopes and limits. Raises ApiError."""
    body: Json = {"label": text("label") or None}
    if not of_tenant:
        return body
    return body | {
        "scopes": {
            "adapters": amounts.words(text("adapters")),
            "endpoints": amounts.words(text("endpoints")),
            "read_only": bool(text("read_only")),
        },
        "limits": limits(text),
        "budget": budget(text),
        "cost_centre": text("cost_centre") or None,
    }


def _section(text: Text, fields: tuple[Field, ...]) -> Json:
    return {field.name: field.parse(field.label, text(field.form_name)) for field in fields}


def _choice(text: Text, name: str) -> bool | None:
    return {"yes": True, "no": False}.get(text(name))


def _entries(text: Text, name: str) -> list[str] | None:
    """None: as the settings say; `none`: nothing."""
    found = amounts.words(text(name))
    if not found:
        return None
    return [] if found == ["none"] else found
