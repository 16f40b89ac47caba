"""Settings of top-ups: how a payment provider's webhook grants prepaid credits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from gateway.config.alerts import check_secret
from gateway.config.field_types import RELOAD, listed

Scheme = Literal["standard", "stripe", "paddle"]
_SHORTEST: Final = 24
"""Characters of a vendor's secret."""
_AMOUNTS: Final = frozenset({"amount", "minor_amount"})
_FIELDS: Final = frozenset({"id", "tenant", "currency"})
_PATH: Final = re.compile(r"[\w-]+(\.[\w-]+)*")


class TopUpSettings(BaseModel):
    top_up_scheme: Scheme = Field(
        "standard",
        description="How the payment provider signs its webhooks: `standard` (Standard Webhooks), `stripe` "
        "(`Stripe-Signature`) or `paddle` (`Paddle-Signature`).",
        json_schema_extra=RELOAD,
    )
    top_up_secret: str = Field(
        "",
        description="The secret with which it signs them, as the provider shows it. While it is replaced: "
        "the new and the old one, separated by a space. Empty: `/finance/v1/credits/top-ups` is off.",
        json_schema_extra=RELOAD,
    )
    top_up_fields: str = Field(
        "",
        validate_default=True,
        description="Where a payment stands in the body, comma-separated `NAME=PATH` with the path's parts "
        "separated by dots: `id` (of the event: the same one is granted once), `tenant`, `currency`, and "
        "`amount` (a decimal) or `minor_amount` (in the currency's smallest unit, such as cents). Required "
        "with `FLORIN_TOP_UP_SECRET`.",
        json_schema_extra=RELOAD,
    )
    top_up_when: str = Field(
        "",
        description="Comma-separated `PATH=VALUE`: only events of which all hold are payments, others are "
        "acknowledged and change nothing. Empty: every event is one.",
        json_schema_extra=RELOAD,
    )

    @field_validator("top_up_secret")
    @classmethod
    def _top_up_secret(cls, text: str, info: ValidationInfo) -> str:
        for secret in text.split():
            if info.data.get("top_up_scheme") == "standard":
                check_secret(secret)
            elif len(secret) < _SHORTEST:
                raise ValueError(f"must have at least {_SHORTEST} characters")
        return text

    @field_validator("top_up_fields")
    @classmethod
    def _top_up_fields(cls, text: str, info: ValidationInfo) -> str:
        if not text and not info.data.get("top_up_secret"):
            return text
        names = paths(text).keys()
        if names - _FIELDS - _AMOUNTS or _FIELDS - names or len(names & _AMOUNTS) != 1:
            raise ValueError("must name id, tenant, currency, and either amount or minor_amount")
        return text

    @field_validator("top_up_when")
    @classmethod
    def _top_up_when(cls, text: str) -> str:
        for path, value in conditions(text):
            if not value or not _PATH.fullmatch(path):
                raise ValueError(f"{path!r} must be PATH=VALUE")
        return text


def paths(text: str) -> Mapping[str, str]:
    """Name → path. Raises ValueError."""
    pairs = [entry.partition("=") for entry in listed(text)]
    for name, _, path in pairs:
        if not _PATH.fullmatch(path):
            raise ValueError(f"{name!r} must be NAME=PATH, such as amount=data.amount")
    return {name: path for name, _, path in pairs}


def conditions(text: str) -> list[tuple[str, str]]:
    """(path, value) of each."""
    return [(path, value) for path, _, value in (entry.partition("=") for entry in listed(text))]
