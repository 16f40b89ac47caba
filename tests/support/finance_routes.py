"""The finance routes over a real ledger; who asks is given, not looked up."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import httpx2
import pytest
from fastapi import FastAPI, Request

from adapters.store.protocol.registry import Event
from gateway.api import finance
from gateway.api.dependencies import get_state, require_finance, require_operator, require_staff
from gateway.api.exception_handlers import install
from gateway.costs.credit_limits import CreditLimits
from gateway.costs.export.spool import Spool
from gateway.costs.price_list import PriceList
from gateway.costs.prices import routes as prices
from gateway.operations.authorization import check_role
from gateway.runtime.clock import system_time
from gateway.tenants.directory import Directory, Key, Role, Tenant, dump
from tests.doubles.ledger_process import LedgerProcessHere


class MeterStub:
    """All that the routes need of a meter. Mutable: whether the worker's records are in the ledger."""

    flushed = True

    async def flush(self):
        return self.flushed


@pytest.fixture
def contents():
    """What fills the ledger, for modules that begin with a full one."""


@pytest.fixture
def now():
    """The clock of the installation; a module may have one of its own."""
    return system_time


@pytest.fixture
def installed(ledger_with, contents, now, tmp_path):
    ledger = ledger_with(contents)
    (tmp_path / "exports").mkdir()
    directory = Directory()
    for seq, name in enumerate(("acme", "bolt", "corgi", "new"), 1):
        directory.apply(Event(seq, "tenant", name, dump(Tenant(name, base_access=True, created=0))))
    return SimpleNamespace(
        ledger=ledger,
        meter=MeterStub(),
        ledger_process=LedgerProcessHere(ledger),
        clock=SimpleNamespace(now=now),
        prices=PriceList(ledger, now),
        credit_limits=CreditLimits(ledger, directory, now),
        catalog=SimpleNamespace(engines={}),
        directory=directory,
        settings=SimpleNamespace(issuer="Nordlicht", redis_prefix="florin", two_person_approval=False),
        spool=Spool(tmp_path / "exports", 10**9),
        gateways=SimpleNamespace(missing=""),
    )


@functools.cache
def whole_app() -> FastAPI:
    """One for all tests: FastAPI works each route out at the first request, for 0.1 s in all."""
    app = FastAPI()
    install(app)
    app.include_router(finance.router)
    app.include_router(prices.router)
    for who in (require_finance, require_operator):
        app.dependency_overrides[who] = _asks
    app.dependency_overrides[require_staff] = _asks_as_staff
    return app


def _asks(request: Request) -> Key:
    role, _, tenant = request.headers["x-asks"].partition(" ")
    return Key("id", tenant, Role(role), "digest", 0)


def _asks_as_staff(request: Request) -> Key:
    return check_role(_asks(request), Role.FINANCE, Role.OPERATOR)


@pytest.fixture
def client_for(installed):
    def client(role=Role.FINANCE, tenant="", path=""):
        app = whole_app()
        app.dependency_overrides[get_state] = lambda: installed
        asks = {"x-asks": f"{role.value} {tenant}"}
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url=f"http://florin{path}", headers=asks
        )

    return client


@pytest.fixture
def ask(client_for):
    """A function that asks one question below /finance/v1: GET, or POST (or PUT) of a body; as finance, or with the key
    of a tenant."""

    async def question(path, body=None, *, key="", put=False, **params):
        role = Role.TENANT if key else Role.FINANCE
        method = "GET" if body is None else "PUT" if put else "POST"
        async with client_for(role, key, "/finance/v1/") as client:
            return await client.request(method, path, json=body, params=params)

    return question
