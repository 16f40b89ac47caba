"""Workers that end as soon as they start, as clients and an operator see it."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import httpx2
import psutil

from tests.integration.test_cli import KEY, Served, scraped, serving, workers
from tests.support.alerting import fires, silent
from tests.support.waiting import PATIENCE_S, until_now


def new_ones(gateway: Served, *before: psutil.Process) -> list[psutil.Process]:
    """Both workers, as soon as neither is one of those before."""
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = [w for w in workers(psutil.Process(gateway.process.pid)) if w not in before]
        return len(found) == 2

    until_now(there)
    return found


def ask(gateway: Served) -> httpx2.Response | None:
    """None: nobody answered within a second."""
    with suppress(httpx2.TransportError):
        return httpx2.get(f"{gateway.url}/readyz", timeout=1, headers={"authorization": f"Bearer {KEY}"})
    return None


def test_while_no_worker_lives_requests_are_refused_and_the_operator_is_told(tmp_path: Path):
    with serving(tmp_path / "state", FLORIN_WORKERS="2") as gateway:
        before = scraped(gateway)
        ended: list[psutil.Process] = []
        for _ in range(2):  # four deaths, with pauses of half a second and a second
            for worker in (crew := new_ones(gateway, *ended)):
                worker.kill()
            ended += crew
        crew = new_ones(gateway, *ended)
        for worker in crew:
            worker.send_signal(signal.SIGSTOP)  # as if these did not come up
        try:
            until_now(lambda: (answer := ask(gateway)) and answer.status_code == 503)
            answer = httpx2.post(
                f"{gateway.url}/v1/chat/completions", content=bytes(20_000_000), timeout=PATIENCE_S
            )
            assert answer.json()["error"]["code"] == "no_worker", "one can read it although the body is long"
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        finally:
            for worker in crew:
                worker.send_signal(signal.SIGCONT)

        # It comes back by itself, and says what happened.
        def told() -> httpx2.Response | None:
            found = ask(gateway)
            return found if found and "workers_crash" in found.json().get("conditions", ()) else None

        answer = until_now(told)
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        shown = 'florin_condition{condition="workers_crash"} 1.0'  # gauges are set once a second
        during = until_now(lambda: text if shown in (text := scraped(gateway)) else "")
        assert "florin_worker_restarts_total 4.0" in during
        assert "Workers of this gateway keep crashing" in gateway.florin("doctor").stdout
    assert silent("FlorinWorkerCrashLoop", before, tmp_path)
    assert fires("FlorinWorkerCrashLoop", before, during, tmp_path)
