"""A price that changes tenfold is a question, not a fact.

Source: a day of operations
Sent: `price add --rate 25.0` for a GPU that costs 2.50; the same in a fleet file, as an exchange rate, as a rate card and
as a correction
Right: refused with the two figures until it is confirmed: `--yes`, `confirm=true`; what is restored, and the correction
of a slip, need no confirmation
Why: every cost of an open month changes at once, and nobody looks at a price that a script has added
"""

from __future__ import annotations

from typing import Any

import pytest

PRICE = {"gpu_type": "H100", "rate_per_gpu_hour": "2.50", "valid_from": "2026-01-01"}
SLIP = {"gpu_type": "H100", "rate_per_gpu_hour": "25.0", "valid_from": "2026-02-01"}
RATE = {"currency": "USD", "target": "EUR", "rate": "0.92", "valid_from": "2026-01-01", "source": "ECB"}
CARD = {"name": "standard", "input_per_million": "1", "output_per_million": "3", "valid_from": "2026-01"}


@pytest.mark.parametrize(
    ("path", "first", "slip"),
    [
        ("/admin/v1/prices", PRICE, SLIP),
        ("/admin/v1/prices", PRICE, SLIP | {"rate_per_gpu_hour": "0.25"}),
        ("/admin/v1/prices", PRICE, SLIP | {"valid_from": "2025-02-01", "valid_to": "2025-03-01"}),
        ("/admin/v1/exchange-rates", RATE, RATE | {"rate": "92", "valid_from": "2026-02-01"}),
        ("/finance/v1/rate-cards", CARD, CARD | {"output_per_million": "30", "valid_from": "2026-02"}),
    ],
)
async def test_it_is_taken_when_it_is_confirmed(admin, gateway, path: str, first: dict, slip: dict):
    async with gateway.http() as client:
        assert (await client.post(path, json=first)).status_code == 201
        refused = await client.post(path, json=slip)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "confirmation_required")
        assert (await client.post(path, json=slip, params={"confirm": True})).status_code == 201
        assert (await client.post(path, json=slip)).status_code == 200  # it stands: nothing changes


async def test_a_correction_is_compared_with_what_is_right(admin):
    await admin.post("prices", json=PRICE)
    number = (await admin.post("prices", json=SLIP, params={"confirm": True})).json()["id"]
    right = {"reason": "typed 25.0", "rate_per_gpu_hour": "2.60"}
    corrected = await admin.post(f"prices/{number}/correct", json=right)
    assert corrected.status_code == 201
    wrong = {"reason": "no", "rate_per_gpu_hour": "26"}
    refused = await admin.post(f"prices/{corrected.json()['id']}/correct", json=wrong)
    assert refused.json()["error"]["code"] == "confirmation_required"


async def test_a_file_is_compared_with_the_installation_and_not_with_itself(admin):
    restored = await apply(admin, prices=[PRICE, SLIP], rate_cards=[CARD])
    assert [action["outcome"] for action in restored["actions"]] == ["done", "done", "done"]
    doubtful = {
        "prices": [SLIP | {"rate_per_gpu_hour": "2.50", "valid_from": "2026-03-01"}],
        "rate_cards": [CARD | {"input_per_million": "10", "valid_from": "2027-01"}],
    }
    refused = await apply(admin, **doubtful)
    assert [action["error"]["code"] for action in refused["actions"]] == ["confirmation_required"] * 2
    assert (await apply(admin, confirm=True, **doubtful))["failed"] == 0


async def apply(admin, *, confirm: bool = False, **sections: Any) -> dict[str, Any]:
    answer = await admin.post("apply", json={"florin": 1, **sections}, params={"confirm": confirm})
    result: dict[str, Any] = answer.json()
    return result
