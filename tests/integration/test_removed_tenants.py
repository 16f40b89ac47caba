"""What a customer pays every month ends with the month of its removal."""

from __future__ import annotations

import pytest

from adapters.store.protocol.registry import Change
from gateway.costs.periods import iso, month_of
from tests.support.harness import Gateway

CARD = {"name": "small", "input_per_million": "6", "output_per_million": "18", "monthly_minimum": "200"}


def month_after(month: str) -> str:
    return iso(month_of(month).end)[:7]


@pytest.fixture
def month(gateway: Gateway) -> str:
    return iso(gateway.state.clock.now())[:7]


@pytest.fixture
async def finance(gateway: Gateway, admin, month: str):
    """A client of someone in finance; acme has a monthly minimum."""
    await admin.post("tenants", json={"name": "acme"})
    async with gateway.http() as http:
        await http.post("/finance/v1/rate-cards", json=CARD | {"valid_from": month})
        body = {"tenant": "acme", "card": "small", "valid_from": month}
        assert (await http.post("/finance/v1/rate-cards/assignments", json=body)).status_code == 201
        yield http


async def charged(finance, month: str) -> list[str]:
    preview = (await finance.get(f"/finance/v1/periods/{month}/preview")).json()
    return [statement["tenant"] for statement in preview["statements"]]


async def test_a_removed_tenant_pays_its_minimum_for_the_last_time(finance, admin, month):
    trial = (await admin.delete("tenants/acme", params={"dry_run": True})).json()["charges"]
    assert (trial["rate_card"], trial["monthly_minimum"], trial["months"]) == ("small", "200.00", [month])
    assert await charged(finance, month_after(month)) == ["acme"]
    await admin.delete("tenants/acme")
    assert await charged(finance, month) == ["acme"]
    assert await charged(finance, month_after(month)) == []
    assignments = (await finance.get("/finance/v1/rate-cards")).json()["assignments"]
    assert [(a["card"], a["ended"], a["valid_from"]) for a in assignments] == [
        ("small", False, month),
        (None, True, month_after(month)),
    ]


async def test_a_card_can_be_taken_away_from_a_tenant_that_is_gone(finance, admin, month):
    await admin.delete("tenants/acme")
    nothing = {"tenant": "acme", "card": None, "valid_from": month}
    taken = await finance.post("/finance/v1/rate-cards/assignments", json=nothing)
    given = await finance.post("/finance/v1/rate-cards/assignments", json=nothing | {"card": "small"})
    unknown = await finance.post("/finance/v1/rate-cards/assignments", json=nothing | {"tenant": "bolt"})
    assert (taken.status_code, given.status_code, unknown.status_code) == (201, 404, 404)
    assert await charged(finance, month) == []


async def test_removing_a_tenant_again_ends_what_an_earlier_version_left(finance, admin, gateway, month):
    await admin.delete("tenants/acme")
    await admin.post("tenants", json={"name": "acme"})
    await finance.post(
        "/finance/v1/rate-cards/assignments", json={"tenant": "acme", "card": "small", "valid_from": month}
    )
    assert await charged(finance, month_after(month)) == ["acme"], "of the name's next tenant"
    await gateway.commit(Change("tenant", "acme", None))  # as if it had not ended anything
    assert await charged(finance, month_after(month)) == ["acme"]
    await admin.delete("tenants/acme")
    assert await charged(finance, month_after(month)) == []
