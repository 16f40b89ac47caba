"""Each command: what it asks the gateway, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from gateway.commands.tree import tree

from .conftest import KEY

TENANT = {"name": "acme", "base_access": False, "created": 1_700_000_000_000_000}
NEW_KEY = {"id": "k1", "key": "fl_k1_s3cret", "tenant": "acme", "role": "tenant", "engine": ""}
KEY_ROW = {
    "id": "k1", "tenant": "acme", "role": "tenant", "engine": "", "pins": {}, "created": 1, "expires": None,
    "revoked": None,
}  # fmt: skip
ENGINE = {
    "name": "a1",
    "url": "http://10.0.0.7:8000",
    "base": "base",
    "gpu_type": "H200",
    "gpu_count": 1,
    "region": "",
    "purchase": "on_demand",
    "registered": 1_800_000_000_000_000,
    "slots": 4,
    "cpu_slots": 8,
    "max_rank": 16,
    "state": "active",
    "health": "up",
    "running": 3,
    "waiting": 0,
    "resident": 2,
    "epoch": "",
    "agent": "",
    "stopping": False,
    "heartbeat": None,
}
HOSTED = {
    **ENGINE, "stopping": True, "epoch": "e1", "agent": "http://10.0.0.7:41000", "heartbeat": {"started": 1}
}  # fmt: skip
SLOT = {"version": "acme/support@v1", "state": "resident", "in_flight": 2, "idle_seconds": 61.0}
PLACEMENT = {"data": [{"engine": "a1", "gpu_type": "H200", "health": "up", "slots": 4, "placements": [SLOT]}]}
DECISION = {
    "action": "serve",
    "engine": "a1",
    "reason": "holds it; 0 in flight",
    "candidates": [
        {
            "engine": "a1",
            "health": "up",
            "eligible": True,
            "cost_ms": 12.0,
            "reason": "holds it; 0 in flight",
        },
        {"engine": "a2", "health": "down", "eligible": False, "cost_ms": None, "reason": "unhealthy"},
    ],
}
EXPLAINED = {"adapter": "acme/support", "version": "acme/support@v1", "decision": DECISION}
PRICE = {
    "gpu_type": "H200",
    "rate_per_gpu_hour": "2.50",
    "currency": "USD",
    "purchase": "on_demand",
    "region": "",
    "valid_from": "2026-07-01T00:00:00Z",
}
FIGURES = {
    "requests": 3,
    "prompt_tokens": 1200,
    "cached_tokens": 64,
    "completion_tokens": 90,
    "gpu_seconds": 1.5,
    "gpu_hours": "0.000416667",
}
NOTHING = {**dict.fromkeys(FIGURES, 0), "gpu_hours": "0.00", "cost": "0.00"}
COSTS = {
    "currency": "USD",
    "by": ["tenant", "adapter", "gpu_type"],
    "from": "2026-07-01T00:00:00Z",
    "to": "2026-08-01T00:00:00Z",
    "rows": [
        {"tenant": "acme", "adapter": "acme/support", "gpu_type": "H200", **FIGURES, "cost": "0.001042"}
    ],
    "totals": {**FIGURES, "cost": "0.001042"},
    "next": None,
    "retry_waste": {"rows": [], "totals": NOTHING},
    "corrections": {"rows": [], "totals": NOTHING},
    "missing_prices": [{"gpu_type": "L40", "region": "", "purchase": "on_demand"}],
}
ADDED = {"adapter": "acme/support", "version": "v2", "digest": "sha256:00", "live": "v1", "created": True}
NEW_ENGINE = (
    *("engine", "add", "--name", "a1", "--url", "http://10.0.0.7:8000", "--base", "base"),
    *("--gpu-type", "H200", "--slots", "4", "--max-rank", "16"),
)
NEW_ENGINE_BODY = {
    "name": "a1",
    "url": "http://10.0.0.7:8000",
    "base": "base",
    "gpu_type": "H200",
    "gpu_count": 1,
    "region": "",
    "purchase": "on_demand",
    "slots": 4,
    "cpu_slots": None,
    "max_rank": 16,
    "verify": True,
    "base_config": None,
    "base_aliases": [],
}
NEW_PRICE_BODY = {k: v for k, v in PRICE.items() if k != "valid_from"}
BY = "by=tenant%2Cadapter%2Cgpu_type"

CASES = [
    (("tenant", "add", "acme"), "POST", "/admin/v1/tenants", {"name": "acme", "base_access": None}, TENANT, "acme"),
    (
        ("tenant", "add", "acme", "--base-access"),
        "POST", "/admin/v1/tenants", {"name": "acme", "base_access": True}, TENANT, "2023-11-14 22:13:20Z",
    ),
    (("tenant", "list"), "GET", "/admin/v1/tenants", None, {"data": [TENANT]}, "acme"),
    (
        ("tenant", "show", "acme"),
        "GET", "/admin/v1/tenants/acme", None,
        {**TENANT, "adapters": ["acme/support"], "keys": [KEY_ROW]}, "acme/support",
    ),
    (
        ("key", "create", "--tenant", "acme"),
        "POST", "/admin/v1/keys", {"tenant": "acme", "role": "tenant"}, NEW_KEY, "fl_k1_s3cret\n",
    ),
    (
        ("key", "create", "--role", "finance"),
        "POST", "/admin/v1/keys", {"tenant": "", "role": "finance"}, {**NEW_KEY, "tenant": ""}, "fl_k1_s3cret\n",
    ),
    (("key", "list", "--tenant", "acme"), "GET", "/admin/v1/keys?tenant=acme", None, {"data": [KEY_ROW]}, "valid"),
    (("key", "revoke", "k1"), "DELETE", "/admin/v1/keys/k1", None, {**KEY_ROW, "revoked": 1}, "Key k1 revoked at"),
    (
        ("adapter", "add", "acme/support", "--source", "file:///x", "--assume-base"),
        "POST", "/admin/v1/adapters",
        {
            "adapter": "acme/support", "source": "file:///x", "assume_base": True, "base_model": None,
            "digest": None,
        },
        ADDED, "florin adapter promote acme/support v2",
    ),
    (NEW_ENGINE, "POST", "/admin/v1/engines", NEW_ENGINE_BODY, {**ENGINE, "base_config": True}, "Engine a1 serves base"),
    (
        (*NEW_ENGINE, "--no-verify", "--cpu-slots", "8", "--base-alias", "x/y", "--base-alias", "z"),
        "POST", "/admin/v1/engines",
        NEW_ENGINE_BODY | {"verify": False, "cpu_slots": 8, "base_aliases": ["x/y", "z"]},
        {**ENGINE, "base_config": True}, "Engine a1 serves base",
    ),
    (
        (*NEW_ENGINE, "--region", "eu-1", "--purchase", "spot"),
        "POST", "/admin/v1/engines",
        NEW_ENGINE_BODY | {"region": "eu-1", "purchase": "spot"},
        {**ENGINE, "base_config": True}, "Engine a1 serves base",
    ),
    (("engine", "list"), "GET", "/admin/v1/engines", None, {"data": [ENGINE]}, "2/4"),
    (
        ("engine", "list"), "GET", "/admin/v1/engines", None,
        {"data": [{**ENGINE, "gpu_count": 8, "region": "eu-1", "purchase": "reserved"}]}, "8 x H200 reserved, eu-1",
    ),
    (("engine", "list"), "GET", "/admin/v1/engines", None, {"data": [HOSTED]}, "stopping"),
    (("engine", "list"), "GET", "/admin/v1/engines", None, {"data": [{**HOSTED, "heartbeat": None}]}, "silent"),
    (
        ("engine", "cordon", "a1"),
        "PUT", "/admin/v1/engines/a1/state", {"state": "cordoned"}, {**ENGINE, "state": "cordoned"}, "no new adapters",
    ),
    (
        ("engine", "uncordon", "a1"),
        "PUT", "/admin/v1/engines/a1/state", {"state": "active"}, ENGINE, "accepts adapters and requests",
    ),
    (
        ("engine", "drain", "a1"),
        "PUT", "/admin/v1/engines/a1/state", {"state": "draining"}, {**ENGINE, "state": "draining"}, "accepts no new adapters or requests",
    ),
    (("engine", "remove", "a1"), "DELETE", "/admin/v1/engines/a1", None, {"name": "a1", "removed": True}, "Engine a1 removed."),
    (("placement",), "GET", "/admin/v1/placement", None, PLACEMENT, "3 free"),
    (("explain", "acme/support"), "GET", "/admin/v1/explain/acme/support", None, EXPLAINED, "unhealthy"),
    (
        ("price", "add", "--gpu-type", "H200", "--rate", "2.50"),
        "POST", "/admin/v1/prices", NEW_PRICE_BODY, PRICE, "2.50 USD per GPU-hour",
    ),
    (
        ("price", "add", "--gpu-type", "H200", "--rate", "2.50", "--from", "2026-07-01"),
        "POST", "/admin/v1/prices", NEW_PRICE_BODY | {"valid_from": "2026-07-01"}, PRICE, "from 2026-07-01",
    ),
    (("price", "list"), "GET", "/admin/v1/prices", None, {"data": [PRICE]}, "on_demand"),
    (("cost", "report"), "GET", f"/finance/v1/costs?{BY}", None, COSTS, "1,200"),
    (
        ("cost", "report", "--by", "tenant", "--month", "2026-07", "--tenant", "acme"),
        "GET", "/finance/v1/costs?by=tenant&month=2026-07&tenant=acme", None, COSTS, "0.001042",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[0]))
def test_a_command_asks_prints_and_ends_well(fake, case):
    args, method, path, sent, body, shown = case
    fake.answer(method, path, body)
    people = fake.florin(*args)
    assert (people.exit_code, fake.asked) == (0, [(method, path, sent)]), people.stderr
    assert fake.keys == [f"Bearer {KEY}"]
    assert shown in people.stdout
    script = fake.florin(*args, "--json")
    assert script.exit_code == 0
    assert json.loads(script.stdout) == body


def leaves(command, path=()):
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*path, name))


ALL = dict(leaves(typer.main.get_command(tree())))


ELSEWHERE = {
    ("doctor",),
    *(
        ("adapter", name)
        for name in ("list", "show", "promote", "rollback", "retire", "pin", "unpin", "remove")
    ),  # test_adapters
    ("adapter", "check"),  # test_check
    ("adapter", "release"),  # test_release
    ("engine", "trust"),  # test_trust
    *(("registry", name) for name in ("show", "restore", "accept")),  # test_registry, test_lost_registry
    ("engine", "enrol"),
    ("engine", "token", "create"),  # test_enrolling
    ("engine", "run"),  # test_engine_run, and as a process in tests/integration/test_hosts
    *(("cost", name) for name in ("export", "statement")),  # they write files: test_downloads
    *(("audit", name) for name in ("list", "request")),  # test_audit
    ("calibrate",),  # test_calibrate, and on a real engine in tests/engine
    *(
        ("cost", name) for name in ("import-bill", "bills", "remove-bill", "reconcile", "compare")
    ),  # test_reconciling
    *(("cost", name) for name in ("set-aside", "exclude")),  # test_cost_set_aside
    *(("cost", name) for name in ("periods", "close", "proof", "verify")),  # test_cost_periods
    *((name,) for name in ("apply", "export")),  # test_declarative
}
"""Commands with tests of their own."""


def test_no_command_is_without_a_case():
    tried = {next(path for path in ALL if args[: len(path)] == path) for args, *_ in CASES}
    assert set(ALL) - tried - ELSEWHERE == {("serve",), ("demo",), ("version",)}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example(path):
    text = ALL[path].help or ""
    assert text
    assert "Example: " in text or path == ("version",)
    assert all(getattr(p, "help", None) for p in ALL[path].params)


def test_every_command_that_speaks_to_a_gateway_has_json():
    for path, command in ALL.items():
        assert path in {("serve",), ("demo",)} or any("--json" in p.opts for p in command.params), path


def test_a_relative_source_is_made_absolute_where_the_operator_stands(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.answer("POST", "/admin/v1/adapters", ADDED)
    assert fake.florin("adapter", "add", "acme/support", "--source", "out/./x").exit_code == 0
    assert fake.asked[0][2]["source"] == str(Path(tmp_path).resolve() / "out" / "x")


@pytest.mark.parametrize(
    ("live", "created", "shown"),
    [("v2", True, "registered and live"), ("v1", True, "Live is still v1"), ("v1", False, "nothing to do")],
)
def test_what_became_of_an_added_adapter_is_said(fake, live, created, shown):
    fake.answer("POST", "/admin/v1/adapters", {**ADDED, "live": live, "created": created})
    assert shown in fake.florin("adapter", "add", "acme/support", "--source", "/x").stdout


def test_the_findings_of_a_refused_adapter_are_a_table(fake):
    finding = {"code": "rank_too_high", "message": "Too high.", "found": "64", "expected": "at most 16"}
    refusal = {
        "error": {
            "message": "acme/x was refused.",
            "code": "adapter_rejected",
            "findings": [finding, finding],
        }
    }
    fake.answer("POST", "/admin/v1/adapters", refusal, 422)
    result = fake.florin("adapter", "add", "acme/x", "--source", "/x")
    assert (result.exit_code, result.stdout) == (1, "")
    first, heads, *rows = result.stderr.splitlines()
    assert first == "florin: acme/x was refused."
    assert heads.split() == ["check", "problem", "found", "expected"]
    assert len(rows) == 2
    assert rows[0].split() == ["rank_too_high", "Too", "high.", "64", "at", "most", "16"]


def test_an_engine_without_its_models_config_is_pointed_out(fake):
    fake.answer("POST", "/admin/v1/engines", {**ENGINE, "base_config": False})
    result = fake.florin(*NEW_ENGINE)
    assert result.exit_code == 0
    assert "--base-config" in result.stderr


def test_a_missing_price_is_said_with_its_remedy(fake):
    fake.answer("GET", f"/finance/v1/costs?{BY}", COSTS)
    assert "florin price add --gpu-type L40" in fake.florin("cost", "report").stderr


def test_a_key_is_shown_once_and_alone_on_stdout(fake):
    fake.answer("POST", "/admin/v1/keys", NEW_KEY, 201)
    result = fake.florin("key", "create", "--tenant", "acme")
    assert result.stdout == "fl_k1_s3cret\n"
    assert "fl_k1_s3cret" not in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("tenant", "add"),
        ("nonsense",),
        ("key", "create", "--role", "king"),
        ("adapter", "show", "acme"),
        ("adapter", "add", "acme", "--source", "/x"),
        ("adapter", "add", "acme/x", "--source", ""),
        ("adapter", "add", "acme/x"),
        ("adapter", "add", "acme/x", "--source", "/x", "--upload", "/x"),
        ("adapter", "add", "acme/x", "--upload", "/nowhere/at/all"),
        (*NEW_ENGINE, "--slots", "0"),
        ("price", "add", "--gpu-type", "a", "--rate", "cheap"),
        ("price", "add", "--gpu-type", "a", "--rate", "nan"),
        ("price", "add", "--gpu-type", "a", "--rate", "-1"),
        ("cost", "report", "--month", "2026-07", "--from", "2026-07-02"),
        ("placement", "--watch", "--json"),
    ],
    ids=" ".join,
)
def test_usage_errors_are_2_and_ask_nobody(fake, args):
    result = fake.florin(*args)
    assert (result.exit_code, fake.asked, result.stdout) == (2, [], "")
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_key_it_says_what_to_set(florin):
    result = florin("tenant", "list")
    assert result.exit_code == 2
    assert "FLORIN_OPERATOR_KEY" in result.stderr


def test_without_a_gateway_it_says_how_to_start_one(florin):
    result = florin("tenant", "list", FLORIN_URL="http://127.0.0.1:9", FLORIN_OPERATOR_KEY="k")
    assert result.exit_code == 3
    assert "florin serve" in result.stderr


def test_options_win_over_the_environment(fake, florin):
    fake.answer("GET", "/admin/v1/tenants", {"data": []})
    result = florin(
        *("tenant", "list", "--gateway", fake.url, "--operator-key", "other"),
        FLORIN_URL="http://127.0.0.1:9",
        FLORIN_OPERATOR_KEY="k",
    )
    assert (result.exit_code, fake.keys) == (0, ["Bearer other"])
    assert "florin tenant add" in result.stderr


def test_names_cannot_reach_other_paths(fake):
    assert fake.florin("engine", "remove", "../tenants/acme").exit_code == 1
    assert fake.asked[0][1] == "/admin/v1/engines/..%2Ftenants%2Facme"


def test_version(florin):
    assert florin("version").stdout.startswith("florin ")
    assert "version" in json.loads(florin("version", "--json").stdout)
