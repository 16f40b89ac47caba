"""The whole registry as one file, and back: over real sockets and a real Valkey, with mock engines."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import httpx2
import pytest

from adapters.errors import StoreUnavailableError
from gateway.declarative.commands import fleet_file
from tests.support.harness import Gateway, running_gateway
from tests.support.lora import LLAMA, lora_config, write_adapter


@pytest.fixture
def make_adapter(tmp_path):
    """A function that writes a sound adapter of some content, and returns its directory."""

    def make(fill: int, name: str = "") -> str:
        config = lora_config(base_model_name_or_path="base")
        return str(write_adapter(tmp_path / (name or f"files-{fill}"), config=config, fill=fill))

    return make


@pytest.fixture
async def admin(gateway):
    async with client_of(gateway) as client:
        yield client


def client_of(gateway: Gateway) -> httpx2.AsyncClient:
    client = gateway.http()
    client.base_url = httpx2.URL(f"{gateway.url}/admin/v1/")
    return client


def engine_at(url: str, **fields):
    return {"url": url, "base": "base", "gpu_type": "H200", "slots": 2, "max_rank": 8} | fields


async def applied(admin: httpx2.AsyncClient, document: dict, **params) -> dict:
    answer = await admin.post("apply", json={"florin": 1} | document, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def outcomes(result: dict) -> dict[str, str]:
    return {f"{a['kind']} {a['id']}": a["outcome"] for a in result["actions"]}


async def exported(admin: httpx2.AsyncClient) -> str:
    return fleet_file.write((await admin.get("export")).json())


@pytest.fixture
async def fleet(gateway, admin, engine, make_adapter):
    """What a young installation has, made as operators make it; and the file that says so."""
    for name, base_access in (("acme", True), ("bolt", False)):
        await admin.post("tenants", json={"name": name, "base_access": base_access})
        key = await admin.post("keys", json={"tenant": name})
        gateway.keys[name] = key.json()["key"]
    await admin.post("keys", json={"role": "finance"})
    revoked = (await admin.post("keys", json={"tenant": "bolt"})).json()["id"]
    await admin.delete(f"keys/{revoked}")
    await admin.post("engines", json={"name": "a1", **engine_at(engine.url, slots=3)})
    for fill in (1, 2, 3):
        answer = await admin.post("adapters", json={"adapter": "acme/support", "source": make_adapter(fill)})
        assert answer.status_code == 201, answer.text
    await admin.put("adapters/acme/support/live", json={"version": "v2"})
    await admin.put("adapters/acme/support/live", json={"version": "v3", "weight": 10})
    await admin.put("adapters/acme/support/pin", json={"pinned": True})
    await admin.put("adapters/acme/support/cost-centre", json={"cost_centre": "customer care"})
    await admin.post("adapters", json={"adapter": "bolt/old", "source": make_adapter(4)})
    await admin.delete("adapters/bolt/old")
    await admin.post("prices", json={"gpu_type": "H200", "rate_per_gpu_hour": "2.50"})
    card = {"name": "standard", "input_per_million": "9", "output_per_million": "24"}
    assert (await admin.post(f"{gateway.url}/finance/v1/rate-cards", json=card)).status_code == 201
    assigned = await admin.post(
        f"{gateway.url}/finance/v1/rate-cards/assignments", json={"tenant": "acme", "card": "standard"}
    )
    assert assigned.status_code == 201, assigned.text
    return await exported(admin)


async def test_an_export_restores_an_empty_redis(tmp_path, valkey_url, fresh_prefix, gateway, admin, fleet):
    state = gateway.state.settings
    for source in tmp_path.glob("files-*"):
        shutil.rmtree(source)  # what the artifact store has is not fetched
    async with (
        running_gateway(
            tmp_path / "second", valkey_url, fresh_prefix(), artifact_dir=state.artifacts
        ) as second,
        client_of(second) as other,
    ):
        result = await applied(other, fleet_file.load(fleet))
        assert (result["failed"], result["counts"]["unchanged"]) == (0, 0), result
        assert await exported(other) == fleet
        again = await applied(other, fleet_file.load(fleet), prune=True)
        assert again["actions"] == []
        entries = (await other.get("audit")).json()["data"]
        assert {(e["action"], e["subject"]) for e in entries} == {
            ("base.add", "base"),
            ("engine.add", "a1"),
            ("tenant.add", "acme"),
            ("tenant.add", "bolt"),
            *(("key.create", key) for key in second.state.directory.keys),
            ("adapter.apply", "acme/support"),
            ("adapter.count", "bolt/old"),
            ("price.add", "H200"),
            ("rate_card.add", "standard"),
            ("rate_card.assign", "acme"),
        }
        assert {e["actor"] for e in entries} == {"bootstrap"}
        assert not any(k.digest in json.dumps(entries) for k in second.state.directory.keys.values())
        second.keys = gateway.keys
        for version in ("", "@v1", "@v2", "@v3"):
            chat = second.client("acme")
            said = await chat.chat.completions.with_raw_response.create(
                model=f"support{version}", messages=[{"role": "user", "content": "hi"}], user="u1"
            )
            shown = said.headers["x-florin-adapter"]
            assert (
                shown == f"acme/support{version}"
                if version
                else shown in {"acme/support@v2", "acme/support@v3"}
            )
            await chat.close()
        # numbers go on where they were, of what is there and of what is not
        assert second.state.catalog.tombstones["bolt/old"].latest == 1
        assert second.state.catalog.adapters["acme/support"] == gateway.state.catalog.adapters["acme/support"]


async def test_dry_run_shows_all_changes_and_makes_none(gateway, admin, fleet, make_adapter):
    document = fleet_file.load(fleet)
    document["tenants"]["corgi"] = {}
    document["tenants"]["bolt"]["base_access"] = True
    del document["keys"][next(i for i, k in document["keys"].items() if k.get("tenant") == "acme")]
    support = document["adapters"]["acme/support"]
    support["versions"].append({"version": "v4", "source": make_adapter(5)})
    support |= {"live": "v4", "canary": None}
    result = await applied(admin, document, dry_run=True, prune=True)
    assert [(a["action"], a["kind"], a["outcome"]) for a in result["actions"]] == [
        ("change", "tenant", "planned"),
        ("create", "tenant", "planned"),
        ("change", "adapter", "planned"),
        ("remove", "key", "planned"),
    ]
    fields = {f["field"]: (f["old"], f["new"]) for f in result["actions"][2]["fields"]}
    assert fields["live"] == ("v2", "v4")
    assert fields["canary"] == ("v3 at 10 %", None)
    assert fields["versions.v4"] == (None, support["versions"][-1]["source"])
    assert result["counts"] == {"create": 1, "change": 2, "remove": 1, "refuse": 0, "unchanged": 10}
    assert await exported(admin) == fleet
    # what was agreed to is done, and nothing else
    refused = await admin.post("apply", json=document, params={"plan": "0" * 64})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert await exported(admin) == fleet
    done = await admin.post("apply", json=document, params={"plan": result["plan"], "prune": True})
    assert done.json()["failed"] == 0, done.text


SHA = "sha256:" + "0" * 64


def versions(*listed: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"adapters": {"acme/x": {"versions": listed, **fields}}}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"florin": None}, "florin"),
    ({"florin": 2}, "florin"),
    ({"tenant": {}}, "tenant"),
    ({"tenants": {"Acme": {}}}, "tenants.Acme"),
    ({"tenants": {"acme": {"base_acess": True}}}, "tenants.acme.base_acess"),
    ({"tenants": {"acme": {"limits": {"queued": -1}}}}, "tenants.acme.limits.queued"),
    ({"keys": {"k1": {"tenant": "acme", "secret": "fl_in_the_clear"}}}, "keys.k1.secret"),
    ({"keys": {"k1": {"tenant": "a", "secret": SHA, "expires": "soon"}}}, "keys.k1"),
    ({"keys": {"k1": {"role": "finance", "secret": SHA, "priority": "low"}}}, "keys.k1"),
    ({"keys": {"k1": {"secret": SHA}}}, "keys.k1"),
    ({"keys": {"bootstrap": {"role": "operator", "secret": SHA}}}, "keys.bootstrap"),
    ({"keys": {"k1": {"tenant": "a", "secret": SHA, "revoked": "soon"}}}, "keys.k1"),
    ({"engines": {"a1": engine_at("ftp://x")}}, "engines.a1.url"),
    ({"engines": {"a1": engine_at("http://x", cpu_slots=1)}}, "engines.a1.cpu_slots"),
    ({"engines": {"a": engine_at("http://x"), "b": engine_at("http://x/")}}, "the document"),
    ({"adapters": {"acme": {"versions": []}}}, "adapters.acme"),
    (versions({"version": "v1", "source": "/a"}, {"version": "v2"}), "adapters.acme/x.versions[1].source"),
    (versions({"version": "v1", "source": "s3://u:p@b/x?sig=1"}), "adapters.acme/x.versions[0].source"),
    (versions({"version": "v1", "source": "/a"}, live="v2"), "adapters.acme/x"),
    ({"bases": {"base": {"chat_template": "x"}}}, "bases.base.chat_template"),
    ({"prices": [{"gpu_type": "H200"}]}, "prices[0].rate_per_gpu_hour"),
]


async def test_a_bad_file_is_refused_with_the_place(gateway, admin, subtests):
    await admin.post("tenants", json={"name": "acme"})
    seq = gateway.state.follower.seq
    for document, path in BAD:
        with subtests.test(path=path, **document):
            answer = await admin.post("apply", json={"florin": 1} | document)
            error = answer.json()["error"]
            refusal = (answer.status_code, error["code"], error["param"])
            assert refusal == (400, "invalid_value", path), answer.text
            assert error["findings"][0]["message"].startswith(f"{path}: ")
            assert "in_the_clear" not in answer.text
            assert ":p@" not in error["message"]
            assert gateway.state.follower.seq == seq


async def test_what_fails_stops_only_what_needs_it(gateway, admin, engine, make_adapter, tmp_path):
    document = {
        "tenants": {"acme": {}},
        "engines": {"a1": engine_at(engine.url)},
        "adapters": {
            "acme/good": {"versions": [{"version": "v1", "source": make_adapter(1)}]},
            "acme/late": {"versions": [{"version": "v1", "source": str(tmp_path / "late")}], "pinned": True},
            "corgi/lost": {"versions": [{"version": "v1", "source": make_adapter(2)}]},
        },
        "prices": [{"gpu_type": "H200", "rate_per_gpu_hour": "2.50"}],
    }
    first = await applied(admin, document)
    assert outcomes(first) == {
        "engine a1": "done",
        "tenant acme": "done",
        "adapter acme/good": "done",
        "adapter acme/late": "failed",
        "adapter corgi/lost": "failed",
        "price H200 on_demand from now": "done",
    }
    assert first["failed"] == 2
    late, lost = (a["error"] for a in first["actions"] if a["outcome"] == "failed")
    assert late["findings"][0]["code"] == "directory_missing"
    assert "corgi" in lost["message"]
    assert set(gateway.state.catalog.adapters) == {"acme/good"}
    make_adapter(3, "late")
    document["tenants"]["corgi"] = {}
    second = await applied(admin, document)
    assert outcomes(second) == {
        "tenant corgi": "done",
        "adapter acme/late": "done",
        "adapter corgi/lost": "done",
    }
    assert gateway.state.catalog.adapters["acme/late"].pinned
    assert len(gateway.state.catalog.pins) == 1
    assert (await applied(admin, document, prune=True))["actions"] == []


async def test_files_that_are_gone_are_fetched_again_if_they_are_the_same(
    fleet, tmp_path, valkey_url, fresh_prefix
):
    document = fleet_file.load(fleet)
    first, second, third = document["adapters"]["acme/support"]["versions"]
    write_adapter(tmp_path / "other", config=lora_config(base_model_name_or_path="base"), fill=9)
    second["source"] = str(tmp_path / "other")  # other files than the digest says
    third["source"] = "upload:v3.tar"
    cases = ((second, ["digest_mismatch"]), (third, []), (None, []))
    for number, (broken, code) in enumerate(cases):
        async with (
            running_gateway(tmp_path / f"state-{number}", valkey_url, fresh_prefix()) as other,
            client_of(other) as client,
        ):
            part = json.loads(json.dumps(document))
            if broken is not None:
                part["adapters"]["acme/support"]["versions"] = [first, broken]
                part["adapters"]["acme/support"] |= {"live": "v1", "canary": None, "history": []}
            else:
                part["adapters"]["acme/support"]["versions"] = [first]
                part["adapters"]["acme/support"] |= {"live": "v1", "canary": None}
            result = await applied(client, part)
            failed = [a for a in result["actions"] if a["outcome"] == "failed"]
            if broken is None:
                assert not failed, result
                assert other.state.catalog.versions["acme/support@v1"].digest == first["digest"]
                continue
            (action,) = failed
            assert action["id"] == "acme/support"
            assert [f["code"] for f in action["error"].get("findings", [])] == code
            if not code:  # and it says exactly which, and where they belong
                told = action["error"]["message"]
                assert "acme/support@v3 were uploaded" in told
                assert f"copy {third['digest'].removeprefix('sha256:')} from" in told
                assert str(tmp_path / f"state-{number}" / "artifacts") in told
            assert "acme/support" not in other.state.catalog.adapters  # whole or not at all


async def test_pruning_removes_what_the_file_leaves_out_of_its_sections(gateway, admin, engine, fleet):
    document = fleet_file.load(fleet)
    adapters = document["adapters"]
    adapters["acme/support"] |= {"canary": None, "versions": adapters["acme/support"]["versions"][:2]}
    acme = next(i for i, k in document["keys"].items() if k.get("tenant") == "acme")
    bolt = [i for i, k in document["keys"].items() if k.get("tenant") == "bolt"]
    for key in bolt:
        del document["keys"][key]
    del document["tenants"]["bolt"]
    kept = {s: document[s] for s in ("adapters", "keys", "tenants")}
    result = await applied(admin, kept, prune=True)
    assert result["failed"] == 0, result
    state = gateway.state
    assert state.catalog.versions["acme/support@v3"].retired
    assert set(state.directory.tenants) == {"acme"}
    assert set(state.directory.keys).isdisjoint(bolt)
    assert state.directory.keys[acme].revoked is None
    assert set(state.catalog.engines) == {"a1"}  # not this file's business
    assert (await applied(admin, kept, prune=True))["actions"] == []
    # the old file brings back what the new one took away, under the numbers it had
    back = await applied(admin, fleet_file.load(fleet), prune=True)
    assert back["failed"] == 0, back
    assert await exported(admin) == fleet
    gone = await applied(admin, {"adapters": {}, "engines": {}, "bases": {}}, prune=True)
    assert gone["failed"] == 0, gone
    assert state.catalog.adapters == state.catalog.engines == state.catalog.bases == {}
    assert (await applied(admin, fleet_file.load(fleet)))["failed"] == 0
    assert await exported(admin) == fleet


async def test_nothing_is_removed_where_something_failed(gateway, admin, fleet):
    document = fleet_file.load(fleet)
    support = document["adapters"]["acme/support"]
    support["versions"].append({"version": "v4", "source": "/not/there"})
    del document["tenants"]["bolt"]
    document["keys"] = {i: k for i, k in document["keys"].items() if k.get("tenant") != "bolt"}
    result = await applied(admin, document, prune=True)
    assert outcomes(result)["adapter acme/support"] == "failed"
    assert set(outcomes(result).values()) == {"failed", "skipped"}
    assert await exported(admin) == fleet


async def test_revoked_key_stays_revoked_and_apply_keeps_its_own_key(gateway, admin):
    made = (await admin.post("keys", json={"role": "operator"})).json()
    document = fleet_file.load(await exported(admin))
    async with gateway.http(made["key"]) as mine:
        answer = await mine.post("/admin/v1/apply", json={"florin": 1, "keys": {}}, params={"prune": True})
        assert answer.json()["failed"] == 1
        assert "lock you out" in answer.json()["actions"][0]["error"]["message"]
    await admin.delete(f"keys/{made['id']}")
    result = await applied(admin, document)
    assert result["failed"] == 1
    assert "stays so" in result["actions"][0]["error"]["message"]
    assert gateway.state.directory.keys[made["id"]].revoked


async def test_a_switch_that_no_engine_can_make_changes_nothing_for_callers(gateway, admin, engine, fleet):
    document = fleet_file.load(fleet)
    document["adapters"]["acme/support"] |= {"live": "v1", "canary": None}
    engine.faults.update({"load_status": 500})
    result = await applied(admin, document)
    assert outcomes(result) == {"adapter acme/support": "failed"}
    assert await exported(admin) == fleet
    engine.faults.update({"load_status": 0})


@pytest.fixture
async def second(tmp_path, gateway):
    """Another worker of the same installation."""
    ours = gateway.state.settings
    async with running_gateway(
        tmp_path / "second", ours.redis_url, ours.redis_prefix, artifact_dir=ours.artifacts
    ) as running:
        yield running


TERMS = """
florin: 1
tenants:
  acme:
    limits: {requests_per_minute: 600, queued: 0}
    budget: {money_per_month: 99.50}
    weight: 2
    quotas: {bytes: 10000000000}
    policy: {media_hosts: [], chat_templates: false}
    cache_group: group-1
    cost_centre: R&D
    suspended: true
