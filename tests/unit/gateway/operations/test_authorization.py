"""How long the keys may live that a key makes, and whose keys a bounded administrator changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.errors import FlorinError
from gateway.operations.authorization import PERSONS_KEYS, Authority
from gateway.tenants import delegation
from gateway.tenants.directory import PERSON, Key, Role
from gateway.tenants.terms import Scopes

ADMIN = Key("k1", "acme", Role.TENANT_ADMIN, "digest", created=0, expires=1000)


@pytest.mark.parametrize("role", [Role.TENANT_ADMIN, Role.OPERATOR])
def test_no_key_outlives_its_maker(role: Role):
    authority = Authority.of(replace(ADMIN, role=role, tenant="" if role is Role.OPERATOR else "acme"))
    assert authority.lifetime(None, given=False) == 1000
    assert authority.lifetime(999, given=True) == 999
    assert authority.lifetime(2000, given=False) == 1000  # of a key that is rotated
    for until in (None, 1001):  # nor prolongs itself
        with pytest.raises(FlorinError, match=r"expires: at most 1970-01-01T00:00:00\.001000Z"):
            authority.lifetime(until, given=True)


def test_a_maker_that_never_expires_sets_no_end():
    authority = Authority.of(replace(ADMIN, expires=None))
    assert authority.lifetime(None, given=True) is None
    assert authority.lifetime(5, given=True) == 5


def test_keys_of_people_end_too():
    person = replace(ADMIN, id=f"{PERSON[0]}ada")
    assert Authority.of(person).lifetime(None, given=False) == 1000 + PERSONS_KEYS


def test_a_bounded_administrator_changes_nothing_of_a_wider_one():
    """Otherwise a new label would narrow the key's scopes to its own."""
    bounded = replace(ADMIN, scopes=Scopes(adapters=("support",)))
    wider = replace(ADMIN, id="k2")
    with pytest.raises(FlorinError, match="ask the operator to change it"):
        delegation.changed(bounded, wider, replace(wider, label="new"))
    own = replace(bounded, id="k3")
    assert delegation.changed(bounded, own, replace(own, label="new")) == replace(own, label="new")
