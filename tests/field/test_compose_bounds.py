"""In Compose, no service can take the host's memory, and none has a password that everybody knows.

Source: a day of operations
Sent: deploy/compose/compose.yaml as it is
Right: each service has a memory limit, which a variable changes; PostgreSQL and Grafana do not start without a password
that the operator has set
Why: one service that leaks ends the others, and Grafana shows every customer's costs to `admin`, `admin`
"""

from __future__ import annotations

import re

from tests.unit.deploy.test_compose import SERVICES


def test_every_service_is_bounded():
    assert len(SERVICES) > 5
    limits = {name: str(service.get("mem_limit", "")) for name, service in SERVICES.items()}
    assert not {name: limit for name, limit in limits.items() if not re.search(r"\b\d+[mg]\}?$", limit)}


def test_no_password_has_a_default():
    variables = {
        name: value
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if "PASSWORD" in name
    }
    assert variables.keys() == {"POSTGRES_PASSWORD", "GF_SECURITY_ADMIN_PASSWORD"}
    assert all(re.fullmatch(r"\$\{\w+:\?set it\}", value) for value in variables.values())
