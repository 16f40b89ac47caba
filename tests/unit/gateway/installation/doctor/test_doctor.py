"""What `florin doctor` says of gateways."""

from __future__ import annotations

import pytest

from gateway.installation.doctor.operations.doctor import of_gateways
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
