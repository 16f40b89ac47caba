"""The finance commands against a running gateway: a bill in, its differences out."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import insert
from typer.testing import CliRunner, Result

from gateway.commands.tree import tree
from gateway.costs.periods import month_of
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.schema import engine_counters, engine_spans
from gateway.units import HOUR
from tests.support.harness import OPERATOR_KEY, Gateway
from tests.unit.gateway.metering.make import record

START = month_of("2026-05").start
HEAD = "start,end,resource,gpu_type,gpu_hours,cost,currency\n"


async def florin(gateway: Gateway, *args: str) -> Result:
    env = {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
    return await asyncio.to_thread(CliRunner().invoke, tree(), ["cost", *args], env=env)


async def told(gateway: Gateway, *args: str, code: int = 0) -> dict:
    done = await florin(gateway, *args, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
async def may(gateway):
    """An engine that was up from 0:30 to 4:00 on the first of May, at work for 216 seconds of it."""
    await asyncio.to_thread(_may, gateway.state.ledger)
    async with gateway.http() as client:
        price = {"gpu_type": "H100", "rate_per_gpu_hour": "2.50"}
        assert (await client.post("/admin/v1/prices", json=price)).status_code == 201
    return gateway


def _may(ledger):
    span = {
        "engine": "gpu-a", "worker": "w", "started": START + HOUR // 2, "phase": "up", "seen": START + 4 * HOUR,
        "gpu_type": "H100", "gpu_count": 1, "region": "", "purchase": "on_demand", "base_model": "base",
    }  # fmt: skip  # one name a line says no more
    counters = {
        "engine": "gpu-a", "epoch": START, "hour": START + 3 * HOUR, "at": START + 4 * HOUR - 1,
        "prompt_tokens": 50, "completion_tokens": 18, "cached_tokens": None,
    }  # fmt: skip
    with ledger.write() as connection:
        connection.execute(insert(engine_spans), [span])
        connection.execute(insert(engine_counters), [counters])
        mark_dirty(connection, [(START + hour * HOUR, "gpu-a", "H100", 1) for hour in range(4)])
    ledger.insert(
        [
            record("plain", dispatched=START + HOUR, ended=START + HOUR + 72_000_000),
            record("three", dispatched=START + 2 * HOUR, ended=START + 2 * HOUR + 72_000_000, n=3),
            record(
                "left", dispatched=START + 3 * HOUR, ended=START + 3 * HOUR + 72_000_000,
                usage_source="engine_partial", outcome="client_abort",
            ),
        ]
    )  # fmt: skip  # as they are declared


async def test_a_bill_with_differences_of_many_kinds(may, tmp_path):
    bill = tmp_path / "may.csv"
    bill.write_text(
        HEAD
        + "2026-05-01T00:00Z,2026-05-01T06:00Z,gpu-a,H100,6,18.00,USD\n"
        + "2026-05-01T00:00Z,2026-05-01T02:00Z,stranger,H100,2,5.00,USD\n"
    )
    imported = await told(may, "import-bill", str(bill))
    assert (imported["new"], imported["gpu_hours"]) == (2, "8.00")
    found = await told(may, "reconcile", "--month", "2026-05", code=1)
    assert {one["kind"]: (one["gpu_hours"], one["cost"]) for one in found["bill"]["lines"]} == {
        "never_registered": ("2.00", "5.00"),
        "down": ("2.00", "5.00"),
        "partly_up": ("0.50", "1.25"),
        "rate": ("0.00", "3.00"),
    }
    assert (found["bill"]["provisioned_gpu_hours"], found["bill"]["attributed_gpu_hours"]) == ("3.50", "0.06")
    assert found["completeness"]["hours_pending"] == 0
    tokens = {one["token_type"]: one for one in found["tokens"]["checks"]}
    assert [(line["kind"], line["tokens"]) for line in tokens["input"]["lines"]] == [
        ("prompt_of_each_answer", 20)
    ]
    assert [(line["kind"], line["tokens"]) for line in tokens["output"]["lines"]] == [("broken_off", 3)]
    assert [one["unexplained"] for one in tokens.values()] == [0, 0]
    lines = [one["line"] for account in found["bill"]["accounts"] for one in account["lines"]]
    refused = await florin(may, "true-up", "2026-05", "--yes")
    assert (refused.exit_code, "not accepted" in refused.stderr) == (1, True)
    accepted = await told(may, "accept", *lines, "--reason", "agreed with the provider")
    assert sorted(one["line"] for one in accepted["data"]) == sorted(lines)
    people = await florin(may, "reconcile", "--month", "2026-05", "--accounts")
    assert people.exit_code == 0
    assert "Reconciled: all but at most 0.10 percent of the bill is matched or accepted." in people.stdout
    await trued_up(may)
    bill.write_text(HEAD + "2026-05-01T01:00Z,2026-05-01T02:00Z,gpu-a,H100,1,2.50,USD\n")
    again = await told(may, "import-bill", str(bill))
    twice = await told(may, "reconcile", "--month", "2026-05", code=1)
    assert twice["bill"]["unexplained_gpu_hours"] == "1.00"
    assert (await told(may, "true-up", "2026-05", "--dry-run", code=1))["recorded"][0][
        "invoice_cost"
    ] == "23.00"
    listed = await told(may, "bills")
    assert [one["source"] for one in listed["data"]] == [again["source"], imported["source"]]
    removed = await told(may, "remove-bill", again["source"][:12], "--yes")
    assert removed["lines"] == 1


async def trued_up(gateway):
    """8.75 at list price are invoiced as 23.00; a total that is not the invoice's is refused."""
    wrong = await florin(gateway, "true-up", "2026-05", "--invoice", "24.00", "--yes")
    assert (wrong.exit_code, "sum to 23.00 USD, not to 24.00" in wrong.stderr) == (1, True)
    done = await told(gateway, "true-up", "2026-05", "--invoice", "23.00", "--yes")
    assert (done["list_amount_cents"], done["invoice_amount_cents"]) == (875, 2300)
    assert {one["kind"]: one["amount_cents"] for one in done["lines"]} == {
        "never_registered": 500, "down": 500, "partly_up": 125, "rate": 300,
    }  # fmt: skip
    shown = await told(gateway, "true-up", "2026-05", "--dry-run")
    assert (shown["current"], shown["blocked"]) == (True, [])


async def test_what_florin_exports_as_focus_it_takes_for_a_bill_without_any_difference(may, tmp_path):
    path = tmp_path / "focus.csv"
    await told(may, "export", "--month", "2026-05", "--dataset", "infrastructure", "--output", str(path))
    imported = await told(may, "import-bill", str(path))
    assert (imported["format"], imported["gpu_hours"], imported["cost"]) == ("focus", "3.50", {"USD": "8.75"})
    bill = (await told(may, "reconcile", "--month", "2026-05"))["bill"]
    assert (bill["lines"], bill["billed_gpu_hours"], bill["billed_cost"]) == ([], "3.50", "8.75")
