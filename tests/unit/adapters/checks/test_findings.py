"""Errors refuse and warnings do not; each finding carries its remedy."""

from __future__ import annotations

import pytest

from adapters.checks.finding_codes import CODES
from adapters.checks.findings import Findings
from adapters.errors import RejectedError

ERROR, WARNING = "rank_invalid", "scaling_extreme"


def add(findings: Findings, code: str, remedy: str = "") -> None:
    findings.add(code, "It is wrong.", found="x", expected="y", remedy=remedy)


def test_warnings_alone_refuse_nothing():
    findings = Findings()
    add(findings, WARNING)
    assert not findings
    findings.refuse_if_any("acme/support")
    assert [f.code for f in findings.warnings] == [WARNING]


def test_a_refusal_carries_the_warnings_last_and_does_not_count_them():
    findings = Findings()
    add(findings, WARNING)
    add(findings, ERROR)
    assert findings
    with pytest.raises(RejectedError) as caught:
        findings.refuse_if_any("acme/support")
    assert [f.code for f in caught.value.findings] == [ERROR, WARNING]
    assert "more)" not in str(caught.value)
    add(findings, "alpha_invalid")
    with pytest.raises(RejectedError, match=r"\(and 1 more\)"):
        findings.refuse_if_any("acme/support")


def test_the_remedy_is_the_tables_unless_more_can_be_said():
    findings = Findings()
    add(findings, ERROR)
    add(findings, ERROR, remedy="Write 8.")
    assert [f.remedy for f in findings.all()] == [CODES[ERROR].remedy, "Write 8."]
    assert {f.severity for f in findings.all()} == {"error"}


def test_of_one_code_a_few_are_kept_and_the_rest_counted():
    findings = Findings()
    for _ in range(10):
        add(findings, ERROR)
        add(findings, WARNING)
    errors = [f for f in findings.all() if f.code == ERROR]
    assert len(errors) == len(findings.warnings) == 3
    assert "7 more like this" in errors[-1].message
    assert errors[-1].remedy == CODES[ERROR].remedy
