"""florin cost report: what it asks, and the tables that people read."""

from __future__ import annotations

import json
from copy import deepcopy
from decimal import Decimal

import pytest
from rich.console import Console

from gateway.costs.reports.commands import report_tables
from gateway.costs.reports.schemas.costs import CostReport

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
    "whole": figures("100.00", "333.00"),
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
FOR_STAFF = ("whole", "idle", "headroom", "startup", "utilization", "unit_prices")


@pytest.fixture
def shown(fake):
    def run(*args, path=PATH, without=(), **changes):
        body = {name: value for name, value in REPORT.items() if name not in without}
        fake.answer("GET", path, body | changes)
        return fake.florin("cost", "report", *args)

    return run


def cells(result):
    return [line.split() for line in result.stdout.splitlines()]


def test_who_used_what_what_else_it_went_into_and_the_whole(shown):
    heads, acme, bolt, corgi, delivered, waste, idle, whole, *_ = cells(shown())
    assert heads == [
        "tenant", "adapter", "gpu", "type", "requests", "input", "of", "which", "cached", "output",
        "GPU-hours", "cost", "USD",
    ]  # fmt: skip
    assert acme == [
        "acme", "acme/support", "H200", "1,200", "3,000,000", "640,000", "90,000", "10.000", "33.33",
    ]  # fmt: skip
    assert bolt[:3] == ["bolt", "(base", "model)"]
    # 33.33 three times is not 100.00: the largest remainder has the last cent
    assert [r[-1] for r in (acme, bolt, corgi, delivered)] == ["33.33", "33.33", "33.34", "100.00"]
    assert delivered == ["delivered", "1,204", "3,001,202", "640,000", "90,093", "30.000", "100.00"]
    assert waste == ["retry", "waste", "7", "0", "0", "0", "1.000", "3.00"]
    assert idle == ["idle", "69.000", "230.00"]
    assert whole == ["total", "100.000", "333.00"]


def test_what_is_shown_sums_to_what_is_shown_as_the_sum(shown):
    thirds = part(*(row(f"t{i}", "a/b", "0.333333333", "0.333333333333333", 1) for i in range(7)))
    idle = part(figures("0.666666669", "0.666666666666669"))
    result = shown(
        rows=thirds["rows"], totals=thirds["totals"], retry_waste=part(), idle=idle,
        whole=figures("3.00", "3.00"), utilization=[], unit_prices=[],
    )  # fmt: skip
    lines = cells(result)[1:]
    for column in (-1, -2):
        *rows, delivered, nobody, whole = [Decimal(line[column]) for line in lines]
        assert sum(rows) == delivered
        assert delivered + nobody == whole == 3


def test_amounts_have_the_places_of_their_currency(shown):
    result = shown(currency="JPY")
    _, *rows, delivered, waste, idle, whole = [line[-1] for line in cells(result)[:8]]
    assert (rows, delivered) == (["33", "33", "34"], "100")
    assert (waste, idle, whole) == ("3", "230", "333")
    assert "Cost of unused time (idle and start-up): 230 JPY" in result.stderr


def test_utilization(shown):
    lines = shown().stdout.splitlines()
    [heads] = [line.split("  ") for line in lines if "utilization" in line]
    assert [head.strip() for head in heads if head.strip()] == [
        "gpu type", "GPU-hours provisioned", "busy", "utilization", "cost of unused time",
    ]  # fmt: skip
    assert ["H200", "100.000", "31.000", "31.0%", "230.00"] in [line.split() for line in lines]


def test_unit_prices_are_shown_when_asked_for(shown):
    assert "per million tokens" not in shown().stdout
    lines = shown("--unit-prices").stdout.splitlines()
    found = [line.split() for line in lines if "H200 eu on demand" in line]
    assert found == [
        ["H200", "eu", "on", "demand", "excluding", "unused", "time", "0.1000", "0.0100", "0.4000"],
        ["H200", "eu", "on", "demand", "including", "unused", "time", "0.3226", "0.0323", "1.2903"],
    ]


def test_spare_capacity_while_busy_is_not_called_unused(shown):
    result = shown(headroom=part(figures("2.00", "6.00")), idle=part(figures("67.00", "224.00")))
    assert ["spare", "capacity", "while", "busy", "2.000", "6.00"] in cells(result)
    assert "Cost of unused time (idle and start-up): 224.00 USD, 67.3% of the total." in result.stderr
    assert "Cost of spare capacity while busy: 6.00 USD, 1.8% of the total." in result.stderr


