"""A month from the ledger on other GPUs."""

import pickle

import pytest
from sqlalchemy import insert

from gateway.costs.periods import month_of
from gateway.costs.reports.compare_report import CompareError, compare_month
from gateway.metering.ledger.schema import calibrations, prices
from gateway.units import HOUR
from tests.unit.gateway.costs.rolled import row, write

FIRST = month_of("2026-10").start // HOUR
NOW = month_of("2026-11").start + 5


def price(ledger, gpu_type, rate, **changes):
    fields = {
        "gpu_type": gpu_type, "region": "", "purchase": "on_demand", "rate_micros": round(rate * 1e6),
        "currency": "USD", "valid_from": 0, "valid_to": None, "recorded_at": 0, "speedup_millis": None,
        "speedup_reference": None, "speedup_source": None,
    }  # fmt: skip  # one name a line says no more
    with ledger.write() as connection:
        connection.execute(insert(prices), [{**fields, **changes}])


def calibrated(ledger, gpu_type, prefill, cached, decode, valid_from=0):
    with ledger.write() as connection:
        connection.execute(
            insert(calibrations),
            [
                {
                    "gpu_type": gpu_type, "base_model": "base", "engine_version": "0", "valid_from": valid_from,
                    "recorded_at": 0, "prefill_ps": prefill, "cached_ps": cached, "decode_ps": decode,
                    "kv_ps": 0, "load_ps": 0, "document": "{}",
                }
            ],
        )  # fmt: skip


@pytest.fixture
def october(ledger):
    """Ten hours of A100, half of them busy; 1,000 prompt tokens, 200 of them cached, 300 completions."""
    write(
        ledger,
        row(FIRST, gpu_type="A100", nano_gpu_hours=4 * 10**9, prompt_tokens=1000, cached_tokens=200,
            completion_tokens=300),
        row(FIRST + 1, gpu_type="A100", bucket="retry_waste", nano_gpu_hours=10**9, prompt_tokens=0,
            completion_tokens=0),
        row(FIRST + 1, gpu_type="a100", bucket="idle", nano_gpu_hours=5 * 10**9),
        row(FIRST, gpu_type="", engine="", bucket="rejected", nano_gpu_hours=0, prompt_tokens=0,
            completion_tokens=0),
    )  # fmt: skip  # as they are declared
    price(ledger, "A100", 4)
    return ledger


def rows(found):
    return {(r["gpu_type"], r["purchase"]): r for r in found["rows"]}


def test_golden(october):
    """At the month's last rates, or today's where it had none."""
    fast = {"speedup_millis": 2500, "speedup_reference": "A100", "speedup_source": "a blog"}
    price(october, "H100", 5, valid_from=NOW, **fast)
    price(october, "A100", 6, valid_from=month_of("2026-11").start)
    price(october, "L40", 1, speedup_millis=500, speedup_reference="A100")
    price(october, "L40", 9, valid_from=NOW + 1, **fast)
    price(october, "L40", 0.1, purchase="spot")
    found = compare_month(october, "2026-10", now=NOW)
    assert (found["reference"], found["currency"], found["actual"]["cost"]) == ("A100", "USD", "40.00")
    assert found["actual"]["used"] == [
        {
            "gpu_type": "A100", "provisioned_gpu_hours": "10.00", "busy_gpu_hours": "5.00",
            "utilization": "0.50",
        }
    ]  # fmt: skip
    assert found["work"] == {
        "busy_reference_hours": "5.00", "provisioned_reference_hours": "10.00", "utilization": "0.50",
        "uncached_tokens": 800, "cached_tokens": 200, "output_tokens": 300,
    }  # fmt: skip
    assert [(r["gpu_type"], r["gpus"], r["gpus_cost"]) for r in found["rows"]] == [
        ("L40", 1, "74.40"), ("L40", 1, "744.00"), ("A100", 1, "2976.00"), ("H100", 1, "3720.00"),
    ]  # fmt: skip
    assert found["hours"] == "744.00"
    assert [r["cheapest"] for r in found["rows"]] == [True, False, False, False]
    h100 = rows(found)["H100", "on_demand"]
    assert (h100["speedup"], h100["speedup_is"], h100["speedup_source"]) == ("2.50", "stated", "a blog")
    assert (h100["effective_rate"], h100["busy_cost"], h100["loaded_cost"]) == ("2.00", "10.00", "20.00")
    spot = rows(found)["L40", "spot"]
    assert (spot["discount"], spot["loaded_gpu_hours"], spot["loaded_cost"]) == ("0.90", "20.00", "2.00")
    alone = compare_month(october, "2026-10", gpu_types=["h100"], reference="h100", now=NOW)
    assert [(r["gpu_type"], r["loaded_cost"]) for r in alone["rows"]] == [("H100", "20.00")]
    assert alone["work"]["provisioned_reference_hours"] == "4.00"


def test_measured_speeds_and_the_latest_weights_win(october):
    price(october, "H100", 5, speedup_millis=9000, speedup_reference="A100")
    calibrated(october, "A100", 100, 10, 1000)
    calibrated(october, "H100", 1, 1, 1)
    calibrated(october, "H100", 50, 10, 250, valid_from=HOUR)
    h100 = rows(compare_month(october, "2026-10", now=NOW))["H100", "on_demand"]
    assert h100["speedup_is"] == "measured"
    assert h100["speedup"] == "3.264957265"  # 382,000 / 117,000


def test_what_cannot_be_compared(october):
    for of, gpu_types, reference, param in (
        ("2026-09", (), None, "month"),
        ("2026-10", ("TPU",), None, "gpu_type"),
        ("2026-10", (), "TPU", "reference"),
    ):
        with pytest.raises(CompareError) as error:
            compare_month(october, of, gpu_types=gpu_types, reference=reference, now=NOW)
        again = pickle.loads(pickle.dumps(error.value))
        assert (again.param, str(again)) == (param, error.value.message)


def test_the_cheapest_is_at_least_one_gpu_that_is_always_on(october):
    """A fast GPU for a fraction of the month was recommended, although it cannot be had for a fraction."""
    price(october, "H100", 9, speedup_millis=3000, speedup_reference="A100")
    found = compare_month(october, "2026-10", now=NOW)["rows"]
    assert [(r["gpu_type"], r["effective_rate"]) for r in found] == [("A100", "4.00"), ("H100", "3.00")]
    assert found[0]["cheapest"]


def test_without_a_price_the_actual_cost_is_unknown(october):
    write(october, row(FIRST, gpu_type="TPU", nano_gpu_hours=1))
    found = compare_month(october, "2026-10", now=NOW)["actual"]
    assert (found["cost"], found["missing_prices"], found["left_out"]) == (None, ["TPU"], ["TPU"])
    assert found["priced_cost"] == "40.00"


def test_unknown_speeds_say_so(october):
    price(october, "B200", 1)
    b200 = rows(compare_month(october, "2026-10", now=NOW))["B200", "on_demand"]
    assert (b200["speedup"], b200["speedup_is"], b200["loaded_cost"]) == (None, "unknown", None)
