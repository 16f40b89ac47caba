"""`fleet.yaml` as data: the whole registry in one document, and what is checked of it before anything is
planned.

A field that is left out has its default, with these exceptions, which stay as they are: an adapter's `live`
(and with it `canary`), `history` and `latest`, a version's `trusted`, an engine's `state`, a tenant's
`suspended`, and everything of a base model. A whole section that is left out is out of the file's scope:
nothing of it is added, changed or pruned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from adapters.errors import Finding
from gateway.costs.prices.schemas import NewPrice
from gateway.costs.selling.schemas import NewAssignment, NewRateCard
from gateway.declarative.operations.sections import SECTIONS, as_text
from gateway.declarative.operations.specs import (
    AdapterSpec,
    BaseSpec,
    EngineName,
    EngineSpec,
    FullName,
    KeyId,
    KeySpec,
    RemovedSpec,
    TenantName,
    TenantSpec,
    unique,
)
from gateway.errors import FlorinError
from gateway.operations.unknown_fields import Location, pattern, unknown_field
from gateway.schemas.base import Label, StrictBody

SHOWN_ERRORS = 50
_WORD = re.compile(r"[\w/@.+-]+", re.ASCII)


def _section(name: str) -> Any:
    return Field(None, description=SECTIONS[name])


class Document(StrictBody):
    """Ids → objects, by noun."""

    florin: Literal[1] = Field(description="Version of this format.")
    bases: dict[Label, BaseSpec] | None = _section("bases")
    engines: dict[EngineName, EngineSpec] | None = _section("engines")
    tenants: dict[TenantName, TenantSpec] | None = _section("tenants")
    keys: dict[KeyId, KeySpec] | None = _section("keys")
    adapters: dict[FullName, AdapterSpec] | None = _section("adapters")
    removed: dict[FullName, RemovedSpec] | None = _section("removed")
    prices: tuple[Annotated[NewPrice, BeforeValidator(as_text)], ...] | None = _section("prices")
    rate_cards: tuple[Annotated[NewRateCard, BeforeValidator(as_text)], ...] | None = _section("rate_cards")
    rate_card_assignments: tuple[NewAssignment, ...] | None = _section("rate_card_assignments")

    @model_validator(mode="after")
    def _consistent(self) -> Document:
        unique("url of an engine", (e.url for e in (self.engines or {}).values()))
        unique("secret of a key", (k.secret for k in (self.keys or {}).values()))
        _check_prices(self.prices or ())
        unique("version of a rate card", (f"{c.name} from {c.valid_from}" for c in self.rate_cards or ()))
        unique(
            "assignment of a rate card",
            (f"{a.tenant} from {a.valid_from}" for a in self.rate_card_assignments or ()),
        )
        both = sorted((self.adapters or {}).keys() & (self.removed or {}).keys())
        if both:
            raise ValueError(f"{both[0]} is in both adapters and removed")
        return self


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake, perhaps in many places: a field that fifty tenants have, and no tenant can have."""

    finding: Finding
    """It names the first place."""
    places: tuple[Location, ...]


def parse(body: object) -> Document:
    """Raises FlorinError, whose findings name each wrong place by its path in the file."""
    document, mistakes = read(body)
    if document is not None:
        return document
    findings = tuple(mistake.finding for mistake in mistakes)
    first, more = findings[0], len(findings) - 1
    message = first.message + (f" (and {more} more)" if more else "")
    raise FlorinError("invalid_value", message, param=first.message.partition(": ")[0], findings=findings)


def read(body: object) -> tuple[Document | None, tuple[Mistake, ...]]:
    """The document, or else what is wrong with it: the first `SHOWN_ERRORS` mistakes."""
    try:
        return Document.model_validate(body), ()
    except ValidationError as error:
        groups: dict[tuple[object, ...], list[Any]] = {}
        for detail in error.errors():
            key = (pattern(schema(), detail["loc"]), detail["type"], detail["msg"])
            groups.setdefault(key, []).append(detail)
    return None, tuple(_mistake(details) for details in islice(groups.values(), SHOWN_ERRORS))


@cache
def schema() -> Mapping[str, Any]:
    """The JSON Schema of the document as the API takes it."""
    return Document.model_json_schema()


def _mistake(details: Sequence[Any]) -> Mistake:
    places = tuple(detail["loc"] for detail in details)
    finding = _finding(details[0])
    if len(places) > 1:
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        finding = replace(finding, message=f"{finding.message} (Also at {path(places[1])}{more}.)")
    return Mistake(finding, places)


def path(where: Sequence[str | int]) -> str:
    """`adapters.acme/support.versions[1].source`"""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        if part == "[key]":
            continue  # the id itself is wrong
        shown = part if _WORD.fullmatch(part) else ascii(part[:80])
        text += f".{shown}" if text else shown
    return text or "the document"


def _finding(error: Any) -> Finding:
    place = error["loc"]
    secret = place[:1] == ("keys",)  # what stands there may be a key, written by mistake
    actual = "-" if secret or isinstance(error["input"], dict | list) else ascii(error["input"])[:120]
    if error["type"] == "extra_forbidden":
        unknown = unknown_field(schema(), place)
        return Finding("invalid_value", _sentence(place, str(unknown)), actual, ", ".join(unknown.allowed))
    message = _MESSAGES.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
    return Finding("invalid_value", _sentence(place, message), actual, str(_expected(error)))


_MESSAGES: Final = {
    "missing": "this field is required",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of fields to values",
    "tuple_type": "must be a list",
}
"""By pydantic's type of error, where its own message names Python's types."""


def _sentence(place: Location, message: str) -> str:
    text = f"{path(place)}: {message}"
    return text if text.endswith("?") else f"{text.rstrip('.')}."


def _expected(error: Any) -> str:
    context = error.get("ctx") or {}
    return next((str(context[k]) for k in ("expected", "pattern", "ge", "le") if k in context), "-")


def _check_prices(prices: Sequence[NewPrice]) -> None:
    """A price without a beginning applies from now on, so there can be only one."""
    series = [(p.gpu_type, p.region, p.purchase) for p in prices]
    for price, key in zip(prices, series, strict=True):
        if price.valid_from is None and series.count(key) > 1:
            shown = " ".join(part for part in key if part)
            raise ValueError(f"prices of {shown}: if there are several, each needs valid_from")
