"""Restarts that clients do not notice, and settings that need none: real processes, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from adapters.security.secret_files import write_private
from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import (
    FLORIN,
    KEY,
    PATIENCE,
    Served,
    add_engine,
    customer,
    environment,
    first_line,
    serving,
    workers,
)
from tests.support.engine_hosts import free_port
from tests.support.forms import some_of
from tests.support.waiting import PATIENCE_S, until_now

POLL_SECONDS = 0.1
CALL_PAUSE = 0.1
"""Seconds. The restarts take twenty, most of which the lame duck waits: six callers without a pause would use a
processor for as long."""


@pytest.fixture
def engine(model):
    with MockProcess(root=str(model)) as running:
        yield running


@dataclass
class Balancer:
    """Sends each connection to a backend whose /readyz said 200 when it last asked, in turn. Retries nothing."""

    backends: list[str]
    ready: set[str] = field(default_factory=set)
    turn: int = 0
    used: set[str] = field(default_factory=set)

    async def follow(self) -> None:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            while True:
                for backend in self.backends:
                    try:
                        answer = await client.get(f"{backend}/readyz", headers={"connection": "close"})
                        ready = answer.status_code == 200
                    except httpx2.HTTPError:
                        ready = False
                    (self.ready.add if ready else self.ready.discard)(backend)
                await asyncio.sleep(POLL_SECONDS)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = [b for b in self.backends if b in self.ready]
        self.turn += 1
        with contextlib.suppress(OSError, IndexError):
            backend = ready[self.turn % len(ready)] if ready else self.backends[0]
            there, back = await asyncio.open_connection("127.0.0.1", urlsplit(backend).port)
            self.used.add(backend)
            await asyncio.gather(_pipe(reader, back), _pipe(there, writer))
        writer.close()


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


@contextlib.asynccontextmanager
async def balanced(*backends: str) -> AsyncIterator[tuple[str, Balancer]]:
    balancer = Balancer(list(backends))
    following = asyncio.create_task(balancer.follow())
    server = await asyncio.start_server(balancer.carry, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", balancer
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        server.close()


async def call(client: httpx2.AsyncClient, *, stream: bool) -> str:
    """Empty, or what went wrong."""
    body = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    try:
        answer = await client.post("/v1/chat/completions", json=body)
    except httpx2.HTTPError as error:
        return repr(error)
    whole = (
        "[DONE]" in answer.text and "error" not in answer.text if stream else bool(answer.json().get("id"))
    )
    return "" if answer.status_code == 200 and whole else f"{answer.status_code} {answer.text[-300:]}"


async def test_a_rolling_restart_behind_a_balancer_that_does_not_retry_loses_nothing(
    tmp_path, engine, valkey_url, prefix
):
    env = {
        "FLORIN_REDIS_URL": valkey_url, "FLORIN_REDIS_PREFIX": prefix, "FLORIN_ARTIFACT_DIR": str(tmp_path / "files"),
        "FLORIN_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}",
        "FLORIN_LAME_DUCK": "6",  # balancer and callers share a process, which may be slow to look
    }  # fmt: skip
    ports, crews = [str(free_port()), str(free_port())], ["1", "2"]
    engine.faults(event_delay=0.01)

    def start(stack: contextlib.ExitStack, n: int) -> Served:
        settings = env | {"FLORIN_PORT": ports[n], "FLORIN_WORKERS": crews[n]}
        return stack.enter_context(serving(tmp_path / f"state{n}", **settings))

    with contextlib.ExitStack() as stack:
        gateways = [start(stack, n) for n in (0, 1)]
        await asyncio.to_thread(add_engine, gateways[0], engine)
        key = await asyncio.to_thread(customer, gateways[0], tmp_path)
        troubles: list[str] = []
        counts, over = [0] * 6, False
        async with balanced(*(g.url for g in gateways)) as (url, balancer):

            async def caller(n: int) -> None:
                headers = {"authorization": f"Bearer {key}"}
                async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
                    while not over:
                        trouble = await call(client, stream=n % 2 == 0)
                        counts[n] += 1
                        if trouble:
                            troubles.append(trouble)
                        await asyncio.sleep(CALL_PAUSE)

            async with asyncio.timeout(PATIENCE):
                while len(balancer.ready) < 2:
                    await asyncio.sleep(0.02)
            callers = [asyncio.create_task(caller(n)) for n in range(6)]
            for n in (0, 1):
                before = sum(counts)
                assert await asyncio.to_thread(gateways[n].stop) == 0
                gateways[n] = await asyncio.to_thread(start, stack, n)
                async with asyncio.timeout(PATIENCE):
                    while len(balancer.ready) < 2 or sum(counts) < before + 30:
                        await asyncio.sleep(0.02)
            over = True
            await asyncio.gather(*callers)
        assert troubles == []
        assert min(counts) > 5
        assert len(balancer.used) == 2


def test_stopping_gateway_is_not_ready_but_serves_until_traffic_ends(tmp_path):
    with (
        serving(tmp_path / "state", FLORIN_LAME_DUCK="600") as gateway,
        httpx2.Client(base_url=gateway.url) as kept,
    ):
        first = kept.get("/readyz")
        assert (first.status_code, "connection" in first.headers) == (200, False)
        gateway.process.send_signal(signal.SIGTERM)
        until_now(lambda: httpx2.get(f"{gateway.url}/readyz").status_code == 503)
        answer = kept.get("/readyz")  # on the connection of before
        assert "stopping" in answer.json()["conditions"]
        assert answer.headers["connection"] == "close"
        assert httpx2.get(f"{gateway.url}/admin/v1/tenants", headers=AS_OPERATOR).status_code == 200
        assert gateway.process.poll() is None
        assert gateway.stop() == 0  # a second signal does not wait for balancers


AS_OPERATOR = {"authorization": f"Bearer {KEY}"}


def test_no_lame_duck_without_a_load_balancer_or_after_ctrl_c(tmp_path):
    with serving(tmp_path / "state", FLORIN_LAME_DUCK="600") as gateway:
        assert gateway.stop() == 0
    with serving(tmp_path / "state", FLORIN_LAME_DUCK="600", FLORIN_WORKERS="2") as gateway:
        assert httpx2.get(f"{gateway.url}/readyz").status_code == 200
        assert gateway.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("count", some_of(["1", "2"], "1"))
def test_a_closed_terminal_stops_the_gateway(tmp_path, count):
    ours, theirs = pty.openpty()
    env = environment(FLORIN_STATE_DIR=str(tmp_path / "state"), FLORIN_PORT="0", FLORIN_WORKERS=count)
    with subprocess.Popen(
        [FLORIN, "serve"], env=env, cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    ) as gateway:  # fmt: skip
        os.close(theirs)
        assert "listens on" in first_line(gateway)
        os.close(ours)
        assert gateway.wait(PATIENCE) == 0


@pytest.mark.parametrize("count", some_of(["1", "2"], "2"))
def test_sighup_reloads_settings_in_every_worker_unless_the_file_is_invalid(tmp_path, count):
    file = tmp_path / "florin.yaml"
    file.write_text("max_body_bytes: 100000\n")
    secret = tmp_path / "secret"
    write_private(secret, "a" * 32)
    env = {"FLORIN_WORKERS": count, "FLORIN_CACHE_SECRET_FILE": str(secret)}
    connections = 8 if count == "2" else 1
    with serving(tmp_path / "state", **env) as gateway:
        admin = f"{gateway.url}/admin/v1"
        httpx2.post(f"{admin}/tenants", headers=AS_OPERATOR, json={"name": "acme"}).raise_for_status()
        key = httpx2.post(f"{admin}/keys", headers=AS_OPERATOR, json={"tenant": "acme"}).json()["key"]

        def answers(path: str, **request: Any) -> list[httpx2.Response]:
            """Of eight connections, if there are two workers: nearly certain to be of both."""
            method = "POST" if request else "GET"
            return [httpx2.request(method, gateway.url + path, **request) for _ in range(connections)]

        def codes() -> set[str]:
            headers, body = {"authorization": f"Bearer {key}"}, {"model": "x", "filler": "x" * 5000}
            said = answers("/v1/chat/completions", headers=headers, json=body)
            return {a.json()["error"]["code"] for a in said}

        def conditions() -> set[str]:
            return {c for a in answers("/readyz") for c in a.json()["conditions"]}

        until_now(lambda: "body_too_large" not in codes() and "invalid_api_key" not in codes())
        file.write_text("max_body_bytes: 1000\ntenant_reports: 9\n")
        gateway.process.send_signal(signal.SIGHUP)
        until_now(lambda: codes() == {"body_too_large"})
        until_now(lambda: "FLORIN_MAX_BODY_BYTES changed from 100000 to 1000" in gateway.errors.read_text())
        until_now(lambda: "need a restart: FLORIN_TENANT_REPORTS" in gateway.errors.read_text())
        file.write_text("max_body_bytes: 200000\nmax_n: many\n")
        gateway.process.send_signal(signal.SIGHUP)
        until_now(
            lambda: (
                [a.json()["conditions"] for a in answers("/readyz")] == [["settings_refused"]] * connections
            )
        )
        assert codes() == {"body_too_large"}
        until_now(lambda: "Settings not reloaded: FLORIN_MAX_N" in gateway.errors.read_text())
        if count == "2":  # a worker that is started now has what the others have
            old = workers(psutil.Process(gateway.process.pid))
            for worker in old:
                worker.kill()
            psutil.wait_procs(old, PATIENCE)
            until_now(lambda: codes() == {"body_too_large"})
            assert "settings_refused" in conditions()
        file.write_text("max_body_bytes: 200000\n")
        gateway.process.send_signal(signal.SIGHUP)
        until_now(lambda: "body_too_large" not in codes() and "settings_refused" not in conditions())
        write_private(secret, "b" * 32)  # is noticed without a signal, by one process for all
        until_now(lambda: "FLORIN_CACHE_SECRET changed\n" in gateway.errors.read_text())
        secret.unlink()
        until_now(lambda: "settings_refused" in conditions())
        write_private(secret, "c" * 32)
        until_now(lambda: "settings_refused" not in conditions())
        until_now(lambda: gateway.errors.read_text().count("FLORIN_CACHE_SECRET changed\n") == 2)
        until_now(lambda: "Settings not reloaded: FLORIN_CACHE_SECRET_FILE:" in gateway.errors.read_text())
        log = gateway.errors.read_text()
        assert not any(letter * 32 in log for letter in "abc")
        assert gateway.stop() == 0
