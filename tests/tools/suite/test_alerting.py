"""The judge of the incidents' alerts can say both yes and no."""

from pathlib import Path

import pytest

from tests.support.alerting import fires, silent

CALM = """
# TYPE florin_engine_up gauge
florin_engine_up{engine="a1",gpu_type="H200"} 1
# TYPE florin_errors_total counter
florin_errors_total{code="engine_failed"} 3
# TYPE florin_requests_total counter
florin_requests_total{adapter="acme/support",outcome="ok"} 1000
"""


pytestmark = pytest.mark.usefixtures("promtool")


def test_a_gauge_that_changed_fires_its_alert_and_no_other(tmp_path: Path):
    during = CALM.replace('"H200"} 1', '"H200"} 0')
    assert silent("FlorinEngineDown", CALM, tmp_path)
    assert fires("FlorinEngineDown", CALM, during, tmp_path)
    assert not fires("FlorinErrors", CALM, during, tmp_path)


def test_a_counter_goes_on_as_it_rose(tmp_path: Path):
    during = CALM.replace("} 3\n", "} 40\n").replace("} 1000", "} 1010")
    assert fires("FlorinErrors", CALM, during, tmp_path)
    assert not fires("FlorinErrors", CALM, CALM, tmp_path)
