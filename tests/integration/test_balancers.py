"""deploy/balancers: two gateways behind a real balancer are restarted in turn, with TLS throughout."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import PATIENCE, Served, add_engine, customer, serving
from tests.integration.test_restarts import call
from tests.support.certificates import Authority
from tests.support.engine_hosts import free_port
from tests.support.missing import absent
from tests.support.waiting import until_now

CONFIGURATION = Path("deploy/balancers/haproxy.cfg")
CALLERS = 4


@pytest.fixture
def program() -> str:
    found = shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin")
    if found is None:
        absent("HAProxy is not installed: apt-get install haproxy")
    return found


def test_haproxy_finds_nothing_wrong(program, certificates):
    file = configured(certificates, ["https://127.0.0.1:1", "https://127.0.0.1:2"], free_port(), free_port())
    done = subprocess.run([program, "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.fixture
def certificates(tmp_path, monkeypatch) -> Path:
    """The directory of ca.pem, gateway.pem, gateway.key, and both in florin.pem. Commands trust the CA."""
    directory = tmp_path / "tls"
    authority = Authority.at(directory)
    issued = authority.issue("gateway")
    (directory / "florin.pem").write_bytes(issued.cert.read_bytes() + issued.key.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    return directory


def configured(certificates: Path, gateways: list[str], port: int, statistics: int) -> Path:
    """The configuration, with other addresses and files."""
    text = CONFIGURATION.read_text()
    first, second = (urlsplit(url).netloc for url in gateways)
    for old, new in {
        "bind :443": f"bind 127.0.0.1:{port}",
        "bind 127.0.0.1:8404": f"bind 127.0.0.1:{statistics}",
        "/etc/haproxy/florin.pem": str(certificates / "florin.pem"),
        "/etc/haproxy/florin-ca.pem": str(certificates / "ca.pem"),
        "gateway1:8080 verifyhost gateway1": f"{first} verifyhost localhost",
        "gateway2:8080 verifyhost gateway2": f"{second} verifyhost localhost",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    file = certificates / "haproxy.cfg"
    file.write_text(text)
    return file


@contextlib.asynccontextmanager
async def balanced(program: str, certificates: Path, gateways: list[str]) -> AsyncIterator[tuple[str, str]]:
    """The URLs of HAProxy and of its statistics."""
    port, statistics = free_port(), free_port()
    file = configured(certificates, gateways, port, statistics)
    process = await asyncio.create_subprocess_exec(
        program, "-db", "-f", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"https://127.0.0.1:{port}", f"http://127.0.0.1:{statistics}/;csv"
    finally:
        with contextlib.suppress(ProcessLookupError):  # it did not start
            process.terminate()
        await process.wait()


async def servers(statistics: str) -> dict[str, tuple[str, int]]:
    """Gateway → (UP, DOWN, …; the requests that it was sent)."""
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        try:
            text = (await client.get(statistics)).text
        except httpx2.TransportError:
            return {}
    rows = csv.DictReader(text.splitlines())
    return {r["svname"]: (r["status"], int(r["stot"])) for r in rows if r["svname"].startswith("gateway")}


async def both_up(statistics: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while [status for status, _ in (await servers(statistics)).values()] != ["UP", "UP"]:
            await asyncio.sleep(0.05)


async def test_a_rolling_restart_behind_haproxy_loses_and_repeats_nothing(
    tmp_path, model, valkey_url, prefix, program, certificates
):
    env = {
        "FLORIN_REDIS_URL": valkey_url,
        "FLORIN_REDIS_PREFIX": prefix,
        "FLORIN_ARTIFACT_DIR": str(tmp_path / "files"),
        "FLORIN_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}",
        "FLORIN_TLS_CERT": str(certificates / "gateway.pem"),
        "FLORIN_TLS_KEY": str(certificates / "gateway.key"),
    }
    ports = [str(free_port()), str(free_port())]

    def start(stack: contextlib.ExitStack, n: int) -> Served:
        return stack.enter_context(serving(tmp_path / f"state{n}", **env, FLORIN_PORT=ports[n]))

    troubles: list[str] = []
    counts, over = [0] * CALLERS, False
    with MockProcess(root=str(model)) as engine, contextlib.ExitStack() as stack:
        engine.faults(event_delay=0.01)
        gateways = [start(stack, n) for n in (0, 1)]
        await asyncio.to_thread(add_engine, gateways[0], engine)
        headers = {"authorization": f"Bearer {await asyncio.to_thread(customer, gateways[0], tmp_path)}"}
        trust = ssl.create_default_context(cafile=certificates / "ca.pem")
        async with balanced(program, certificates, [g.url for g in gateways]) as (url, statistics):

            async def caller(n: int) -> None:
                async with httpx2.AsyncClient(
                    base_url=url, headers=headers, timeout=30, verify=trust
                ) as client:
                    while not over:
                        trouble = await call(client, stream=n % 2 == 0)
                        counts[n] += 1
                        if trouble:
                            troubles.append(trouble)

            await both_up(statistics)
            callers = [asyncio.create_task(caller(n)) for n in range(CALLERS)]
            for n in (0, 1):
                before = sum(counts)
                assert await asyncio.to_thread(gateways[n].stop) == 0
                gateways[n] = await asyncio.to_thread(start, stack, n)
                await both_up(statistics)
                async with asyncio.timeout(PATIENCE):
                    while sum(counts) < before + 30 or min(counts) <= 5 * n:
                        await asyncio.sleep(0.02)
            over = True
            await asyncio.gather(*callers)
            sent = [requests for _, requests in (await servers(statistics)).values()]
        assert troubles == []
        assert min(counts) > 5
        assert min(sent) > 0
        assert sum(sent) == sum(counts)

        def metered() -> int:
            rows = gateways[1].call("GET", "/finance/v1/costs")["rows"]
            return sum(row["requests"] for row in rows if row["tenant"] == "acme")

        await asyncio.to_thread(until_now, lambda: metered() == sum(counts))