def test_what_to_know_is_said_beside(shown):
    noted = shown(
        state="open", weights="uncalibrated", rejected=31, complete=False,
        missing_prices=[{"gpu_type": "L40 S", "region": "eu", "purchase": "spot"}],
    ).stderr  # fmt: skip
    assert "2026-07-01T00:00:00Z to 2026-08-01T00:00:00Z (as posted, still open)" in noted
    assert "The total is the provisioned GPU cost at list price." in noted
    assert "Cost of unused time (idle and start-up): 230.00 USD, 69.1% of the total." in noted
    assert "31 requests were rejected" in noted
    assert "florin calibrate" in noted
    assert "florin price add --gpu-type 'L40 S' --region eu --purchase spot --rate …" in noted
    assert "Incomplete" in noted
    quiet = shown(idle=part()).stderr
    assert quiet.strip().splitlines() == [
        "2026-07-01T00:00:00Z to 2026-08-01T00:00:00Z (as posted, closed)",
        "The total is the provisioned GPU cost at list price.",
    ]


def test_what_tenants_bear_has_a_column(shown):
    body = deepcopy(REPORT)
    for index, each in enumerate([*body["rows"], body["totals"]]):
        each["allocated_cost"] = ["100.00", "100.00", "20.00", "220.00"][index]
    result = shown(
        rows=body["rows"], totals=body["totals"], policy="even", unallocated=figures("3.00", "10.00")
    )
    heads, acme, bolt, corgi, delivered, waste, *_ = cells(result)
    assert heads[-5:] == ["share", "of", "unused", "time", "USD"]
    assert [line[-1] for line in (acme, bolt, corgi, delivered)] == ["100.00", "100.00", "20.00", "220.00"]
    assert waste[-1] == "3.00"
    assert "Of it, 10.00" in result.stderr


def test_a_tenant_s_report_has_no_whole(shown):
    result = shown(without=FOR_STAFF)
    lines = [line for line in cells(result) if line]
    assert [line[0] for line in lines] == ["tenant", "acme", "bolt", "corgi", "delivered", "retry"]


def test_a_report_without_gpu_time_has_no_column_for_it(shown):
    def bare(figures):
        return {
            name: value
            for name, value in figures.items()
            if not name.startswith("gpu_") or name == "gpu_type"
        }

    rows = [bare(row) for row in ROWS["rows"]]
    bare_part = {"rows": [], "totals": bare(part()["totals"])}
    result = shown(rows=rows, totals=bare(ROWS["totals"]), retry_waste=bare_part, without=FOR_STAFF)
    assert "GPU-hours" not in result.stdout
    assert cells(result)[1][-2:] == ["90,000", "33.33"]


def test_a_report_in_local_time_says_so(shown):
    local = {
        "timezone": "Europe/Berlin",
        "from": "2026-07-01T00:00:00+02:00",
        "to": "2026-08-01T00:00:00+02:00",
    }
    path = "/finance/v1/costs?by=day&month=2026-07&timezone=Europe%2FBerlin"
    changes = {"by": ["tenant"], "basis": "as known now", "state": None, "local": local}
    result = shown("--by", "day", "--month", "2026-07", "--timezone", "Europe/Berlin", path=path, **changes)
    assert result.stderr.splitlines()[0] == (
        "2026-07-01T00:00:00+02:00 to 2026-08-01T00:00:00+02:00 (Europe/Berlin, as known now)"
    )


def test_a_cost_that_is_not_known_is_a_dash(shown):
    unknown = part(row("acme", "a/b", "1.00", "1.00", 1))
    unknown["rows"][0]["cost"] = unknown["totals"]["cost"] = None
    result = shown(rows=unknown["rows"], totals=unknown["totals"], whole=figures("100.00", None))
    assert [line[-1] for line in cells(result)[1:5]] == ["-", "-", "3.00", "230.00"]


def test_nothing_is_said_so(shown):
    result = shown(
        rows=[], totals=part()["totals"], retry_waste=part(), idle=part(), utilization=[], unit_prices=[],
        whole=figures("0.00", "0.00"),
    )  # fmt: skip
    assert result.stdout == ""
    assert "No usage in this period." in result.stderr


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


def test_policy_and_shares_are_asked_for(shown):
    path = f"{PATH}&policy=fixed&shares=acme%3D60%2Cbolt%3D40"
    result = shown("--policy", "fixed", "--share", "acme=60", "--share", "bolt=40", "--json", path=path)
    assert json.loads(result.stdout) == REPORT


