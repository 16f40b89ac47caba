"""florin cost report: what it asks, and the tables that people read."""

from __future__ import annotations

import json
from copy import deepcopy
from decimal import Decimal

import pytest
from rich.console import Console

from gateway.costs.reports.commands import report_tables
from gateway.costs.reports.schemas.costs import CostReport
from tests.support.command_cases import Case, check

BY = "by=tenant%2Cadapter%2Cgpu_type"
PATH = f"/finance/v1/costs?{BY}"


def figures(hours, cost, requests=0, prompt=0, cached=0, completion=0, **more):
    return {
        "requests": requests, "prompt_tokens": prompt, "cached_tokens": cached,
        "completion_tokens": completion, "reasoning_tokens": 0, "gpu_seconds": float(Decimal(hours) * 3600),
        "gpu_hours": hours, "cost": cost, **more,
    }  # fmt: skip


def part(*rows):
    """As if each had no keys."""
    zero = figures("0.00", "0.00")
    if not rows:
        return {"rows": [], "totals": zero}
    sums = {n: sum(r[n] for r in rows) for n in zero if n not in {"gpu_hours", "cost"}}
    sums |= {n: str(sum(Decimal(r[n]) for r in rows)) for n in ("gpu_hours", "cost")}
    return {"rows": list(rows), "totals": sums}


def row(tenant, adapter, *args, **kwargs):
    return {"tenant": tenant, "adapter": adapter, "gpu_type": "H200", **figures(*args, **kwargs)}


ROWS = part(
    row("acme", "acme/support", "10.00", "33.333333", 1200, 3_000_000, 640_000, 90_000),
    row("bolt", "", "10.00", "33.333333", 3, 1200, 0, 90),
    row("corgi", "corgi/x", "10.00", "33.333334", 1, 2, 0, 3),
)
REPORT = {
    "currency": "USD", "from": "2026-07-01T00:00:00Z", "to": "2026-08-01T00:00:00Z",
    "by": ["tenant", "adapter", "gpu_type"], "basis": "posted", "state": "closed", "policy": "none",
    "weights": "calibrated", "calibrations": [], "missing_prices": [], "set_aside": [], "rows": ROWS["rows"], "next": None,
    "totals": ROWS["totals"], "rejected": 0, "retry_waste": part(figures("1.00", "3.00", 7)),
    "headroom": part(), "startup": part(), "idle": part(figures("69.00", "230.00")), "corrections": part(),
    "provisioned": figures("100.00", "333.00"),
    "utilization": [
        {"gpu_type": "H200", "provisioned_gpu_hours": "100.00", "busy_gpu_hours": "31.00",
         "utilization": 0.31, "idleness_gpu_hours": "69.00", "idleness_cost": "230.00"}
    ],
    "unit_prices": [
        {"gpu_type": "H200", "region": "eu", "purchase": "on_demand",
         "saturated": {"input": None, "cached": None, "output": None},
         "busy": {"input": "0.10", "cached": "0.01", "output": "0.40"},
         "loaded": {"input": "0.322581", "cached": "0.032258", "output": "1.290323"}}
    ],
    "complete": True,
}  # fmt: skip
FOR_STAFF = ("provisioned", "idle", "headroom", "startup", "utilization", "unit_prices")


def changed(**changes):
    return {f"GET {PATH}": REPORT | changes}


def without(*names):
    return {f"GET {PATH}": {name: value for name, value in REPORT.items() if name not in names}}


