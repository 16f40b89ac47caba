"""What `florin doctor` says of gateways, and of adapters that evict each other."""

from __future__ import annotations

import pytest

from adapters.placement.churn import Changes
from adapters.reconcile.diagnosis import Diagnosis
from gateway.installation.doctor.operations.doctor import MOST, bounded, of_churn, of_gateways
from gateway.runtime.gateways import Announcement, Death

MINUTE = 60_000_000
NOW = 10_000 * MINUTE


@pytest.mark.parametrize(
    ("minutes", "shown"), [(-1, "0 min"), (59, "59 min"), (60, "1 h"), (2_879, "47 h"), (2_880, "2 d")]
)
def test_a_gateway_is_named_with_its_build_and_age(minutes: int, shown: str):
    one = Announcement("gw", NOW, NOW - minutes * MINUTE, version="1.2", commit="abc", workers=2)
    [found] = of_gateways([one], NOW)
    assert (found.status, found.subject) == ("ok", "gw")
    assert found.message == f"Florin 1.2 (commit abc), 2 workers, up {shown}."


def test_workers_that_died_are_a_warning():
    deaths = (Death(NOW - 30 * MINUTE, -9), Death(NOW - 4 * MINUTE, 1))
    [_, found] = of_gateways([Announcement("gw", NOW, 0, deaths=deaths)], NOW)
    assert (found.check, found.status, found.subject) == ("worker_restarts", "warning", "gw")
    assert found.message.startswith("2 workers died within the last hour")
    assert found.message.endswith("the last 4 min ago (exit code 1).")


@pytest.mark.parametrize(
    ("changes", "status"),
    [(Changes(12, 3, 15), "ok"), (Changes(40, 40, 40), "ok"), (Changes(40, 40, 41), "warning")],
)
def test_adapters_that_evict_each_other_are_worth_a_warning(changes, status):
    diagnosis = of_churn(changes)
    assert (diagnosis.check, diagnosis.status) == ("placement_churn", status)
    assert bool(diagnosis.remedy) == (status == "warning")


def test_of_many_diagnoses_of_one_check_the_first_are_shown():
    missing = [
        Diagnosis("artifacts", "problem", f"acme/a@v{n}", "Files are missing.") for n in range(MOST + 7)
    ]
    other = Diagnosis("redis", "ok", "", "It answers.")
    *first, last, redis = bounded([*missing, other])
    assert [*first, redis] == [*missing[: MOST - 1], other]
    assert last.message == "Files are missing. 7 more of this kind are not shown."
