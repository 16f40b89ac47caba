"""florin adapter list, show, promote, rollback, retire, pin, unpin and remove."""

from __future__ import annotations

import json

import pytest

from gateway.fleet.adapters.schemas.adapters import Adapter, Canary, ReleasedVersion, VersionDetails
from tests.support.samples import sample

PATH = "/admin/v1/adapters/acme/support"
ADAPTER = sample(
    Adapter, adapter="acme/support", live="v1", versions=["v1", "v2"], pinned=False, min_replicas=0, max_replicas=None,
    placed=[
        {"engine": "a1", "state": "resident", "version": "v1"},
        {"engine": "a2", "state": "loading", "version": "v2"},
    ],
)  # fmt: skip
CANARY = {**ADAPTER, "canary": sample(Canary, version="v2", weight=10)}
VERSION = sample(
    VersionDetails, version="v1", state="live", digest="sha256:0123456789abcdef", rank=8, size_bytes=151_552,
    base_model="base", created=1_700_000_000_000_000, placed=ADAPTER["placed"][:1],
)  # fmt: skip
SHOWN = {**ADAPTER, "comparison": None}
RETIRED = {n: v for n, v in VERSION.items() if n != "evaluation"} | {
    "adapter": "acme/support",
    "version": "v2",
}
PROMOTED = ADAPTER | {"warnings": []}
RELEASE = "/admin/v1/adapters/acme/support/versions/v2/release"
LIVE_BODY = {"version": "v2"}
WARNING = {
    "code": "chat_template_differs", "message": "It was trained with another template.", "found": "x", "expected": "y",
    "remedy": "Train with the base's.", "severity": "warning",
}  # fmt: skip

CASES = [
    (("list", "--tenant", "acme"), "GET", "/admin/v1/adapters?tenant=acme", None, {"data": [CANARY]}, "v2, 10 %"),
    (
        ("list", "--problems", "--base", "b", "--engine", "a1", "--state", "canary"),
        "GET", "/admin/v1/adapters?base=b&engine=a1&state=canary&problems=true", None,
        {"data": [{**ADAPTER, "trouble": [{"version": "v2", "state": "failed", "reason": "out of memory"}]}]},
        "out of memory",
    ),
    (("list", "--problems"), "GET", "/admin/v1/adapters?problems=true", None, {"data": []}, "No adapter has a problem."),
    (
        ("show", "acme/support"), "GET", PATH, None,
        {**SHOWN, "cost_centre": "R&D", "version_details": [VERSION]}, "151,552",
    ),
    (
        ("promote", "acme/support", "2", "--no-wait"),
        "PUT", f"{PATH}/live", {**LIVE_BODY, "wait": False}, {**PROMOTED, "live": "v2"}, "acme/support now serves v2.",
    ),
    (
        (
            *("promote", "acme/support", "v2", "--weight", "10", "--guard", "rollback", "--window", "10m"),
            *("--max-error-rate", "0.02", "--then", "50", "--then", "100", "--force"),
        ),
        "PUT", f"{PATH}/live",
        {
            **LIVE_BODY, "weight": 10, "force": True,
            "guard": {
                "action": "rollback", "max_error_rate": 0.02, "window_seconds": 600, "then": [50, 100],
            },
        },
        CANARY | {"warnings": []}, "acme/support now serves v2 for 10 % of calls, and v1 for the other 90 %.",
    ),
    (
        ("promote", "acme/support", "v2", "--weight", "10", "--guard", "none"),
        "PUT", f"{PATH}/live", {**LIVE_BODY, "weight": 10, "guard": None}, CANARY | {"warnings": []}, "now serves v2",
    ),
    (("rollback", "acme/support"), "POST", f"{PATH}/rollback", None, ADAPTER, "acme/support now serves v1."),
    (
        ("retire", "acme/support", "2"),
        "POST", f"{PATH}/versions/v2/retire", None, RETIRED, "acme/support@v2 is retired.",
    ),
    (("pin", "acme/support"), "PUT", f"{PATH}/pin", {"pinned": True}, {**ADAPTER, "pinned": True}, "is pinned"),
    (("unpin", "acme/support"), "PUT", f"{PATH}/pin", {"pinned": False}, ADAPTER, "is not pinned"),
    (
        ("scale", "acme/support", "--min", "2", "--max", "4"),
        "PUT", f"{PATH}/replicas", {"min_replicas": 2, "max_replicas": 4},
        {**ADAPTER, "min_replicas": 2, "max_replicas": 4, "warnings": []}, "Replicas of acme/support: 2 to 4.",
    ),
    (
        ("scale", "acme/support", "--no-max"),
        "PUT", f"{PATH}/replicas", {"max_replicas": None}, {**ADAPTER, "warnings": []}, "Replicas of acme/support: at least 0",
    ),
    (
        ("update", "acme/support", "--cost-centre", "none"),
        "PUT", f"{PATH}/cost-centre", {"cost_centre": None}, ADAPTER, "acme/support has no cost centre.",
    ),
    (
        ("remove", "acme/support", "--yes"),
        "DELETE", PATH, None, {"adapter": "acme/support", "removed": True}, "acme/support removed.",
    ),
    (
        ("remove", "acme/support", "-y"),
        "DELETE", PATH, None, {"adapter": "acme/support", "removed": False}, "nothing to do",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[0]))
