"""What doctor says of every disagreement: found purely, from data alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.drivers.driver import Listing
from adapters.model import Adapter, BaseModel, Drain, Engine, Guard, ServingStatus, SlotState, Trial, Version
from adapters.reconcile.artifact_gc import CollectionPlan
from adapters.reconcile.diagnosis import EngineObservation, FleetObservation
from adapters.reconcile.drift import of_engines
from adapters.reconcile.registry_checks import of_registry
from adapters.registry.catalog import Catalog

ENGINE = Engine("e1", "http://e1:8000", "base", "h100", slots=2, max_rank=8)
V1 = Version("acme/a", 1, "sha256:0", "fl-a1", "/x/a1", "base", 8, 1, "/src", 0)
V2 = replace(V1, number=2, engine_name="fl-a2")
S = SlotState
NOW = 1_000_000_000


def view(
    *, engine: Engine | None = ENGINE, look: EngineObservation | None = None, slots=None, loras=(), serving_statuses=None,
    adapter: Adapter | None = None, versions=(V1, V2), base: BaseModel | None = None, **more,
) -> FleetObservation:  # fmt: skip
    catalog = Catalog()
    catalog.engines = {engine.name: engine} if engine else {}
    catalog.versions = {v.id: v for v in versions}
    catalog.by_engine_name = {v.engine_name: v for v in versions}
    catalog.adapters = {"acme/a": adapter or Adapter("acme/a", live=1, latest=2)}
    catalog.bases = {"base": base or BaseModel("base", config={})}
    catalog.serving_statuses = serving_statuses or {}
    listing = Listing({"base": "/m"}, frozenset(loras), None)
    return FleetObservation(
        catalog, {"e1": look or EngineObservation(listing)}, {"e1": slots or {}}, NOW, **more
    )


def found(seen: FleetObservation) -> dict[str, tuple[str, str, str, str]]:
    """check → (status, subject, message, remedy), of all that is not well."""
    all_ = [*of_engines(seen), *of_registry(seen)]
    assert all(d.remedy for d in all_ if d.status != "ok"), "a finding without a remedy"
    assert all(d.message.endswith((".", "?")) for d in all_)
    bad = [d for d in all_ if d.status != "ok"]
    assert len({d.check for d in bad}) == len(bad)
    return {d.check: (d.status, d.subject, d.message, d.remedy) for d in bad}


def test_a_sound_installation_has_only_passes():
    seen = view(slots={"fl-a1": S.RESIDENT, "fl-a2": S.LOADING}, loras={"fl-a1"})
    assert found(seen) == {}
    assert [d.check for d in of_engines(seen)] == ["engine"]
    assert [d.check for d in of_registry(seen)] == ["version_files"]


def test_without_engines_nothing_is_amiss_where_requests_wait_for_one_to_start():
    assert found(view(engine=None, starts=True)) == {}


@pytest.mark.parametrize("fields", [{"version": "0.33.0"}, {"driver": "sglang", "version": "0.5.3"}])
def test_known_versions_and_engines_whose_versions_do_not_matter_are_well(fields):
    assert found(view(engine=replace(ENGINE, **fields))) == {}


def test_what_is_being_loaded_and_listed_already_is_well():
    assert found(view(slots={"fl-a1": S.LOADING}, loras={"fl-a1"})) == {}


def test_cached_versions_need_no_slot():
    slots = {"fl-a1": S.RESIDENT, "fl-a2": S.RESIDENT, "fl-a3": S.CACHED, "fl-a4": S.CACHED}
    seen = view(slots=slots, loras={"fl-a1", "fl-a2", "fl-a3"})
    assert found(seen) == {}
    assert "2 of 2 slots" in next(of_engines(seen)).message


def test_residency_that_differs():
    seen = found(
        view(
            slots={"fl-a1": S.RESIDENT, "fl-a2": S.LOST, "fl-x": S.LEAVING},
            loras={"fl-0123", "by-hand", "a-friend"},
        )
    )
    assert set(seen) == {
        "residency_missing", "residency_lost", "residency_stray", "residency_stranger", "residency_slots",
    }  # fmt: skip
    assert "acme/a@v1, fl-x" in seen["residency_missing"][2]
    assert "acme/a@v2" in seen["residency_lost"][2]
    assert "fl-0123 under a name that Florin uses," in seen["residency_stray"][2]
    assert "keeps the name" not in seen["residency_stray"][3]
    assert "a-friend, by-hand" in seen["residency_stranger"][2]
    assert "http://e1:8000/v1/unload_lora_adapter" in seen["residency_stranger"][3]
    assert {status for status, *_ in seen.values()} == {"warning"}


def test_a_name_that_its_engine_keeps():
    seen = found(view(engine=replace(ENGINE, unloads="refuses"), loras={"fl-0123"}))
    assert "If it stays, the engine no longer holds it" in seen["residency_stray"][3]


def test_of_an_engine_that_does_not_answer_nothing_else_is_said():
    seen = found(
        view(
            look=EngineObservation(error="e1 at http://e1 does not respond: refused"),
            slots={"fl-a1": S.RESIDENT},
        )
    )
    assert set(seen) == {"engine_reachable"}
    assert seen["engine_reachable"][0] == "problem"
    assert "refused" in seen["engine_reachable"][2]


@pytest.mark.parametrize(
    ("fields", "look", "check", "status", "word"),
    [
        ({"base_model": "other"}, None, "engine_base", "problem", "serves base"),
        ({}, EngineObservation(Listing({"base": "/m"}, frozenset(), None), takes_adapters=False), "engine_lora_routes",
         "problem", "cannot load"),
        ({"agent": "http://e1:9", "key": "k1"}, None, "engine_agent", "warning", "though the engine responds"),
        ({"state": "draining", "drain": Drain(1)}, None, "engine_state", "warning", "being loaded elsewhere"),
        ({"state": "draining"}, None, "engine_state", "warning", "neither new requests"),
        ({"state": "cordoned"}, None, "engine_state", "warning", "no new adapters"),
        ({"state": "draining", "drain": Drain(0, moved=True), "serves": V2.id, "merged_as": "base"}, None,
         "engine_state", "warning", "It rests, because acme/a@v2"),
        ({"state": "draining", "trial": Trial(5, Guard("rollback"), 1, "It failed.")}, None, "engine_state",
         "warning", "trial drained it. It failed."),
        ({"version": "0.34.1"}, None, "engine_version", "warning", "vLLM 0.34.1, and this version of Florin knows"),
        ({"stopping": True}, None, "engine_stopping", "warning", "no new process"),
    ],
)  # fmt: skip
def test_engines_that_are_not_as_they_should_be(fields, look, check, status, word):
    adapter = Adapter("acme/a", live=None, latest=2)
    seen = found(view(engine=replace(ENGINE, **fields), look=look, adapter=adapter))
    assert seen.pop("adapter_not_live")
    assert set(seen) == {check}
    assert seen[check][0] == status
    assert word in seen[check][2]


def test_an_agent_that_is_heard_is_well():
    listing = Listing({"base": "/m"}, frozenset(), None)
    heard = EngineObservation(listing, agent=True)
    assert found(view(engine=replace(ENGINE, agent="http://e1:9", key="k1"), look=heard)) == {}


def test_an_agent_with_an_operators_key_is_a_warning():
    listing = Listing({"base": "/m"}, frozenset(), None)
    seen = found(
        view(engine=replace(ENGINE, agent="http://e1:9"), look=EngineObservation(listing, agent=True))
    )
    assert set(seen) == {"host_key"}
    assert "florin engine token create --name e1" in seen["host_key"][3]


def test_an_engine_that_is_not_trusted_is_shown_with_the_evidence():
    serving_status = ServingStatus(
        "failed", "", "engine_suspect", "its base model no longer answers as before", "e1", 0, 1, 0,
        {"base_drift": 3.14159, "answers": [{}], "engine": "e1"},
    )  # fmt: skip
    seen = found(view(serving_statuses={"e1": serving_status}))
    assert set(seen) == {"engine_suspect"}
    assert "base_drift 3.14" in seen["engine_suspect"][2]


def test_verdicts_weigh_more_on_what_is_called():
    quarantined = ServingStatus(
        "quarantined", V1.id, "answers_like_base", "acme/a@v1 answers like the base", "e1", 0
    )
    failed = ServingStatus(
        "failed", V2.id, "load_failed", "rank too high.", "e1", 0, attempts=4, retry=NOW + 90_000_000
    )
    seen = found(view(serving_statuses={"fl-a1": quarantined, "fl-a2": failed}))
    assert set(seen) == {"version_quarantined", "version_failed"}
    status, subject, message, remedy = seen["version_quarantined"]
    assert (status, subject) == ("problem", "acme/a@v1")
    assert "answers like the base. (found on e1)" in message
    assert "florin adapter release acme/a v1" in remedy
    status, subject, message, _ = seen["version_failed"]
    assert (status, subject) == ("warning", "acme/a@v2")
    assert "4 loads have failed; the next try is in 90 s" in message


def test_files_that_are_missing():
    seen = found(view(missing_files={V1.id: "/x/a1 cannot be read here: No such file"}))
    assert seen["version_files"][:2] == ("problem", "acme/a@v1")


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        (replace(ENGINE, version="0.33.0", max_rank=4), "no engine of base takes more than 4"),
        (replace(ENGINE, version="0.32.1"), "it needs vLLM 0.33 or later"),
        (replace(ENGINE, serves=V2.id, max_rank=64), "no engine serves its base"),
        (None, "no engine serves its base"),
    ],
)
def test_an_adapter_that_no_engine_could_ever_hold(engine, word):
    seen = found(view(engine=engine, versions=(replace(V1, min_vllm="0.33"),)))
    assert seen.pop("engines", None) is None or engine is None
    assert seen["adapter_unservable"][:2] == ("problem", "acme/a@v1")
    assert word in seen["adapter_unservable"][2]


def test_a_base_model_without_config_matters_only_where_it_is_served():
    assert set(found(view(base=BaseModel("base")))) == {"base_config"}
    seen = view(base=BaseModel("base"), engine=None, versions=(), adapter=Adapter("acme/a", live=1))
    assert set(found(seen)) == {"engines"}


def test_graves_that_wait_for_a_dead_engine():
    pending_deletions = CollectionPlan(
        waiting={"fl-o": "e9 does not respond and may hold it", "fl-p": "its grace period has not passed"}
    )
    seen = found(view(pending_deletions=pending_deletions))
    assert "files of 1 removed" in seen["pending_deletions"][2]
    assert (
        found(view(pending_deletions=CollectionPlan(waiting={"fl-p": "its grace period has not passed"})))
        == {}
    )


def test_many_names_are_counted():
    seen = found(view(loras={f"hand-{n}" for n in range(9)}))
    assert "hand-4 and 4 more" in seen["residency_stranger"][2]