keys:
  k1:
    tenant: acme
    role: tenant-admin
    secret: sha256:0000000000000000000000000000000000000000000000000000000000000001
    expires: 2027-06-30
    label: checkout
    scopes: {adapters: [support], read_only: true}
    limits: {concurrent: 2}
    priority: high
    cost_centre: sales
"""


async def test_terms_in_a_file_are_the_words_of_the_api(admin):
    document = fleet_file.load(TERMS)
    assert (await applied(admin, document))["failed"] == 0
    tenant, key = (await admin.get("tenants/acme")).json(), (await admin.get("keys/k1")).json()
    assert (tenant["limits"]["requests_per_minute"], tenant["limits"]["queued"]) == (600, 0)
    assert (tenant["budget"]["money_per_month"], tenant["weight"]) == ("99.5", 2.0)
    assert (tenant["policy"]["media_hosts"], tenant["policy"]["pass_fields"]) == ([], None)
    assert tenant["suspended"] > 0
    assert (key["label"], key["priority"], key["expires"]) == ("checkout", "high", 1_814_313_600_000_000)
    assert key["scopes"] == {"adapters": ["support"], "endpoints": [], "read_only": True}
    assert (tenant["cost_centre"], key["cost_centre"]) == ("R&D", "sales")
    again = await applied(admin, document)
    assert again["actions"] == []
    file = await exported(admin)
    for text in (
        "queued: 0",
        "money_per_month: '99.5'",
        "media_hosts: []",
        "suspended: true",
        "priority: high",
    ):
        assert text in file
    assert "pass_fields" not in file
    assert "warn_percent" not in file
    assert (await applied(admin, fleet_file.load(file)))["actions"] == []
    # what the file no longer says has its default; a suspension stays until the file, or an operator, ends it
    planned = await applied(admin, {"florin": 1, "tenants": {"acme": {"weight": 2}}}, dry_run=True)
    fields = {f["field"]: (f["old"], f["new"]) for f in planned["actions"][0]["fields"]}
    assert fields["limits.requests_per_minute"] == (600, None)
    assert not {"weight", "suspended"} & fields.keys()
    await applied(admin, {"florin": 1, "tenants": {"acme": {"suspended": False}}})
    assert (await admin.get("tenants/acme")).json()["suspended"] is None


async def test_a_file_from_before_a_rotation_does_not_lengthen_the_old_keys_life(admin):
    await admin.post("tenants", json={"name": "acme"})
    key = (await admin.post("keys", json={"tenant": "acme"})).json()
    before = fleet_file.load(await exported(admin))
    rotated = (await admin.post(f"keys/{key['id']}/rotate", json={"overlap": "1h"})).json()
    assert (await applied(admin, before))["actions"] == []
    kept = (await admin.get(f"keys/{key['id']}")).json()
    assert (kept["expires"], kept["replaced_by"]) == (rotated["replaced"]["expires"], rotated["id"])


async def test_concurrent_applies_both_succeed(gateway, second, admin, fleet, make_adapter):
    """On two workers: the same file twice, and two that differ in what they say of the same objects' parts."""
    async with client_of(second) as other:
        document = fleet_file.load(fleet)
        versions = document["adapters"]["acme/support"]["versions"]
        versions += [{"version": f"v{n}", "source": make_adapter(n + 10)} for n in (4, 5)]
        document["tenants"] |= {f"t{n}": {} for n in range(5)}
        document["adapters"] |= {
            f"t{n}/x": {"versions": [{"version": "v1", "source": make_adapter(n + 20)}]} for n in range(5)
        }
        results = await asyncio.gather(
            *(applied(client, document) for client in (admin, other, admin, other))
        )
        assert [r["failed"] for r in results] == [0] * 4
        for worker in (gateway, second):
            catalog = worker.state.catalog
            assert len(catalog.versions) == 10
            assert catalog.adapters["acme/support"].latest == 5
        assert (await applied(admin, document, prune=True))["actions"] == []

        mine = {
            "adapters": {"t0/x": {"versions": [*document["adapters"]["t0/x"]["versions"]], "pinned": True}}
        }
        theirs = {
            "adapters": {
                "t0/x": {"versions": [{"version": "v2", "source": make_adapter(30)}], "pinned": True}
            }
        }
        results = await asyncio.gather(applied(admin, mine), applied(other, theirs))
        assert [r["failed"] for r in results] == [0] * 2
        await admin.get("adapters")
        assert gateway.state.catalog.adapters["t0/x"].pinned
        assert {v for v in gateway.state.catalog.versions if v.startswith("t0/x")} == {"t0/x@v1", "t0/x@v2"}


