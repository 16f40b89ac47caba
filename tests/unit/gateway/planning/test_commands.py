"""florin plan: what it asks the gateway, what it answers, and what it refuses."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gateway.costs.prices.schemas import ListedPrice
from gateway.costs.reports.schemas.costs import CostReport, CostRow
from gateway.planning.commands import plan as command
from gateway.planning.commands.month_of_use import last_month
from gateway.planning.simulator.workloads import OUTPUT_MEAN, PROMPT_MEAN, WORKLOADS
from tests.support.samples import sample

QUICK = ("--duration", "40", "--slots", "8")
BASE = "meta/llama"


def price(gpu_type, rate, **more):
    fields = {"currency": "USD", "purchase": "on_demand", "valid_from": "2026-01-01T00:00:00Z", **more}
    return sample(ListedPrice, gpu_type=gpu_type, rate_per_gpu_hour=rate, **fields)


PRICES = [
    price("H100", "9.00", valid_to="2026-02-01T00:00:00Z"),
    price("H100", "2.50", valid_from="2026-02-01T00:00:00Z"),
    price("H100", "1.25", purchase="spot", region="eu"),
    price("H100", "0.01", valid_from="2999-01-01T00:00:00Z"),
    price("L40S", "1.00", speedup="0.400", speedup_reference="H100", speedup_source="us"),
    price("T4", "0.30"),
]


@pytest.fixture
def book(fake):
    fake.answer("GET", "/admin/v1/prices", {"data": PRICES})
    return fake


def planned(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_stated_traffic_is_sized_and_priced_from_the_book(book):
    body = planned(book.florin("plan", "--rate", "8", "--adapters", "30", *QUICK, "--json"))
    assert [path for _, path, _ in book.asked] == ["/admin/v1/prices"]
    options = sorted(body["options"], key=lambda o: -o["speed"])
    assert body["options"][0]["purchase"] == "spot"
    assert [(o["gpu_type"], o["purchase"], o["rate_per_gpu_hour"], o["speed"]) for o in options] == [
        ("H100", "spot", "1.25", 1.0), ("H100", "on_demand", "2.50", 1.0), ("L40S", "on_demand", "1.00", 0.4),
    ]  # fmt: skip
    spot, on_demand, slow = options
    assert spot["engines"] == on_demand["engines"] < slow["engines"]
    assert all(o["attainment"] >= 0.95 for o in options)
    tokens = 8 * 3600 * (1155 + 211) / 1e6
    for option in options:
        cost = Decimal(option["cost_per_hour"])
        assert cost == Decimal(option["rate_per_gpu_hour"]) * option["engines"]
        assert float(option["cost_per_million_tokens"]) == pytest.approx(float(cost) / tokens, rel=0.1)
    assert body["unknown_speed"] == ["T4"]
    assert body["objectives"] == {"slo_ttft": 2.0, "slo_itl": 0.1, "attainment": 0.95}
    assert any("KV cache of L40S" in text for text in body["approximations"])


def test_people_read_a_table_and_what_it_does_not_say(florin):
    done = florin(
        "plan", "--rate", "8", "--adapters", "30", *QUICK, "--slots", "1", "--price", "H100=2", "--price", "L4=0.5",
        "--speed", "l4=0.02",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["gpu", "slots", "engines"]
    assert "cheapest" in lines[1]
    assert sum("misses the objectives" in line for line in lines) == 2
    assert "8B-shaped Llama on one H100" in done.stderr
    assert "KV cache of L4 " in done.stderr


def figures(requests, prompt, completion, **keys):
    return sample(CostRow, requests=requests, prompt_tokens=prompt, completion_tokens=completion, **keys)


def used(fake, *, bases=(BASE,)):
    hours = [
        figures(9_000, 900_000, 900_000, hour="2026-07-03T10:00:00Z", base_model=BASE),
        figures(20_000, 10_000_000, 2_000_000, hour="2026-07-04T11:00:00Z", base_model=BASE),
        *(figures(90_000, 1, 1, hour="2026-07-05T11:00:00Z", base_model=b) for b in bases if b != BASE),
    ]
    path = "/finance/v1/costs?by=hour%2Cbase_model&month=2026-07"
    fake.answer("GET", path, sample(CostReport, rows=hours[:1], next="more"))
    fake.answer("GET", f"{path}&after=more", sample(CostReport, rows=hours[1:]))
    adapters = [
        figures(15_000, 9_000_000, 1_000_000, adapter="acme/support", base_model=BASE),
        figures(5_000, 1_000_000, 1_000_000, adapter="", base_model=BASE),
        figures(7, 7, 7, adapter="bolt/x", base_model="other"),
    ]
    fake.answer(
        "GET",
        "/finance/v1/costs?by=adapter%2Cbase_model&from=2026-07-04T11%3A00%3A00Z&to=2026-07-04T12%3A00%3A00Z",
        sample(CostReport, rows=adapters),
    )


def test_a_months_busiest_hour_sizes_the_fleet_and_the_month_pays_for_it(book):
    used(book)
    args = ("plan", "--from-usage", "--month", "2026-07", "--gpu-type", "h100", *QUICK, "--json")
    body = planned(book.florin(*args))
    assert body["traffic"] == {
        "month": "2026-07", "base_model": BASE, "busiest_hour": "2026-07-04T11:00:00Z",
        "rate": round(20_000 / 3600, 4), "adapters": 1, "month_tokens": 13_800_000,
    }  # fmt: skip
    spot = body["options"][0]
    month = Decimal("1.25") * spot["engines"] * 24 * 31
    assert Decimal(spot["cost_per_million_tokens"]) == round(month / Decimal("13.8"), 4)
    assert body["merged"] == []
    assert any("resampled" in text for text in body["approximations"])


def test_several_base_models_are_planned_one_at_a_time(book):
    used(book, bases=(BASE, "other"))
    args = ("plan", "--from-usage", "--month", "2026-07", *QUICK, "--json")
    refused = book.florin(*args)
    assert refused.exit_code == 2
    assert "choose one with --base-model" in refused.stderr
    assert planned(book.florin(*args, "--base-model", BASE))["traffic"]["base_model"] == BASE
    none = book.florin(*args, "--base-model", "nobody")
    assert (none.exit_code, "no usage of nobody" in none.stderr) == (2, True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "either --rate or --from-usage"),
        (("--rate", "5", "--from-usage"), "either --rate or --from-usage"),
        (("--rate", "5", "--month", "2026-07"), "require --from-usage"),
        (("--rate", "5", "--slo-ttft", "soon"), "--slo-ttft: 'soon' is not a time"),
        (("--rate", "5", "--slo-itl", "0ms"), "--slo-itl"),
        (("--rate", "5", "--workload", "W9"), "choose from W1"),
        (("--rate", "5", "--speed", "L4"), "--speed: 'L4' is not TYPE=VALUE"),
        (("--rate", "5", "--speed", "L4=fast"), "not a positive number"),
        (("--rate", "5", "--gpu-type", "B300"), "No price in force for b300"),
        (("--rate", "5", "--gpu-type", "T4"), "The speed of T4 is unknown"),
        (("--rate", "5", "--engine-model", "b300"), "--engine-model: there is no 'b300'"),
        (("--rate", "5", "--engine-model", "h200"), "H100=FACTOR, relative to one H200"),
        (("--rate", "0.1"), "longer --duration"),
    ],
)
def test_what_cannot_be_planned_is_a_usage_error(book, args, words):
    refused = book.florin("plan", *args, *QUICK)
    assert refused.exit_code == 2, refused.output
    assert words in refused.stderr


def test_an_empty_price_book_says_what_to_do(fake):
    fake.answer("GET", "/admin/v1/prices", {"data": []})
    refused = fake.florin("plan", "--rate", "5")
    assert (refused.exit_code, "florin price add, or use --price" in refused.stderr) == (2, True)


def test_the_help_names_the_simulators_workloads_and_mean_lengths():
    assert tuple(WORKLOADS) == command.WORKLOADS
    defaults = {name: p.default for name, p in inspect.signature(command.plan).parameters.items()}
    assert (defaults["prompt_tokens"], defaults["output_tokens"]) == (PROMPT_MEAN, OUTPUT_MEAN)


def test_the_last_full_month_is_the_default():
    assert last_month(datetime(2026, 3, 31, tzinfo=UTC)) == "2026-02"
    assert last_month(datetime(2026, 1, 1, tzinfo=UTC)) == "2025-12"