MISSING = [{"gpu_type": "L40 S", "region": "eu", "purchase": "spot"}]
LOCAL = {"timezone": "Europe/Berlin", "from": "2026-07-01T00:00:00+02:00", "to": "2026-08-01T00:00:00+02:00"}
IN_BERLIN = "/finance/v1/costs?by=day&month=2026-07&timezone=Europe%2FBerlin"
RATE = {
    "currency": "USD",
    "rate": "0.92",
    "valid_from": "2026-07-01",
    "source": "ECB",
    "changed_within": True,
}
UNPRICED = {"cost": None, "priced_cost": "300.00", "unpriced_gpu_hours": "11.00"}
NO_PRICE = [{"gpu_type": "B200", "region": "", "purchase": "on_demand", "gpu_hours": "11.00"}]
INVOICE = {
    "state": "trued_up", "recorded_at": "", "cost": "384.675", "amount_cents": 38468, "lines": [
        {"kind": "tax", "reason": "taxes", "gpu_hours": "0.00", "cost": "56.675", "amount_cents": 5668},
        {"kind": "credit", "reason": "credits", "gpu_hours": "2.50", "cost": "-5.00", "amount_cents": -500},
    ],
}  # fmt: skip
CASES = (
    # 33.33 three times is not 100.00: the largest remainder has the last cent.
    Case(
        "cost report", changed(),
        ("tenant adapter gpu type requests input of which cached output GPU-hours cost USD",
         "acme acme/support H200 1,200 3,000,000 640,000 90,000 10.000 33.33 bolt (base model)",
         "33.34 delivered 1,204 3,001,202 640,000 90,093 30.000 100.00 retry waste 7 0 0 0 1.000 3.00",
         "idle 69.000 230.00 total 100.000 333.00", "H200 100.000 31.000 31.0% 230.00"),
        ("2026-07-01T00:00:00Z to 2026-08-01T00:00:00Z (as posted, closed)",
         "The total is the provisioned GPU cost at list price.",
         "Cost of unused time (idle and start-up): 230.00 USD, 69.1% of the total."),
    ),
    Case(
        "cost report", changed(currency="JPY"), ("30.000 100 retry waste 7 0 0 0 1.000 3 idle 69.000 230 total 100.000 333",),
        ("Cost of unused time (idle and start-up): 230 JPY",),
    ),
    Case(
        "cost report --unit-prices", changed(),
        ("H200 eu on demand excluding unused time 0.1000 0.0100 0.4000", "H200 eu on demand including unused time 0.3226"),
    ),
    Case(
        "cost report", changed(headroom=part(figures("2.00", "6.00")), idle=part(figures("67.00", "224.00"))),
        ("spare capacity while busy 2.000 6.00",),
        ("Cost of unused time (idle and start-up): 224.00 USD, 67.3% of the total.",
         "Cost of spare capacity while busy: 6.00 USD, 1.8% of the total."),
    ),
    Case(
        "cost report", changed(state="open", weights="uncalibrated", rejected=31, complete=False, missing_prices=MISSING),
        notes=("(as posted, still open)", "31 requests were rejected", "florin calibrate", "Incomplete",
               "florin price add --gpu-type 'L40 S' --region eu --purchase spot --rate …"),
    ),
    Case(
        "cost report --by day --month 2026-07 --timezone Europe/Berlin",
        {f"GET {IN_BERLIN}": REPORT | {"by": ["tenant"], "basis": "as known now", "state": None, "local": LOCAL}},
        notes=("2026-07-01T00:00:00+02:00 to 2026-08-01T00:00:00+02:00 (Europe/Berlin, as known now)",),
    ),
    Case(
        "cost report --policy fixed --share acme=60 --share bolt=40",
        {f"GET {PATH}&policy=fixed&shares=acme%3D60%2Cbolt%3D40": REPORT}, document=REPORT,
    ),
    # One GPU without a price made every total `-`.
    Case(
        "cost report", changed(provisioned=REPORT["provisioned"] | UNPRICED, missing_prices=NO_PRICE), ("total 100.000 300.00",),
        ("No price for B200, and no amount includes its 11.000 GPU-hours",),
    ),
    Case(
        "cost report --currency EUR", {f"GET {PATH}&currency=EUR": {**REPORT, "currency": "EUR", "exchange_rate": RATE}},
        notes=("Converted at 1 USD = 0.92 EUR (ECB, 2026-07-01, at the end of the period",),
    ),
    Case(
        "cost report", changed(provisioned=figures("100.00", "333.00", amount_cents=33300), invoice=INVOICE),
        ("333.00 taxes", "+56.68", "-5.00", "384.68"),
    ),
    Case("cost report", changed(invoice={**INVOICE, "state": "expected"}), ("expected at least",)),
    Case(
        "cost report",
        changed(rows=[], totals=part()["totals"], retry_waste=part(), idle=part(), utilization=[], unit_prices=[],
                provisioned=figures("0.00", "0.00")),
        notes=("No usage in this period.",),
    ),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_report(fake, case):
    check(fake, case)


def cells(result):
    return [line.split() for line in result.stdout.splitlines() if line]


def test_what_is_shown_sums_to_what_is_shown_as_the_sum(fake):
    thirds = part(*(row(f"t{i}", "a/b", "0.333333333", "0.333333333333333", 1) for i in range(7)))
    idle = part(figures("0.666666669", "0.666666666666669"))
    rest = {
        "retry_waste": part(),
        "utilization": [],
        "unit_prices": [],
        "provisioned": figures("3.00", "3.00"),
    }
    fake.answer(
        "GET", PATH, REPORT | rest | {"rows": thirds["rows"], "totals": thirds["totals"], "idle": idle}
    )
    lines = cells(fake.florin("cost", "report"))[1:]
    for column in (-1, -2):
        *rows, delivered, nobody, whole = [Decimal(line[column]) for line in lines]
        assert sum(rows) == delivered
        assert delivered + nobody == whole == 3


def test_what_zero_engines_saved_is_said(fake):
    kind = {"base_model": "llama", "gpu_type": "H200", "gpu_count": 1, "region": "", "purchase": "spot"}
    missing = [{**kind, "gpu_hours": "312.50", "cost": "625.00"}, {**kind, "gpu_hours": "2.00", "cost": None}]
    fake.answer("GET", PATH, deepcopy(REPORT) | {"without_engine": missing})
    noted = " ".join(fake.florin("cost", "report").stderr.split())
    assert (
        "no engine ran llama on H200 spot, which saved 312.500 GPU-hours and 625.00 USD at list price"
        in noted
    )
    assert "which saved 2.000 GPU-hours, compared" in noted


def test_what_tenants_bear_has_a_column(fake):
    body = deepcopy(REPORT) | {"policy": "even", "unallocated": figures("3.00", "10.00")}
    for index, each in enumerate([*body["rows"], body["totals"]]):
        each["allocated_cost"] = ["100.00", "100.00", "20.00", "220.00"][index]
    fake.answer("GET", PATH, body)
    result = fake.florin("cost", "report")
    heads, *rows, waste = cells(result)[:6]
    assert heads[-5:] == ["share", "of", "unused", "time", "USD"]
    assert [line[-1] for line in (*rows, waste)] == ["100.00", "100.00", "20.00", "220.00", "3.00"]
    assert "Of it, 10.00" in result.stderr


def test_a_tenant_s_report_has_no_whole(fake):
    check(fake, Case("cost report", without(*FOR_STAFF)))
    first = [line[0] for line in cells(fake.florin("cost", "report"))]
    assert first == ["tenant", "acme", "bolt", "corgi", "delivered", "retry"]


@pytest.mark.parametrize(("width", "tokens"), [(140, 3), (90, 2), (80, 0)])
def test_a_narrow_window_has_fewer_columns_and_nothing_folded(monkeypatch, capsys, width, tokens):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    def console(*, stderr=False):
        return Console(width=width, stderr=stderr, highlight=False, markup=False)

    monkeypatch.setattr("gateway.commands.output.console", console)
    monkeypatch.setattr(report_tables, "console", console)
    report_tables.show_report(CostReport.read(REPORT))
    lines = capsys.readouterr().out.splitlines()
    assert sum(name in lines[0] for name in ("input", "of which cached", "output")) == tokens
    assert any("acme/support" in line and "33.33" in line for line in lines)


def test_every_page_is_fetched(fake):
    first, second = REPORT | {"rows": ROWS["rows"][:2], "next": "abc"}, REPORT | {"rows": ROWS["rows"][2:]}
    fake.answer("GET", PATH, first)
    fake.answer("GET", f"{PATH}&after=abc", second)
    assert json.loads(fake.florin("cost", "report", "--format", "json").stdout) == REPORT


@pytest.mark.parametrize(
    ("form", "content"), [("csv", b"bucket,cost\r\nusage,2.50\r\n"), ("parquet", b"PAR1")]
)
def test_a_file_is_written_as_it_is(fake, tmp_path, form, content):
    fake.answer("GET", f"{PATH}&format={form}", content)
    place = tmp_path / "costs"
    result = fake.florin("cost", "report", "--format", form, "-o", str(place))
    assert (result.exit_code, result.stdout, place.read_bytes()) == (0, "", content)


def test_amounts_are_those_of_the_statements(fake):
    """Rounded by the statements' rule, not anew: a reader compares them."""
    body = deepcopy(REPORT)
    for shown, cents in zip(body["rows"], (3333, 3333, 3334), strict=True):
        shown["amount_cents"] = cents
    named = {"retry_waste": 301, "idle": 22999, "headroom": 0, "startup": 0, "corrections": 0}
    for part_, cents in [
        (body["totals"], 10000),
        *((body[name]["totals"], cents) for name, cents in named.items()),
    ]:
        part_["amount_cents"] = cents
    fake.answer("GET", PATH, body)
    found = {line[0]: line[-1] for line in cells(fake.florin("cost", "report"))[1:8]}
    assert [found[name] for name in ("acme", "corgi", "retry", "idle")] == [
        "33.33",
        "33.34",
        "3.01",
        "229.99",
    ]
