"""Whether one person alone may change what customers are charged."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ApprovalSettings(BaseModel):
    two_person_approval: bool = Field(
        default=False,
        description="Closing a month, and a manual line of a statement, need two people: who approves is not "
        "who requests. People are told apart by how they signed in, or by their keys.",
    )
