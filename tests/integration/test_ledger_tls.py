"""The ledger on PostgreSQL by TLS, and what is said when the certificates are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from loadtests.postgres import Postgres
from tests.support.certificates import Authority
from tests.support.empty_ledgers import EmptyLedgers
from tests.support.tls_relay import TlsRelays
from tests.unit.gateway.metering.make import record


@pytest.fixture
def relays(tmp_path: Path) -> Iterator[TlsRelays]:
    with TlsRelays(Authority.at(tmp_path).issue("server")) as running:
        yield running


def said(url: str) -> str:
    """Why the ledger cannot be used; empty: it can."""
    ledger = Ledger(url)
    try:
        ledger.insert([record("a")])
    except LedgerUnavailableError as error:
        return str(error)
    finally:
        ledger.close()
    return ""


def test_the_server_is_verified(
    tmp_path: Path, relays: TlsRelays, postgres: Postgres, empty_ledgers: EmptyLedgers
):
    authority, another = Authority.at(tmp_path / "new"), Authority.at(tmp_path / "another")
    relays.present(authority.issue("server"))
    with empty_ledgers.lend() as url:
        there = url.replace(f":{postgres.port}/", f":{relays.open(postgres.port)}/")
        trusting = f"{there}?sslmode=verify-full&sslrootcert={authority.file}"
        assert said(trusting) == ""
        assert (relays.encrypted > 0, relays.plain) == (True, 0)
        assert "certificate verify failed" in said(trusting.replace(str(authority.file), str(another.file)))
        assert "does not exist" in said(trusting.replace(str(authority.file), str(tmp_path / "none")))
        plain = trusting.replace(there, url)
        assert "server does not support SSL, but SSL was required" in said(plain)
        relays.present(authority.issue("expired", days=-1))
        assert "certificate verify failed" in said(trusting)
        relays.present(authority.issue("elsewhere", "elsewhere.example"))
        assert 'does not match host name "127.0.0.1"' in said(trusting)