def test_a_command_asks_prints_and_ends_well(fake, case):
    args, method, path, sent, body, shown = case
    fake.answer(method, path, body)
    people = fake.florin("adapter", *args)
    assert (people.exit_code, fake.asked) == (0, [(method, path, sent)]), people.stderr
    assert shown in people.stdout
    script = fake.florin("adapter", *args, "--json")
    assert script.exit_code == 0
    assert json.loads(script.stdout) == body


def test_a_table_of_versions_says_what_each_is_and_why(fake):
    evidence = {
        "distance_to_base": 0.001, "first": {"engine": "a2"}, "base_drift": None,
        "answers": [{"prompt": "Hi", "here": "I am"}, {"prompt": "Ho", "here": "You are", "base": "We"}],
    }  # fmt: skip
    quarantined = {
        "version": "v2",
        "state": "quarantined",
        "reason": "It answers like its base.",
        "placed": [],
    }
    quarantined |= {"evidence": evidence}
    versions = [
        VERSION | {"warnings": [WARNING]},
        VERSION | quarantined,
        VERSION | {"version": "v3", "state": "ready"},
        VERSION | {"version": "v4", "state": "retired"},
        VERSION | {"version": "v5", "state": "failed", "reason": "a1 said no."},
    ]
    details = {"comparison": None, "history": ["v3", "v5"], "version_details": versions}
    fake.answer("GET", PATH, CANARY | details)
    shown = fake.florin("adapter", "show", "acme/support").stdout
    rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith("v") and "sha256" in line}
    assert [" ".join(rows[v].split()[1:3]) for v in ("v1", "v3", "v4", "v5")] == [
        "live 8", "ready 8", "retired 8", "failed 8",
    ]  # fmt: skip
    assert "canary 10 %, quarantined" in rows["v2"]
    assert "sha256:0123456789ab " in rows["v1"]
    assert "a1" in rows["v1"]
    assert "v2 is quarantined: It answers like its base." in shown
    assert "v5 is failed: a1 said no." in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[lines.index("distance to base 0.001") :][:5] == [
        "distance to base 0.001", "first engine: a2", "prompt here base", "Hi I am -", "Ho You are We",
    ]  # fmt: skip
    assert "chat_template_differs (warning)" in shown
    assert "v3, v5" in shown


def test_a_switch_says_where_the_version_is_and_what_falls_short(fake):
    warning = "acme/support@v2 is resident on 1 of 2 engines: a2: cordoned"
    body = {**ADAPTER, "live": "v2", "resident": ["a1"], "warnings": [warning]}
    fake.answer("PUT", f"{PATH}/live", body)
    result = fake.florin("adapter", "promote", "acme/support", "v2")
    assert result.stdout == "acme/support now serves v2.\n"
    assert "Resident on a1" in result.stderr
    assert warning in result.stderr


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_a_person_is_asked_before_a_removal(fake, monkeypatch, answer, code):
    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    class Sys:
        stdin = stderr = Terminal

    monkeypatch.setattr("gateway.commands.session.sys", Sys)
    fake.answer("DELETE", PATH, {"adapter": "acme/support", "removed": True})
    result = fake.florin_says(answer, "adapter", "remove", "acme/support")
    assert "Remove acme/support and all of its versions?" in result.stderr
    assert (result.exit_code, len(fake.asked)) == (code, 1 - code)


@pytest.mark.parametrize("options", [("--max", "2", "--no-max"), ("--min", "-1")])
def test_bounds_of_replicas_that_make_no_sense_are_not_sent(fake, options):
    assert fake.florin("adapter", "scale", "acme/support", *options).exit_code == 2
    assert fake.asked == []


@pytest.mark.parametrize(
    "said",
    [("--then", "50"), ("--guard", "none", "--window", "10m"), ("--guard", "hold", "--window", "soon")],
)
def test_a_guard_that_is_not_clear_is_asked_of_nobody(fake, said):
    refused = fake.florin("adapter", "promote", "acme/support", "v2", "--weight", "10", *said)
    assert refused.exit_code != 0
    assert said[-2] in refused.stderr or "--guard rollback" in refused.stderr
    assert fake.asked == []


@pytest.mark.parametrize(
    ("name", "released", "said"),
    [("v2", True, "acme/support@v2 is released"), ("2", False, "acme/support@v2 was neither quarantined nor failed")],
)  # fmt: skip
def test_a_version_is_released(fake, name, released, said):
    body = sample(ReleasedVersion, adapter="acme/support", version="v2", released=released)
    fake.answer("POST", RELEASE, body)
    result = fake.florin("adapter", "release", "acme/support", name, "--yes")
    assert result.exit_code == 0
    assert said in result.stdout + result.stderr
    assert [asked[:2] for asked in fake.asked] == [("POST", RELEASE)]
