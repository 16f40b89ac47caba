"""A pod enrols its engine with the token of its service account: real agents, real keys, a real issuer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adapters.security.secret_files import read_key, write_private
from gateway.tenants.directory import Role
from tests.support.engine_hosts import add_version, ask, registered
from tests.support.harness import Gateway, running_gateway
from tests.support.oidc_issuer import OidcIssuer, answering
from tests.support.waiting import until

SUBJECT, OTHER, CONTROLLER = (
    f"system:serviceaccount:serving:{name}" for name in ("florin-h100", "florin-l4", "florin-controller")
)


@pytest.fixture
def cluster() -> Iterator[OidcIssuer]:
    issuer = OidcIssuer(keys_secret="readers")
    with answering(issuer):
        yield issuer


@pytest.fixture
async def gateway(
    tmp_path: Path, valkey_url: str, prefix: str, cluster: OidcIssuer
) -> AsyncIterator[Gateway]:
    reader = tmp_path / "reader"
    reader.write_text("readers\n")
    subjects = {SUBJECT: {"gpu_type": "H100", "labels": {"pool": "chat"}}, OTHER: {"gpu_type": "L4"}}
    settings = {
        "host_issuer": cluster.url, "host_issuer_token_file": reader, "host_subjects": json.dumps(subjects),
    }  # fmt: skip
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as running:
        yield running


def pod_token(cluster: OidcIssuer, subject: str, pod: str = "h1") -> str:
    return cluster.token(sub=subject, aud=["florin"], **{"kubernetes.io": {"pod": {"name": pod}}})


async def test_a_pod_enrols_as_itself_again_at_each_start_and_as_nobody_else(gateway, run, cluster, tmp_path):
    await gateway.add_tenant("acme")
    token = tmp_path / "token"
    options = ("--token-file", str(token), "--label", "pool=chat")
    write_private(token, pod_token(cluster, SUBJECT))
    agent = await run(options=options)
    engine = await registered(gateway, agent)
    assert (engine.gpu_type, engine.labels) == ("H100", {"pool": "chat"})
    await add_version(gateway, "acme/support")
    assert (await ask(gateway)).choices[0].message.content
    kept = tmp_path / "xdg" / "florin" / "engines" / "h1" / "key"
    first = read_key(kept)
    assert await agent.stop() == 0

    write_private(token, pod_token(cluster, SUBJECT) + "\n")  # renewed: another signature
    again = await run(options=options)
    await registered(gateway, again)
    assert read_key(kept) != first

    body = {"engine": "h1", "secret": f"sha256:{'0' * 64}"}
    for bearer, status, code in (
        (pod_token(cluster, OTHER), 409, "conflict"),
        (pod_token(cluster, "system:serviceaccount:serving:default"), 403, "no_role"),
        (pod_token(cluster, SUBJECT, "h2"), 400, "invalid_value"),
    ):
        async with gateway.http(bearer) as http:
            answer = await http.post("/admin/v1/enrol", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            listing = await http.get("/admin/v1/engines")
        assert listing.status_code == 401, "it is good for enrolling only"
    async with gateway.http() as http:
        entries = (await http.get("/admin/v1/audit", params={"action": "token.use"})).json()["data"]
    assert {(entry["actor"], entry["subject"]) for entry in entries} == {(f"host:{SUBJECT}", "h1")}
    await until(lambda: gateway.state.catalog.engines["h1"].takes_requests)


async def test_the_controller_s_pod_applies_tenants_and_adapters_and_makes_no_key(
    tmp_path, valkey_url, prefix, cluster
):
    settings = {"host_issuer": cluster.url, "controller_subject": CONTROLLER}
    reader = tmp_path / "reader"
    reader.write_text("readers\n")
    key = {"k1": {"role": "operator", "secret": f"sha256:{'0' * 64}"}}
    async with running_gateway(
        tmp_path / "state", valkey_url, prefix, host_issuer_token_file=reader, **settings
    ) as gateway:
        async with gateway.http(pod_token(cluster, CONTROLLER, "florin-controller-x")) as http:
            for document, params, status in (
                ({"tenants": {"acme": {}}}, {}, 200),
                ({"keys": key}, {}, 403),
                ({"keys": key}, {"dry_run": True}, 403),
                ({"tenants": {}}, {"prune": True}, 403),
            ):
                answer = await http.post("/admin/v1/apply", json={"florin": 1} | document, params=params)
                assert answer.status_code == status, answer.text
            assert (await http.post("/admin/v1/keys", json={"role": "operator"})).status_code == 401
            cascade = await http.delete("/admin/v1/tenants/acme", params={"cascade": True})
            assert (cascade.status_code, cascade.json()["error"]["code"]) == (403, "insufficient_role")
            assert (await http.delete("/admin/v1/tenants/acme")).json()["removed"] is True
            assert (await http.post("/admin/v1/enrol", json={})).status_code == 403
        async with gateway.http(pod_token(cluster, SUBJECT)) as http:
            assert (await http.get("/admin/v1/tenants")).status_code == 401
        async with gateway.http() as http:
            entries = (await http.get("/admin/v1/audit", params={"action": "tenant.remove"})).json()["data"]
        assert [entry["actor"] for entry in entries] == [f"host:{CONTROLLER}"]


async def test_of_the_keys_of_a_host_that_enrols_often_only_the_last_two_are_kept(gateway, cluster):
    async with gateway.http(pod_token(cluster, SUBJECT)) as http:
        for number in range(4):
            body = {"engine": "h1", "secret": f"sha256:{number:064x}"}
            assert (await http.post("/admin/v1/enrol", json=body)).status_code == 201
    directory = gateway.state.directory
    await until(lambda: directory.knows(f"{3:064x}") and not directory.knows(f"{1:064x}"))
    keys = [key for key in directory.keys.values() if key.engine == "h1"]
    assert [key.revoked is None for key in sorted(keys, key=lambda key: key.created)] == [False, True]


async def test_a_host_does_not_take_over_an_engine_that_an_operator_registered(gateway, cluster):
    await gateway.add_engine("h1", "http://127.0.0.1:9")
    await gateway.add_key(Role.ENGINE, engine="h2", label=SUBJECT)
    async with gateway.http(pod_token(cluster, SUBJECT)) as http:
        refused = await http.post("/admin/v1/enrol", json={"engine": "h1", "secret": f"sha256:{'0' * 64}"})
    async with gateway.http(pod_token(cluster, SUBJECT, "h2")) as http:
        labelled = await http.post("/admin/v1/enrol", json={"engine": "h2", "secret": f"sha256:{'1' * 64}"})
    assert labelled.status_code == 201, "an operator says by the label whose the engine is"
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "florin engine remove h1" in refused.json()["error"]["message"]
