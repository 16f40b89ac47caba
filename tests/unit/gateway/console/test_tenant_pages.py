"""What the pages of tenants and the audit make of what the API answers."""

from __future__ import annotations

from gateway.console.forms import body_of, fields_of
from gateway.console.pages.audit import href, in_words
from gateway.console.pages.tenants import rows
from gateway.costs.reports.schemas.costs import CostReport, CostRow
from gateway.installation.audit.schemas import AuditEntry
from gateway.tenants.keys.schemas import Key
from gateway.tenants.schemas.tenants import LimitUse, Tenant, TenantPage
from gateway.tenants.schemas.terms import TenantTerms
from tests.support.samples import sample


def test_uses_tell_how_much_of_a_limit_is_left():
    terms = {"limits": {"concurrent": 4}, "budget": {"money_per_month": "500"}}
    usage = [
        sample(LimitUse, limit="concurrent", used=4, allowed=4),
        sample(LimitUse, limit="money_per_month", used="450.5", allowed="500", resets=60),
    ]
    at_a_time, month = rows.uses(TenantPage.read(sample(TenantPage, **terms, usage=usage)), "USD")
    assert (at_a_time.used, at_a_time.allowed, at_a_time.tone) == ("4", "4", "bad")
    assert (month.used, month.allowed, month.tone, month.resets) == (
        "450.50 USD", "500.00 USD", "warn", 60_000_000,
    )  # fmt: skip
    unknown = rows.uses(TenantPage.read(sample(TenantPage, **terms, usage=None)), "")
    assert [(use.used, use.share) for use in unknown] == [("–", 0.0), ("–", 0.0)]  # noqa: RUF001


def test_the_last_thirty_days_show_cost_or_else_tokens():
    now = 1_795_443_262_000_000
    days = [
        sample(CostRow, day="2026-11-22", cost="1.25"),
        sample(CostRow, day="2026-11-23", priced_cost="2", prompt_tokens=3, completion_tokens=4),
    ]
    for currency, unit, values in (("USD", "USD", [1.25, 2.0]), ("", "tokens", [0, 7])):
        shown = rows.days(CostReport.read(sample(CostReport, currency=currency or None, rows=days)), now)
        (series,) = shown["series"]
        assert len(shown["x"]) == len(series["values"]) == rows.DAYS
        assert (series["values"][-2:], series["unit"]) == (values, unit)


def test_the_state_of_a_key():
    keys = ({}, {"expires": 10}, {"replaced_by": "k2", "expires": 11}, {"revoked": 5, "role": "enrolment"})
    states = [rows.key_state(Key.read(sample(Key, **fields)), 10)[0] for fields in keys]
    assert states == ["valid", "expired", "being replaced", "used"]


def test_a_form_that_is_saved_unchanged_changes_nothing():
    terms = TenantTerms(
        base_access=True,
        requires={"region": "eu", "rack": "r 1"},
        limits={"requests_per_minute": 600},
        budget={"money_per_day": "99.5", "warn_percent": 90},
        weight=2.5,
        quotas={"bytes": 10**10 + 1},
        policy={"media_hosts": ["a.com", "b.com"], "pass_fields": [], "chat_templates": False},
        cache_group="one",
    )
    shown = sample(Tenant) | terms.model_dump(mode="json", exclude_none=True)
    tenant = Tenant.model_validate(shown)
    form = {field.name: field.value for field in fields_of(TenantTerms, values=tenant)}
    again = TenantTerms.model_validate(body_of(TenantTerms, lambda name: str(form[name] or "")))
    assert again.model_dump(exclude_none=True) == terms.model_dump(exclude_none=True)


def test_audit_entries_lead_to_their_object_and_read_as_words():
    def leads_to(action, subject="acme/support"):
        return href(AuditEntry.read(sample(AuditEntry, action=action, subject=subject, version="v2")))

    assert leads_to("adapter.promote") == "/console/adapters/acme/support"
    assert leads_to("adapter.remove") == ""
    assert leads_to("price.add", "7") == ""
    assert leads_to("tenant.add", "a?b") == "/console/tenants/a%3Fb"
    assert in_words({"digest": "ab" * 32, "created": 1_795_443_262_000_000, "tenant": ""}) == (
        "digest: abababababab; created: 2026-11-23 14:14:22 UTC"
    )
    details = {"limits.concurrent": {"old": None, "new": 4}, "label": "x", "why": "y" * 99}
    assert in_words(details) == f"limits.concurrent: none → 4; label: x; why: {'y' * 79}…"
