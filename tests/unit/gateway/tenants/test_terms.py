"""Terms of tenants and keys: what is accepted, and what an update changes."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel, ValidationError

from gateway.errors import FlorinError
from gateway.tenants import terms as data
from gateway.tenants.directory import Key, Role, Tenant
from gateway.tenants.operations.terms import expiry, seconds, updated
from gateway.tenants.schemas.terms import (
    BudgetTerms,
    KeyTerms,
    LimitTerms,
    PolicyTerms,
    QuotaTerms,
    ScopeTerms,
    TenantTerms,
)
from gateway.tenants.terms import Budget, Limits, Priority, Scopes

NOW = 1_795_000_000_000_000
ACME = Tenant("acme", base_access=True, created=1, limits=Limits(requests_per_minute=60, concurrent=4))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (LimitTerms, data.Limits),
        (BudgetTerms, data.Budget),
        (QuotaTerms, data.Quotas),
        (PolicyTerms, data.RequestPolicy),
        (ScopeTerms, data.Scopes),
    ],
)
def test_bodies_have_the_fields_and_defaults_of_the_data(model, kind):
    assert model.model_fields.keys() == kind.__dataclass_fields__.keys()
    assert updated(kind(), model()) == updated(kind(), model(**model().model_dump())) == kind()


def test_what_is_omitted_stays_and_null_restores_the_default():
    new = updated(
        ACME, TenantTerms.model_validate({"limits": {"concurrent": None, "queued": 0}, "weight": 2})
    )
    assert new.limits == Limits(requests_per_minute=60, queued=0)
    assert (new.base_access, new.weight) == (True, 2.0)
    assert updated(new, TenantTerms.model_validate({"limits": None})).limits == Limits()
    assert updated(new, TenantTerms()) == new


def test_amounts_that_are_equal_are_written_alike():
    for amount in ("100", "100.00", "1E+2", 100, 100.0):
        budget = updated(Budget(), BudgetTerms.model_validate({"money_per_day": amount}))
        assert str(budget.money_per_day) == "100"
    cent = updated(Budget(), BudgetTerms.model_validate({"money_per_day": 0.01}))
    assert cent.money_per_day == Decimal("0.01")


def test_scopes_and_labels_of_a_key():
    key = Key("k1", "acme", Role.TENANT, "", 1, label="old", scopes=Scopes(read_only=True))
    said = {
        "label": None,
        "scopes": {"adapters": ["support", "support", "bolt/*"], "endpoints": ["chat/completions"]},
        "priority": "low",
    }
    new = updated(key, KeyTerms.model_validate(said))
    assert (new.label, new.priority) == ("", Priority.LOW)
    assert new.scopes == Scopes(("support", "bolt/*"), ("/v1/chat/completions",), read_only=True)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        *((LimitTerms, {f: v}) for f in LimitTerms.model_fields.keys() - {"user_required"} for v in (-1, 1.5, "60", True, 10**16)),
        *((LimitTerms, {f: 0}) for f in LimitTerms.model_fields.keys() - {"queued"}),
        *((BudgetTerms, {f: v}) for f in ("tokens_per_day", "tokens_per_month") for v in (0, -1, "1", True)),
        *(
            (BudgetTerms, {f: v})
            for f in ("money_per_day", "money_per_month")
            for v in (0, "-1", "NaN", "Infinity", "1e13", "0.0000001", "ten", True, [], 1e300)
        ),
        *((BudgetTerms, {"warn_percent": v}) for v in (0, 101, None, "80", 80.5)),
        *((QuotaTerms, {f: v}) for f in QuotaTerms.model_fields for v in (-1, 1.5, "5", True, 10**16)),
        (QuotaTerms, {"max_rank": 0}),
        *((TenantTerms, {"weight": v}) for v in (0, -1, 0.0001, 1001, "2", None, True)),
        *((TenantTerms, {"weight": v}) for v in (float("inf"), float("nan"))),
        *((TenantTerms, {"cache_group": v}) for v in ("Group", "a b", "a/b", "a" * 64, 7)),
        *((TenantTerms, {f: None}) for f in ("base_access", "requires")),
        (TenantTerms, {"limits": {"request_per_minute": 1}}),
        (TenantTerms, {"limits": 60}),
        (TenantTerms, {"suspended": "since yesterday"}),
        *((PolicyTerms, {"media_hosts": v}) for v in (["https://a.com"], ["A.com"], [""], "a.com", ["a"] * 101)),
        *((PolicyTerms, {"pass_fields": v}) for v in (["model"], ["a b"], [""], ["x.y"], ["a" * 101])),
        (PolicyTerms, {"chat_templates": "sometimes"}),
        *((ScopeTerms, {"adapters": v}) for v in (["a/b/c"], ["A"], [""], ["sup?ort"], ["[a]"], ["x@v1"])),
        *((ScopeTerms, {"endpoints": v}) for v in (["/v1/models"], ["/metrics"], [""], ["chat"], "/v1/completions")),
        *((KeyTerms, {"label": v}) for v in (" x", "a\nb", "\x1b[31m", "x" * 101, 7)),
        *((KeyTerms, {"priority": v}) for v in ("urgent", None, 1)),
    ],
)  # fmt: skip
def test_nonsense_is_refused(model: type[BaseModel], body):
    with pytest.raises(ValidationError):
        model.model_validate(body)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("90d", NOW + 90 * 86_400_000_000),
        ("30m", NOW + 1_800_000_000),
        ("2027-06-30", 1_814_313_600_000_000),
        ("2027-06-30T02:00:00+02:00", 1_814_313_600_000_000),
    ],
)
def test_expiry(text, micros):
    assert expiry("expires", text, NOW) == micros


@pytest.mark.parametrize(
    "text", ["", "soon", "90", "1y", "0d", "-1d", "2020-01-01", "99999999999d", "9" * 40]
)
def test_an_expiry_that_is_not_to_come_is_refused(text):
    with pytest.raises(FlorinError) as refused:
        expiry("expires", text, NOW)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "expires")


def test_durations():
    assert [seconds("overlap", t) for t in ("0s", "90s", "24h")] == [0, 90, 86_400]
    with pytest.raises(FlorinError):
        seconds("overlap", "2027-06-30")