def test_csv_goes_to_stdout_or_to_a_file_as_it_is(fake, tmp_path):
    content = b"bucket,cost\r\nusage,2.50\r\n"
    fake.answer("GET", f"{PATH}&format=csv", content)
    assert fake.florin("cost", "report", "--format", "csv").stdout_bytes == content
    place = tmp_path / "costs.csv"
    result = fake.florin("cost", "report", "--format", "csv", "-o", str(place))
    assert (result.exit_code, result.stdout, place.read_bytes()) == (0, "", content)


def test_parquet_goes_to_a_file(fake, tmp_path):
    fake.answer("GET", f"{PATH}&format=parquet", b"PAR1")
    place = tmp_path / "costs.parquet"
    result = fake.florin("cost", "report", "--format", "parquet", "--output", str(place), "--json")
    assert json.loads(result.stdout)["bytes"] == 4
    assert place.read_bytes() == b"PAR1"


def test_a_missing_price_does_not_blank_what_has_one(fake):
    """One GPU without a price made every total `-`."""
    body = deepcopy(REPORT)
    partial = {"cost": None, "priced_cost": "300.00", "unpriced_gpu_hours": "11.00"}
    body["whole"] |= partial
    body["missing_prices"] = [
        {"gpu_type": "B200", "region": "", "purchase": "on_demand", "gpu_hours": "11.00"}
    ]
    fake.answer("GET", PATH, body)
    done = fake.florin("cost", "report")
    assert done.exit_code == 0, done.output
    total = next(line for line in done.stdout.splitlines() if line.startswith("total"))
    assert total.split()[-1] == "300.00"
    assert "No price for B200, and no amount includes its 11.000 GPU-hours" in " ".join(done.stderr.split())


def test_a_converted_report_names_its_rate(fake):
    rate = {
        "currency": "USD",
        "rate": "0.92",
        "valid_from": "2026-07-01",
        "source": "ECB",
        "changed_within": True,
    }
    fake.answer("GET", f"{PATH}&currency=EUR", {**REPORT, "currency": "EUR", "exchange_rate": rate})
    done = fake.florin("cost", "report", "--currency", "EUR")
    assert done.exit_code == 0, done.output
    assert "Converted at 1 USD = 0.92 EUR (ECB, 2026-07-01, at the end of the period" in " ".join(
        done.stderr.split()
    )


def test_amounts_are_those_of_the_statements(fake):
    """Rounded by the statements' rule, not anew: a reader compares them."""
    body = deepcopy(REPORT)
    for shown, cents in zip(body["rows"], (3333, 3333, 3334), strict=True):
        shown["amount_cents"] = cents
    named = {
        "totals": 10000,
        "retry_waste": 301,
        "idle": 22999,
        "headroom": 0,
        "startup": 0,
        "corrections": 0,
    }
    for name, cents in named.items():
        (body[name] if name == "totals" else body[name]["totals"])["amount_cents"] = cents
    fake.answer("GET", PATH, body)
    lines = fake.florin("cost", "report").stdout.splitlines()
    found = {line.split()[0]: line.split()[-1] for line in lines[1:8]}
    assert (found["acme"], found["corgi"], found["retry"], found["idle"]) == (
        "33.33",
        "33.34",
        "3.01",
        "229.99",
    )


def test_lines_lead_from_list_price_to_the_invoice(shown):
    lines = [
        {"kind": "tax", "reason": "taxes", "gpu_hours": "0.00", "cost": "56.675", "amount_cents": 5668},
        {"kind": "credit", "reason": "credits", "gpu_hours": "2.50", "cost": "-5.00", "amount_cents": -500},
    ]
    found = {"state": "trued_up", "at": "", "lines": lines, "cost": "384.675", "amount_cents": 38468}
    for whole, form in (({"amount_cents": 33300}, "cents"), ({}, "converted")):
        result = shown(whole=figures("100.00", "333.00", **whole), invoice=found if form == "cents" else {
            **found, "lines": [{k: v for k, v in one.items() if k != "amount_cents"} for one in lines],
        })  # fmt: skip
        table = [line for line in result.stdout.splitlines() if line.startswith(("prov", "  ", "invoice"))]
        assert [line.split()[-1] for line in table] == ["333.00", "+56.68", "-5.00", "384.68"], form
    said = shown(whole=figures("100.00", "333.00"), invoice={**found, "state": "expected"}).stdout
    assert "expected at least" in said