async def test_progress_is_reported(admin, fleet):
    headers = {"accept": "application/x-ndjson"}
    document = fleet_file.load(fleet) | {"tenants": {f"t{n}": {} for n in range(30)}}
    answer = await admin.post("apply", json=document, headers=headers)
    *steps, last = [json.loads(line) for line in answer.text.splitlines()]
    assert last["result"]["failed"] == 0
    assert all(set(step) == {"step", "done", "total"} for step in steps)
    refused = await admin.post("apply", json={"florin": 1, "tenants": {"A": {}}}, headers=headers)
    assert refused.status_code == 400


async def test_engine_registration_is_verified_if_the_engine_answers(gateway, admin, engine):
    document = {
        "bases": {"base": {"config": LLAMA.config, "aliases": ["org/base"]}},
        "engines": {
            "down": engine_at("http://127.0.0.1:9", state="draining"),
            "good": engine_at(engine.url),
            "odd": engine_at(f"{engine.url}/odd", base="other"),
        },
    }
    result = await applied(admin, document)
    assert outcomes(result) == {
        "base base": "done",
        "engine down": "done",
        "engine good": "done",
        "engine odd": "failed",
    }
    state = gateway.state.catalog
    assert state.engines["down"].state == "draining"
    assert state.bases["base"].aliases == ("org/base",)  # not what the engine says of its model besides
    again = await applied(admin, document)
    assert outcomes(again) == {"engine odd": "failed"}


