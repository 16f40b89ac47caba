"""Each command: what it asks the gateway, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from gateway.commands.tree import tree
from gateway.costs.prices.schemas import AddedPrice, ExchangeRate
from gateway.costs.reports.schemas.costs import CostReport, CostRow, Figures
from gateway.fleet.adapters.schemas.adapters import Adapter, RegisteredVersion
from gateway.fleet.engines.schemas.engines import Drain, Engine, Heartbeat, Move, OwnTrial, TrialDetails
from gateway.fleet.placement.schemas import (
    Candidate,
    Choice,
    Decision,
    EnginePlacement,
    Explanation,
    PlacedVersion,
    PlacementChange,
)
from gateway.tenants.keys.schemas import Key
from gateway.tenants.people.schemas import Me, OwnTerms
from gateway.tenants.schemas.limit_dry_run import LimitDryRun
from gateway.tenants.schemas.tenants import FinalCharges, Tenant
from tests.support.command_line import KEY
from tests.support.samples import sample

TENANT = sample(Tenant, name="acme", created=1_700_000_000_000_000, weight=1.0)
FINAL_CHARGES = sample(
    FinalCharges, months=["2026-11"], last_month="2026-11", rate_card="small", monthly_minimum="200.00", currency="USD"
)  # fmt: skip
KEY_ROW = sample(Key, id="k1", tenant="acme", role="tenant", created=1, priority="normal", last_used=None)
NEW_KEY = KEY_ROW | {"key": "fl_k1_s3cret"}
ENGINE = sample(
    Engine, name="a1", url="http://10.0.0.7:8000", base="base", gpu_type="H200", gpu_count=1, slots=4, cpu_slots=8,
    max_rank=16, driver="vllm", version="0.33.0", prompt_scores="safe", health="up", running=3, resident=2,
)  # fmt: skip
HOSTED = {
    **ENGINE, "stopping": True, "epoch": "e1", "agent": "http://10.0.0.7:41000", "heartbeat": sample(Heartbeat, started=1)
}  # fmt: skip
MOVE = sample(Move, version="acme/a@v1", to="b1", replaces="bolt/x@v2", idle_seconds=61.0, in_flight=2)
DRAIN = sample(
    Drain, engine="a1", state="draining", phase="loading", until=1, in_flight=3, held=3, moves=[MOVE],
    elsewhere=[{"version": "acme/b@v1", "engines": ["b1", "c1"]}],
    stays=[{"version": "acme/c@v1", "reason": "b1: cordoned"}],
)  # fmt: skip
PLANNED = DRAIN | {"phase": "serving", "state": "active", "alone": True}
DRAINED = DRAIN | {"phase": "drained", "moves": [], "elsewhere": [], "held": 0, "in_flight": 0}
PLACED = [
    sample(PlacedVersion, version="acme/support@v1", state="resident", in_flight=2, idle_seconds=61.0),
    sample(PlacedVersion, version="acme/support@v2", state="cached", idle_seconds=90.0),
]
PLACEMENT = sample(EnginePlacement, engine="a1", gpu_type="H200", health="up", slots=4, placements=PLACED)
CHANGE = sample(PlacementChange, engine="a1", version="acme/support@v3", kind="not_loaded", seconds=1.25)
CHANGES = {"data": [CHANGE, CHANGE | {"seconds": None, "why": "to make room for acme/sales@v1"}]}
DECISION = sample(
    Decision, attempt=1, adapter="acme/support@v1", engine="a", picked="a", action="serve", fleet=4,
    considered=[["a", "serve", 18.0]],
)  # fmt: skip
DECIDED = {"request_id": "req-1", "data": [DECISION]}
CANDIDATES = [
    sample(Candidate, engine="a1", health="up", eligible=True, cost_ms=12.0, terms={"queue": 12.0}),
    sample(Candidate, engine="a2", health="down", action="load", reason="unhealthy"),
]
CHOICE = sample(Choice, action="serve", engine="a1", candidates=CANDIDATES)
EXPLAINED = sample(Explanation, adapter="acme/support", version="acme/support@v1", decision=CHOICE)
PRICE = sample(
    AddedPrice, id=7, gpu_type="H200", rate_per_gpu_hour="2.50", currency="USD", purchase="on_demand",
    valid_from="2026-07-01T00:00:00Z", warnings=["No registered engine has GPU type H200; there are H100."],
)  # fmt: skip
LISTED_PRICE = {name: value for name, value in PRICE.items() if name != "warnings"}
CORRECTED = {**PRICE, "id": 8, "supersedes": 7, "reason": "typo", "warnings": []}
RATE = sample(
    ExchangeRate, id=1, currency="USD", target="EUR", rate="0.92", valid_from="2026-10-01T00:00:00Z", source="ECB"
)  # fmt: skip
USED = {"requests": 3, "prompt_tokens": 1200, "gpu_hours": "0.000416667", "cost": "0.001042"}
COSTS = sample(
    CostReport, currency="USD", by=["tenant", "adapter", "gpu_type"], totals=sample(Figures, **USED), complete=True,
    rows=[sample(CostRow, tenant="acme", adapter="acme/support", gpu_type="H200", **USED)],
    missing_prices=[{"gpu_type": "L40", "region": "", "purchase": "on_demand"}],
)  # fmt: skip
ADDED = sample(RegisteredVersion, adapter="acme/support", version="v2", live="v1", created=True)
NEW_ENGINE = (
    *("engine", "add", "--name", "a1", "--url", "http://10.0.0.7:8000", "--base", "base"),
    *("--gpu-type", "H200", "--slots", "4", "--max-rank", "16"),
)
NEW_ENGINE_BODY = {name: ENGINE[name] for name in ("name", "url", "base", "gpu_type", "slots", "max_rank")}
NEW_PRICE_BODY = {name: PRICE[name] for name in ("gpu_type", "rate_per_gpu_hour")}
NEW_RATE_BODY = {name: RATE[name] for name in ("currency", "target", "rate", "source")}
OWN_TERMS = sample(
    OwnTerms,
    budget={"money_per_day": "9.50"},
    quotas={"adapters": {"limit": 5, "used": 2}, "uploads_per_hour": {"limit": None, "used": 0}},
)
ME = sample(
    Me, id="k1", label="ci", role="tenant-admin", tenant="acme", scopes={"adapters": ["sup*"]},
    limits={"concurrent": 4}, tenant_terms=OWN_TERMS,
)  # fmt: skip
CASES = [
    (
        ("tenant", "add", "acme", "--require", "region=eu", "--require", "pool=a"),
        "POST", "/admin/v1/tenants", {"name": "acme", "requires": {"region": "eu", "pool": "a"}},
        {**TENANT, "requires": {"region": "eu", "pool": "a"}}, "pool=a, region=eu",
    ),
    (
        (
            *("tenant", "update", "acme", "--requests-per-minute", "600", "--tokens-per-minute", "200k"),
            *("--concurrent", "none", "--queued", "0", "--max-context", "32_000", "--max-output", "4k"),
            *("--budget-tokens-day", "2M", "--budget-tokens-month", "none", "--budget-money-day", "99.50"),
            *("--budget-money-month", "500", "--budget-warn", "75", "--weight", "2.5", "--no-require"),
        ),
        "PATCH", "/admin/v1/tenants/acme",
        {
            "limits": {
                "requests_per_minute": 600, "tokens_per_minute": 200_000, "concurrent": None, "queued": 0,
                "max_context": 32_000, "max_output": 4_000,
            },
            "budget": {
                "tokens_per_day": 2_000_000, "tokens_per_month": None, "money_per_day": "99.50",
                "money_per_month": "500", "warn_percent": 75,
            },
            "weight": 2.5, "requires": {},
        },
        {**TENANT, "limits": {**TENANT["limits"], "requests_per_minute": 600}}, "600 requests per minute",
    ),
    (
        (
            *("tenant", "update", "acme", "--max-adapters", "5", "--max-versions", "3", "--max-bytes", "10GB"),
            *("--max-rank", "64", "--uploads-per-hour", "20", "--max-keys", "none", "--cache-group", "none"),
            *("--media-host", "a.com", "--media-host", "b.com:8443", "--no-chat-templates"),
            *("--structured-outputs", "--pass-field", "none", "--cost-centre", "R&D"),
        ),
        "PATCH", "/admin/v1/tenants/acme",
        {
            "quotas": {
                "adapters": 5, "versions": 3, "bytes": 10**10, "max_rank": 64, "uploads_per_hour": 20, "keys": None,
            },
            "cache_group": None, "cost_centre": "R&D",
            "policy": {
                "media_hosts": ["a.com", "b.com:8443"], "chat_templates": False, "structured_outputs": True,
                "pass_fields": [],
            },
        },
        {**TENANT, "policy": {**TENANT["policy"], "chat_templates": False}}, "no chat templates",
    ),
    (
        ("tenant", "update", "acme", "--max-bytes", "512MiB", "--default-policy"),
        "PATCH", "/admin/v1/tenants/acme", {"quotas": {"bytes": 512 * 2**20}, "policy": None}, TENANT,
        "as the settings say",
    ),
    (
        ("tenant", "suspend", "acme"),
        "PATCH", "/admin/v1/tenants/acme", {"suspended": True},
        {**TENANT, "suspended": 1_700_000_000_000_000}, "acme is suspended since 2023-11-14 22:13:20Z.",
    ),
    (
        ("tenant", "resume", "acme"),
        "PATCH", "/admin/v1/tenants/acme", {"suspended": False}, TENANT, "acme is served.",
    ),
    (
        ("tenant", "remove", "acme", "--dry-run"),
        "DELETE", "/admin/v1/tenants/acme?dry_run=true", None,
        {"tenant": "acme", "removed": False, "exists": True, "obstacles": [
            {"kind": "adapter", "id": "acme/support", "command": "florin adapter remove acme/support"},
        ], "charges": FINAL_CHARGES}, "florin adapter remove acme/support",
    ),
    (
        ("tenant", "remove", "acme", "--cascade", "--dry-run"),
        "DELETE", "/admin/v1/tenants/acme?dry_run=true&cascade=true", None,
        {"tenant": "acme", "removed": False, "exists": True, "obstacles": [
            {"kind": "engine", "id": "gpu-a", "command": "florin engine remove gpu-a"},
            {"kind": "key", "id": "k1", "command": "florin key revoke k1"},
        ], "charges": FINAL_CHARGES}, "cannot be removed yet",
    ),
    (
        ("tenant", "remove", "acme", "--cascade", "-y"),
        "DELETE", "/admin/v1/tenants/acme?cascade=true", None,
        {"tenant": "acme", "removed": True, "exists": True, "obstacles": [
            {"kind": "key", "id": "k1", "command": "florin key revoke k1"},
        ], "charges": FINAL_CHARGES}, "Revoked key k1.",
    ),
    (
        ("tenant", "remove", "acme", "-y"),
        "DELETE", "/admin/v1/tenants/acme", None,
        {"tenant": "acme", "removed": False, "exists": False, "obstacles": [], "charges": FINAL_CHARGES},
        "nothing to do",
    ),
    (("whoami",), "GET", "/admin/v1/me", None, ME, "Uploads per hour"),
    (
        ("console",),
        "POST", "/admin/v1/sign-in-links", None,
        {"id": "k1", "url": "/console/sign-in#link=s3cret", "expires": 1_800_000_000_000_000},
        "/console/sign-in#link=s3cret\n",
    ),
    (
        ("tenant", "try-limits", "acme", "--limit", "requests/day=5", "--days", "2"),
        "POST", "/admin/v1/tenants/acme/limits-dry-run", {"rules": ["requests/day=5"], "days": 2},
        sample(LimitDryRun, tenant="acme", limits=[]), "acme has no limits",
    ),
    (("tenant", "list"), "GET", "/admin/v1/tenants", None, {"data": [TENANT]}, "acme"),
    (
        (
            *("key", "create", "--tenant", "acme", "--role", "tenant-admin", "--label", "checkout"),
            *("--expires", "90d", "--adapter", "support", "--adapter", "shared/*", "--read-only"),
            *("--endpoint", "/v1/completions", "--priority", "high", "--requests-per-minute", "60"),
            *("--budget-tokens-day", "1k"),
        ),
        "POST", "/admin/v1/keys",
        {
            "tenant": "acme", "role": "tenant-admin", "label": "checkout", "expires": "90d", "priority": "high",
            "scopes": {"adapters": ["support", "shared/*"], "endpoints": ["/v1/completions"], "read_only": True},
            "limits": {"requests_per_minute": 60}, "budget": {"tokens_per_day": 1000},
        },
        NEW_KEY, "fl_k1_s3cret\n",
    ),
    (
        ("key", "update", "k1", "--label", "", "--expires", "none", "--adapter", "none", "--no-read-only"),
        "PATCH", "/admin/v1/keys/k1",
        {"label": "", "expires": None, "scopes": {"adapters": [], "read_only": False}},
        KEY_ROW, "everything that its role may",
    ),
    (
        ("key", "rotate", "k1", "--overlap", "48h"),
        "POST", "/admin/v1/keys/k1/rotate", {"overlap": "48h"},
        {**NEW_KEY, "replaced": KEY_ROW | {"expires": 1_700_000_000_000_000}}, "fl_k1_s3cret\n",
    ),
    (("key", "show", "k1"), "GET", "/admin/v1/keys/k1", None, KEY_ROW | {"last_used": 1}, "ago"),
    (("key", "list", "--tenant", "acme"), "GET", "/admin/v1/keys?tenant=acme", None, {"data": [KEY_ROW]}, "valid"),
    (("key", "revoke", "k1"), "DELETE", "/admin/v1/keys/k1", None, {**KEY_ROW, "revoked": 1}, "Key k1 revoked at"),
    (
        ("adapter", "add", "acme/support", "--source", "file:///x", "--assume-base", "--unverified-shapes"),
        "POST", "/admin/v1/adapters",
        {"adapter": "acme/support", "source": "file:///x", "assume_base": True, "unverified_shapes": True},
        ADDED, "florin adapter promote acme/support v2",
    ),
    (
        (
            *NEW_ENGINE, *("--no-verify", "--cpu-slots", "8", "--base-alias", "x/y", "--base-alias", "z"),
            *("--driver", "tgi", "--holds", "acme/support@v1", "--holds", "acme/faq@v2", "--tasks", "embed, score"),
            *("--region", "eu-1", "--purchase", "spot", "--label", "pool=a", "--label", "tier=1", "--host", "rack7"),
        ),
        "POST", "/admin/v1/engines",
        NEW_ENGINE_BODY | {
            "verify": False, "cpu_slots": 8, "base_aliases": ["x/y", "z"], "driver": "tgi",
            "holds": ["acme/support@v1", "acme/faq@v2"], "tasks": ["embed", "score"], "region": "eu-1",
            "purchase": "spot", "labels": {"pool": "a", "tier": "1"}, "host": "rack7",
        },
        {**ENGINE, "base_config": True}, "Engine a1 serves base",
    ),
    (
        ("engine", "list"), "GET", "/admin/v1/engines", None,
        {"data": [{**HOSTED, "gpu_count": 8, "region": "eu-1", "purchase": "reserved", "trial": sample(OwnTrial, share=5)}]},
        "8 x H200 reserved, eu-1",
    ),
    (
        ("engine", "list", "-w"), "GET", "/admin/v1/engines", None, {"data": [{**HOSTED, "heartbeat": None}]},
        "silent",
    ),
    (
        ("engine", "trial", "a1", "--share", "5", "--window", "10m", "--then", "25", "--then", "100"),
        "PUT", "/admin/v1/engines/a1/trial", {"share": 5, "window_seconds": 600, "then": [25, 100]},
        {**ENGINE, "trial": sample(OwnTrial, share=5)}, "on trial with 5 % of the requests",
    ),
    (
        ("engine", "trial", "a1", "--end"),
        "DELETE", "/admin/v1/engines/a1/trial", None, ENGINE, "a1 is on no trial",
    ),
    (
        ("engine", "trial", "a1"), "GET", "/admin/v1/engines/a1/trial", None,
        sample(TrialDetails, engine="a1", version="0.33.0", verdict="keep", reason="Nothing is wrong."),
        "Verdict: keep. Nothing is wrong.",
    ),
    (
        ("engine", "cordon", "a1"),
        "PUT", "/admin/v1/engines/a1/state", {"state": "cordoned"}, {**ENGINE, "state": "cordoned"}, "no new adapters",
    ),
    (
        ("engine", "uncordon", "a1"),
        "PUT", "/admin/v1/engines/a1/state", {"state": "active"}, ENGINE, "accepts adapters and requests",
    ),
    (
        ("engine", "drain", "a1", "--keep", "--timeout", "60"),
        "POST", "/admin/v1/engines/a1/drain", {"timeout": 60.0, "release": False}, DRAIN,
        "load on b1, in place of bolt/x@v2",
    ),
    (("engine", "drain", "a1", "--dry-run"), "GET", "/admin/v1/engines/a1/drain", None, PLANNED, "would load 1 adapter elsewhere"),
    (
        ("engine", "trust", "a1", "--yes"), "POST", "/admin/v1/engines/a1/trust", None,
        {"engine": "a1", "base": "llama", "fingerprints_forgotten": 3},
        "a1 is now the reference for llama; 3 versions get new references at the next load.",
    ),
    (("engine", "remove", "a1"), "DELETE", "/admin/v1/engines/a1", None, {"name": "a1", "removed": True}, "Engine a1 removed."),
    (("placement",), "GET", "/admin/v1/placement", None, {"data": [PLACEMENT]}, "3 free"),
    (("placement", "--changes"), "GET", "/admin/v1/placement/changes", None, CHANGES, "to make room for acme/sales@v1"),
    (("explain", "acme/support"), "GET", "/admin/v1/explain/acme/support", None, EXPLAINED, "unhealthy"),
    (("explain", "req-1"), "GET", "/admin/v1/explain/req-1", None, DECIDED, "3 other engines"),
    (
        ("price", "add", "--gpu-type", "H200", "--rate", "2.50", "--from", "2026-07-01"),
        "POST", "/admin/v1/prices", NEW_PRICE_BODY | {"valid_from": "2026-07-01"}, PRICE, "2.50 USD per GPU-hour",
    ),
    (
        ("price", "list", "--history"), "GET", "/admin/v1/prices?history=true", None,
        {"data": [LISTED_PRICE | {"superseded_by": 8}, LISTED_PRICE | {"id": 8, "supersedes": 7, "reason": "typo"}]}, "corrects 7: typo",
    ),
    (
        ("price", "correct", "7", "--reason", "typo", "--rate", "2.50"),
        "POST", "/admin/v1/prices/7/correct", {"reason": "typo", "rate_per_gpu_hour": "2.50"}, CORRECTED, "the new price is 8",
    ),
    (
        ("price", "correct", "7", "--reason", "typo", "--withdraw"),
        "POST", "/admin/v1/prices/7/correct", {"reason": "typo", "withdraw": True}, {**CORRECTED, "withdrawn": True}, "was withdrawn",
    ),
    (
        ("exchange-rate", "add", "--from", "USD", "--to", "EUR", "--rate", "0.92", "--date", "2026-10-01", "--source", "ECB"),
        "POST", "/admin/v1/exchange-rates", NEW_RATE_BODY | {"valid_from": "2026-10-01"}, RATE, "1 USD is 0.92 EUR from 2026-10-01",
    ),
    (("exchange-rate", "list"), "GET", "/admin/v1/exchange-rates", None, {"data": [RATE]}, "2026-10-01"),
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


def test_every_command_has_help_with_an_example():
    for path, command in ALL.items():
        assert "Example: " in (command.help or "") or path == ("version",), path
        assert all(getattr(p, "help", None) for p in command.params), path


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


def test_an_engine_without_its_models_config_is_pointed_out(fake):
    fake.answer("POST", "/admin/v1/engines", {**ENGINE, "base_config": False})
    result = fake.florin(*NEW_ENGINE)
    assert result.exit_code == 0
    assert "--base-config" in result.stderr


def test_a_missing_price_is_said_with_its_remedy(fake):
    fake.answer("GET", "/finance/v1/costs?by=tenant%2Cadapter%2Cgpu_type", COSTS)
    assert "florin price add --gpu-type L40" in fake.florin("cost", "report").stderr


def test_a_key_is_shown_once_and_alone_on_stdout(fake):
    fake.answer("POST", "/admin/v1/keys", NEW_KEY, 201)
    result = fake.florin("key", "create", "--tenant", "acme")
    assert result.stdout == "fl_k1_s3cret\n"
    assert "fl_k1_s3cret" not in result.stderr


def test_a_customer_need_not_name_its_tenant(fake, florin):
    fake.answer("GET", "/admin/v1/me", ME)
    answer = sample(Adapter, adapter="acme/support", live="v1")
    fake.answer("POST", "/admin/v1/adapters/acme/support/rollback", answer)
    result = florin("adapter", "rollback", "support", FLORIN_URL=fake.url, FLORIN_KEY="fl_own")
    assert (result.exit_code, result.stdout) == (0, "acme/support now serves v1.\n")
    assert fake.keys == ["Bearer fl_own"] * 2


def test_an_operator_must_name_the_tenant(fake):
    fake.answer("GET", "/admin/v1/me", ME | {"role": "operator", "tenant": "", "tenant_terms": None})
    result = fake.florin("adapter", "show", "support")
    assert result.exit_code == 2
    assert "'support' is not TENANT/NAME" in result.stderr


def test_without_a_key_it_says_what_to_set(florin):
    result = florin("tenant", "list")
    assert result.exit_code == 2
    assert "FLORIN_OPERATOR_KEY" in result.stderr


def test_without_a_gateway_it_says_how_to_start_one(florin):
    result = florin("tenant", "list", "--json", FLORIN_URL="http://127.0.0.1:9", FLORIN_OPERATOR_KEY="k")
    assert result.exit_code == 3
    assert "florin serve" in result.stderr
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "gateway_unreachable"
    assert error["message"] in result.stderr


def test_options_win_over_the_environment(fake, florin):
    fake.answer("GET", "/admin/v1/tenants", {"data": []})
    result = florin(
        *("tenant", "list", "--gateway", fake.url, "--operator-key", "other"),
        FLORIN_URL="http://127.0.0.1:9",
        FLORIN_OPERATOR_KEY="k",
    )
    assert (result.exit_code, fake.keys) == (0, ["Bearer other"])
    assert "florin tenant add" in result.stderr


def test_version(florin):
    assert florin("version").stdout.startswith("florin ")
    assert "version" in json.loads(florin("version", "--json").stdout)


def test_a_requirement_that_nothing_meets_is_said(fake):
    warning = "No engine of base has region=mars: requests of acme are refused until one has"
    fake.answer("PATCH", "/admin/v1/tenants/acme", {**TENANT, "warnings": [warning]})
    assert (
        f"Warning: {warning}." in fake.florin("tenant", "update", "acme", "--require", "region=mars").stderr
    )
