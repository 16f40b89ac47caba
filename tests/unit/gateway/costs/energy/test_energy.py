"""Energy: exact, adding up to the whole, with the figures of its own day."""

from fractions import Fraction

import pytest

from gateway.costs.energy.energy_store import energy_report, set_grid, set_power, stated
from gateway.costs.energy.figures import EnergyError
from gateway.costs.periods import month_of
from gateway.metering.ledger.audit_log import Wanted, read
from gateway.units import DAY, HOUR
from tests.unit.gateway.costs.rolled import row, write

OCTOBER = month_of("2026-10")
FIRST = OCTOBER.start // HOUR
NANO = 10**9
NOW = OCTOBER.start


def power(ledger, gpu_type="H100", watts="700", idle="100", valid_from=None):
    return set_power(
        ledger, gpu_type=gpu_type, watts=watts, idle_watts=idle, source="us", valid_from=valid_from, now=NOW,
        actor="me",
    )  # fmt: skip


def grid(ledger, grams="50", region="", pue="1.2", valid_from=None):
    return set_grid(
        ledger, region=region, grams_per_kwh=grams, pue=pue, source="us", valid_from=valid_from, now=NOW,
        actor="me",
    )  # fmt: skip


def test_work_and_idle_draw_their_own_power(ledger):
    power(ledger)
    grid(ledger)
    write(
        ledger,
        row(FIRST, nano_gpu_hours=2 * NANO),
        row(FIRST, nano_gpu_hours=NANO, tenant="bolt"),
        row(FIRST, nano_gpu_hours=NANO, bucket="retry_waste"),
        row(FIRST, nano_gpu_hours=10 * NANO, bucket="idle"),
    )
    found = energy_report(ledger, OCTOBER, ("tenant",))
    # 0.7 kW for two hours, times 1.2
    assert found["rows"] == [
        {"tenant": "acme", "gpu_hours": "2.00", "kwh": "1.68", "kg_co2e": "0.084"},
        {"tenant": "bolt", "gpu_hours": "1.00", "kwh": "0.84", "kg_co2e": "0.042"},
    ]
    assert (found["retry_waste"]["kwh"], found["idle"]["kwh"]) == ("0.84", "1.20")
    assert found["provisioned"] == {"gpu_hours": "14.00", "kwh": "4.56", "kg_co2e": "0.228"}


def test_the_parts_sum_to_the_whole_exactly(ledger):
    power(ledger, watts="699.999", idle="101.003")
    power(ledger, "L40", "321.7", "30")
    grid(ledger, "377.777", pue="1.137")
    write(
        ledger,
        *(
            row(
                FIRST + 5 * n, tenant=f"t{n % 3}", nano_gpu_hours=NANO // 7 + n, gpu_type=("H100", "L40")[n % 2],
                bucket=("usage", "retry_waste", "idle", "startup", "headroom")[n % 5],
            )
            for n in range(60)
        ),
    )  # fmt: skip
    found = energy_report(ledger, OCTOBER, ("tenant", "day"))
    buckets = [found[name] for name in ("retry_waste", "headroom", "startup", "idle")]
    for name in ("gpu_hours", "kwh", "kg_co2e"):
        assert sum(Fraction(part[name]) for part in [*found["rows"], *buckets]) == Fraction(
            found["provisioned"][name]
        )


def test_each_day_has_the_figures_of_its_time_and_region(ledger):
    power(ledger)
    power(ledger, watts="500", valid_from=OCTOBER.start + DAY)
    grid(ledger, "100", pue="1")
    grid(ledger, "10", region="eu", pue="1")
    write(
        ledger, row(FIRST), row(FIRST + 24), row(FIRST + 24, region="eu", tenant="bolt"),
    )  # fmt: skip
    found = {(r["tenant"], r["day"]): r for r in energy_report(ledger, OCTOBER, ("tenant", "day"))["rows"]}
    assert [(r["kwh"], r["kg_co2e"]) for r in found.values()] == [
        ("0.70", "0.07"), ("0.50", "0.05"), ("0.50", "0.005"),
    ]  # fmt: skip


def test_what_is_not_stated_is_named_and_not_taken_for_nothing(ledger):
    power(ledger)
    power(ledger, "L40", valid_from=OCTOBER.start + DAY)
    write(
        ledger,
        row(FIRST),
        row(FIRST, gpu_type="L40", tenant="bolt"),
        row(FIRST, gpu_type="L40", bucket="idle"),
    )
    found = energy_report(ledger, OCTOBER, ("tenant",))
    assert [(r["kwh"], r["kg_co2e"]) for r in found["rows"]] == [("0.70", None), (None, None)]
    assert (found["missing_power"], found["missing_grid"]) == (["L40"], [""])
    assert found["provisioned"]["kwh"] is None


def test_a_later_statement_replaces_one_of_the_same_day_and_both_are_kept(ledger):
    assert power(ledger)[1]
    assert not power(ledger)[1]
    assert power(ledger, watts="650")[1]
    assert [p["watts"] for p in stated(ledger)["power"]] == ["650.00", "700.00"]
    write(ledger, row(FIRST))
    assert energy_report(ledger, OCTOBER, ())["provisioned"]["kwh"] == "0.65"
    assert [e.action for e in read(ledger, Wanted(subject="H100"), 9)] == ["power.set", "power.set"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda ledger: power(ledger, watts="lots"), "watts"),
        (lambda ledger: power(ledger, idle="-1"), "idle_watts"),
        (lambda ledger: power(ledger, valid_from=HOUR), "valid_from"),
        (lambda ledger: grid(ledger, pue="0.9"), "pue"),
        (lambda ledger: grid(ledger, grams="1.0001"), "grams_per_kwh"),
    ],
)
def test_a_wrong_figure_is_refused_with_its_field(ledger, change, param):
    with pytest.raises(EnergyError) as caught:
        change(ledger)
    assert caught.value.param == param
    assert stated(ledger) == {"power": [], "grid": []}
