"""Which field an unknown one is taken for."""

from __future__ import annotations

import pytest

from gateway.declarative.operations.document import schema
from gateway.operations.unknown_fields import unknown_field


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        (("tenant",), "tenants"),
        (("limits",), "tenants.*.limits"),
        (("tenants", "acme", "base_acess"), "base_access"),
        (("tenants", "acme", "limits", "weight"), "tenants.acme.weight"),
        (("engines", "a1", "max-rank"), "max_rank"),
        (("adapters", "acme/x", "guard"), "canary.guard"),
        (("adapters", "acme/x", "versions", 0, "sha"), ""),
    ],
)
def test_the_nearest_field_of_that_name_or_a_similar_one(place: tuple[str | int, ...], meant: str):
    assert unknown_field(schema(), place).meant == meant
