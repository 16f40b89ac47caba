"""What the health page makes of the checks."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.console.pages.health import Finding, linked
from tests.support.samples import sample


def finding(**fields: Any) -> Finding:
    return Finding.read(sample(Finding, **fields))


@pytest.mark.parametrize(
    ("remedy", "command"),
    [
        ("Run `florin cost set-aside` to list them.", "florin cost set-aside"),
        ("Redis holds another registry now: florin registry show.", "florin registry show"),
        ("Add the same files again: florin adapter add acme/x --source …; or mount it.", ""),
        ("Start its database.", ""),
    ],
)
def test_the_command_of_a_remedy(remedy: str, command: str):
    assert finding(remedy=remedy).command == command


def test_findings_lead_to_what_they_are_about():
    subjects = ("a1", "acme", "acme/support@v1", "none/x", "")
    links = [linked(finding(subject=subject), {"a1"}, {"acme"}).href for subject in subjects]
    assert links == ["/console/fleet/a1", "/console/tenants/acme", "/console/adapters/acme/support", "", ""]
