"""Which adapters a key's scopes include."""

from __future__ import annotations

import pytest

from gateway.tenants.directory import Key, Role
from gateway.tenants.scopes import covers
from gateway.tenants.terms import Scopes


@pytest.mark.parametrize(
    ("patterns", "inside", "outside"),
    [
        ((), ["acme/support", "bolt/sql", ""], []),
        (("support",), ["acme/support"], ["bolt/support", "acme/support2", "acme/sup", ""]),
        (("bolt/sql",), ["bolt/sql"], ["acme/sql", "acme/support"]),
        (("sup*", "billing"), ["acme/support", "acme/sup", "acme/billing"], ["bolt/support", "acme/bill"]),
        (("*",), ["acme/support", "acme/x"], ["bolt/support", ""]),
        (("*/*",), ["acme/support", "bolt/sql"], [""]),
        (("bolt/*",), ["bolt/sql"], ["acme/sql"]),
        (("b*/sql",), ["bolt/sql"], ["bolt/x", "acme/sql"]),
        (("*/",), [], ["acme/support", ""]),
    ],
)
def test_patterns(patterns, inside, outside):
    key = Key("k", "acme", Role.TENANT, "", 1, scopes=Scopes(adapters=patterns))
    assert [a for a in (*inside, *outside) if covers(key, a)] == inside
