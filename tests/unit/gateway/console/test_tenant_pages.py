"""What the pages of tenants and the audit make of what the API answers."""

from __future__ import annotations

import pytest

from gateway.console.pages.audit import href, in_words
from gateway.console.pages.tenants import forms, rows

LIMITS = dict.fromkeys(field.name for field in forms.LIMITS)
BUDGET = dict.fromkeys(field.name for field in forms.BUDGETS) | {"warn_percent": 80}


def test_budgets_have_their_currency():
    [budget] = [column for column in rows.tenant_columns("EUR") if column.name == "budget"]
    terms = {"budget": BUDGET | {"money_per_month": "500"}}
    assert budget.value(terms) == "500.00 EUR per month"


def test_uses_tell_how_much_of_a_limit_is_left():
    page = {
        "limits": LIMITS | {"concurrent": 4},
        "budget": BUDGET | {"money_per_month": "500"},
        "usage": [
            {"limit": "concurrent", "used": 4, "allowed": 4, "resets": None},
            {"limit": "money_per_month", "used": "450.5", "allowed": "500", "resets": 60},
        ],
    }
    at_a_time, month = rows.uses(page, "USD")
    assert (at_a_time.used, at_a_time.allowed, at_a_time.tone) == ("4", "4", "bad")
    assert (month.used, month.allowed, month.tone, month.resets) == (
        "450.50 USD", "500.00 USD", "warn", 60_000_000,
    )  # fmt: skip
    unknown = rows.uses(page | {"usage": None}, "")
    assert [(use.used, use.share) for use in unknown] == [("–", 0.0), ("–", 0.0)]  # noqa: RUF001


@pytest.mark.parametrize(
    ("now", "then"), [("500", "750"), ("1", "2"), ("99.50", "150"), ("200000", "300000"), ("333", "500")]
)
def test_a_raised_limit_is_round_and_larger(now, then):
    assert rows.raised(now) == then


def test_every_day_has_its_bar():
    costs = {
        "currency": "USD",
        "rows": [
            {"day": "2026-11-22", "cost": "1.25"},
            {"day": "2026-11-23", "cost": None, "priced_cost": "2"},
        ],
    }
    chart = rows.days(costs, 1_795_443_262_000_000)
    (series,) = chart["series"]
    assert len(chart["x"]) == len(series["values"]) == rows.DAYS
    assert (series["values"][-2:], series["unit"]) == ([1.25, 2.0], "USD")
    tokens = {"currency": None, "rows": [{"day": "2026-11-23", "prompt_tokens": 3, "completion_tokens": 4}]}
    assert rows.days(tokens, 1_795_443_262_000_000)["series"][0]["values"][-1] == 7


def test_a_form_that_is_saved_unchanged_changes_nothing():
    document = {
        "limits": LIMITS | {"requests_per_minute": 600},
        "budget": BUDGET | {"money_per_day": "99.5"},
        "quotas": dict.fromkeys(field.name for field in forms.QUOTAS) | {"bytes": 10**10 + 1},
    }
    shown = forms.values(document)
    text = lambda name: shown.get(name, "")  # noqa: E731
    assert forms.limits(text) == document["limits"]
    assert forms.budget(text) == {name: v for name, v in document["budget"].items() if name != "warn_percent"}
    assert forms.tenant(text)["quotas"] == document["quotas"]


def test_the_state_of_a_key():
    key = {"revoked": None, "expires": None, "replaced_by": "", "role": "tenant"}
    assert rows.key_state(key, 10)[0] == "valid"
    assert rows.key_state(key | {"expires": 10}, 10)[0] == "expired"
    assert rows.key_state(key | {"replaced_by": "k2", "expires": 11}, 10)[0] == "being replaced"
    assert rows.key_state(key | {"revoked": 5, "role": "enrolment"}, 10)[0] == "used"


def test_audit_entries_lead_to_their_object_and_read_as_words():
    entry = {"action": "adapter.promote", "subject": "acme/support", "version": "v2"}
    assert href(entry) == "/console/adapters/acme/support"
    assert href({**entry, "action": "adapter.remove"}) == ""
    assert href({**entry, "action": "price.add", "subject": "7"}) == ""
    assert href({**entry, "action": "tenant.add", "subject": "a?b"}) == "/console/tenants/a%3Fb"
    assert in_words({"digest": "ab" * 32, "created": 1_795_443_262_000_000, "tenant": ""}) == (
        "digest: abababababab; created: 2026-11-23 14:14:22 UTC"
    )
    details = {"limits.concurrent": {"old": None, "new": 4}, "label": "x", "why": "y" * 99}
    assert in_words(details) == f"limits.concurrent: none → 4; label: x; why: {'y' * 79}…"
