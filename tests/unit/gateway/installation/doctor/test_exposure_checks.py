"""What doctor says of who can reach what."""

from __future__ import annotations

import pytest

from adapters.model import Engine
from gateway.config import Settings
from gateway.installation.doctor.operations.exposure_checks import (
    answering_anybody,
    media_exposure,
    media_hosts,
    of_keys,
    of_ports,
)
from gateway.tenants.directory import Key, Role, Tenant, mint
from gateway.tenants.terms import RequestPolicy
from loadtests.mock_engine import MockEngine


def engine(name: str, url: str = "http://10.0.0.7:8000") -> Engine:
    return Engine(name, url, "base", "H100", slots=1, max_rank=8)


def key(role: Role, *, revoked: int | None = None) -> Key:
    made, _ = mint("", role, 1)
    return Key(made.id, "", role, made.digest, 1, revoked=revoked)


async def test_an_engine_that_answers_a_stranger_is_seen_and_one_that_does_not_is_not():
    async with MockEngine(base="base") as here:
        silent = engine("silent", "http://127.0.0.1:9")
        assert await answering_anybody([engine("here", here.url), silent], 2.0) == {"here"}


def test_open_ports_are_a_warning():
    [found] = of_ports([engine("a"), engine("b")], {"b"})
    assert (found.check, found.status, found.subject) == ("engine_ports", "warning", "b")


def test_closed_ports_are_well_and_engines_on_this_host_say_nothing():
    [found] = of_ports([engine("a")], set())
    assert found.status == "ok"
    assert list(of_ports([], set())) == []


@pytest.mark.parametrize(("bootstrap", "statuses"), [(6, ["warning", "ok"]), (24, ["ok"]), (0, ["ok"])])
def test_a_bootstrap_key_that_can_be_guessed_is_a_warning(bootstrap, statuses):
    found = list(of_keys([key(Role.OPERATOR), key(Role.TENANT), key(Role.METRICS, revoked=2)], bootstrap))
    assert [one.status for one in found] == statuses
    assert "1 operator" in found[-1].message
    assert "metrics" not in found[-1].message


def test_doctor_reports_from_where_engines_fetch_media():
    (only,) = media_exposure((), {"a": False})
    assert (only.check, only.status) == ("media_policy", "ok")
    (only,) = media_exposure({"cdn.example.com"}, {"a": True})
    assert only.status == "ok"
    (only,) = media_exposure({"cdn.example.com:8443"}, {"a": True, "b": False})
    assert (only.status, only.subject) == ("warning", "b")
    assert "--allowed-media-domains cdn.example.com." in only.remedy


def test_media_hosts_of_tenants_count():
    tenants = [
        Tenant("acme", base_access=False, created=1, policy=RequestPolicy(media_hosts=("b.com",))),
        Tenant("bolt", base_access=False, created=1),
    ]
    assert media_hosts(Settings(media_hosts="a.com"), tenants) == {"a.com", "b.com"}
