"""The finance routes over a real meter, ledger and side process; who asks is given, not looked up."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from adapters.store.protocol.registry import Event
from gateway.api import finance
from gateway.api.admin import prices
from gateway.api.dependencies import get_state, require_finance, require_operator, require_staff
from gateway.api.exception_handlers import install
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.observability.metrics import Metrics
from gateway.operations.authorization import check_role
from gateway.runtime.clock import system_time
from gateway.tenants.directory import Directory, Key, Role, Tenant, dump
from tests.support.empty_ledgers import put_sqlite


@pytest.fixture
def ledger_file(tmp_path):
    """Where the ledger lies; a module may put one there."""
    return tmp_path / "ledger.db"


@pytest.fixture
def now():
    """The clock of the installation; a module may have one of its own."""
    return system_time


@pytest.fixture
async def installed(ledger_file, tmp_path, now):
    url = f"sqlite:///{ledger_file if ledger_file.exists() else put_sqlite(ledger_file)}"
    ledger = Ledger(url)
    meter = Meter(tmp_path / "usage", ledger, Metrics())
    await meter.start()
    ledger_process = LedgerProcess(url)
    directory = Directory()
    for seq, name in enumerate(("acme", "bolt", "corgi", "new"), 1):
        directory.apply(Event(seq, "tenant", name, dump(Tenant(name, base_access=True, created=0))))
    yield SimpleNamespace(
        ledger=ledger,
        meter=meter,
        ledger_process=ledger_process,
        clock=SimpleNamespace(now=now),
        catalog=SimpleNamespace(engines={}),
        directory=directory,
        settings=SimpleNamespace(redis_prefix="florin"),
    )
    await ledger_process.close()
    await meter.close()
    ledger.close()


@functools.cache
def app_for(role: Role, tenant: str) -> FastAPI:
    """One for all tests: FastAPI works each route out at the first request, for 0.1 s in all."""
    app = FastAPI()
    install(app)
    app.include_router(finance.router)
    app.include_router(prices.router)
    key = Key("id", tenant, role, "digest", 0)
    for who in (require_finance, require_operator):
        app.dependency_overrides[who] = lambda: key
    app.dependency_overrides[require_staff] = lambda: check_role(key, Role.FINANCE, Role.OPERATOR)
    return app


@pytest.fixture
def client_for(installed):
    def client(role=Role.FINANCE, tenant="", path=""):
        app = app_for(role, tenant)
        app.dependency_overrides[get_state] = lambda: installed
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://florin{path}")

    return client
