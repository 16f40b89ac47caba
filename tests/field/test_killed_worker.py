"""A worker is killed, and an operator looks later.

Source: a day of operations
Sent: `kill -9` to one of two workers; `florin doctor` after the other has served on and a new one has come up
Right: for an hour, `doctor` warns of the worker that died, when and with which exit code, and `florin version
--gateways` counts it; `/readyz` is fine
Why: five seconds after the kill nothing was left of it but a counter in Prometheus
"""

from __future__ import annotations

import psutil

from tests.integration.test_cli import serving, workers
from tests.support.waiting import until_now


def test_a_killed_worker_is_remembered(tmp_path):
    with serving(tmp_path / "state", FLORIN_WORKERS="2") as gateway:
        killed, _ = workers(psutil.Process(gateway.process.pid))
        killed.kill()
        until_now(lambda: gateway.call("GET", "/admin/v1/gateways")["data"][0]["restarts"])
        checks = gateway.call("GET", "/admin/v1/doctor")["data"]
        (found,) = [check for check in checks if check["check"] == "worker_restarts"]
        assert found["status"] == "warning"
        assert found["message"] == (
            "1 worker died within the last hour and had to be replaced, the last 0 min ago (exit code -9, killed, "
            "often for lack of memory)."
        )
        assert "0 (" not in (shown := gateway.florin("version", "--gateways").stdout)
        assert "exit code -9" in " ".join(shown.split())
