"""Imported bills of GPU providers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import End, Hours, Money, Start

Costs = dict[str, Money]
"""By currency."""


class BadLine(Answer):
    line: int
    reason: str


class BadReason(Answer):
    reason: str
    lines: int
    where: str


class ImportedBill(Answer):
    source: str = Field(description="SHA-256 of the file.")
    file_name: str
    format: str
    lines: int
    new: int = Field(description="Lines that were not imported before.")
    repeated: int = Field(description="Lines identical to lines of another import.")
    gpu_hours: Hours
    cost: Costs
    ignored: int = Field(description="Lines that are not about GPUs.")
    ignored_cost: Costs
    bad: tuple[BadLine, ...]
    bad_lines: int
    bad_reasons: tuple[BadReason, ...]
    charges: Costs = Field(description="Of `cost`: taxes, credits and fees that name no GPU type.")
    inclusive_looking: int = Field(description="Lines whose end looks as if it included that moment.")


class Bill(Answer):
    source: str = Field(description="SHA-256 of the file.")
    file_name: str
    imported_at: str
    lines: int
    start: Start
    to: End
    gpu_hours: Hours
    cost: Costs


class RemovedBill(Answer):
    source: str
    lines: int
    trued_up: Annotated[
        tuple[str, ...],
        Field(description="Months trued up to it, which keep its cost until they are trued up again."),
    ] = ()