async def test_apply_stops_when_redis_fails_and_is_completed_later(gateway, admin):
    commit, seen = gateway.state.store.commit, []

    async def cut(changes, **more):
        seen.extend(c.id for c in changes)
        if "c" in seen:
            raise StoreUnavailableError("Redis is away.")
        return await commit(changes, **more)

    document = {"tenants": {name: {} for name in "abcde"}}
    gateway.state.store.commit = cut
    result = await applied(admin, document)
    gateway.state.store.commit = commit
    assert list(outcomes(result).values()) == ["done", "done", "failed", "skipped", "skipped"]
    assert {a["error"]["code"] for a in result["actions"][2:]} == {"store_unavailable"}
    assert seen.count("c") == 1
    assert list(outcomes(await applied(admin, document)).values()) == ["done"] * 3


async def test_a_file_vouches_for_shapes_and_is_restored_as_vouched_for(admin, engine, model, make_adapter):
    config = LLAMA.config | {"architectures": ["TomorrowForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    version = {"version": "v1", "source": make_adapter(1), "base_model": "base"}

    def document(**more) -> dict:
        return {
            "bases": {"base": {"config": config}},
            "engines": {"a1": engine_at(engine.url)},
            "tenants": {"acme": {}},
            "adapters": {"acme/support": {"versions": [version | more]}},
        }

    refused = await applied(admin, document())
    assert outcomes(refused)["adapter acme/support"] == "failed"
    made = await applied(admin, document(unverified_shapes=True))
    assert outcomes(made) == {"adapter acme/support": "done"}
    (kept,) = fleet_file.load(await exported(admin))["adapters"]["acme/support"]["versions"]
    assert kept["unverified_shapes"] is True
    entries = (await admin.get("audit", params={"action": "adapter.apply"})).json()["data"]
    assert entries[0]["details"]["unverified_shapes"] == ["v1"]
    shown = (await admin.get("adapters/acme/support")).json()["version_details"][0]
    assert (shown["unverified_shapes"], shown["warnings"][0]["code"]) == (True, "shapes_unverified")
    assert (await applied(admin, document(unverified_shapes=True)))["actions"] == []
    assert (await applied(admin, document()))["actions"] == []  # versions never change
