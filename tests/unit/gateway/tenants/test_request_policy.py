"""Where a tenant's requests differ from the settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.fields.rule import FieldPolicy
from gateway.tenants.request_policy import RequestPolicies
from gateway.tenants.terms import RequestPolicy

SETTINGS = FieldPolicy(
    max_n=3, media_hosts=frozenset({"a.com"}), structured_outputs=True, passed=frozenset({"new"})
)


@pytest.mark.parametrize(
    ("own", "changed"),
    [
        (RequestPolicy(), {}),
        (RequestPolicy(media_hosts=("b.com",)), {"media_hosts": frozenset({"b.com"})}),
        (RequestPolicy(media_hosts=()), {"media_hosts": frozenset()}),
        (RequestPolicy(chat_templates=True), {"chat_templates": True}),
        (RequestPolicy(structured_outputs=False), {"structured_outputs": False}),
        (RequestPolicy(pass_fields=("x", "y")), {"passed": frozenset({"x", "y"})}),
        (RequestPolicy(pass_fields=()), {"passed": frozenset()}),
    ],
)
def test_a_tenants_policy_replaces_what_it_names(own: RequestPolicy, changed: dict[str, object]):
    assert RequestPolicies(SETTINGS).of(own) == replace(SETTINGS, **changed)
