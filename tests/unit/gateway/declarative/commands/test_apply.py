"""florin apply and export: what is sent, what is shown, and how they end."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.commands.tree import tree
from gateway.declarative.commands import fleet_file
from gateway.declarative.schemas import Action, ActionError, Applied
from gateway.fleet.adapters.schemas.adapters import Finding
from tests.support.command_line import KEY
from tests.support.samples import sample

SECRET = "fl_0123456789ab_" + "s" * 32
DIGEST = f"sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}"
FILE = "florin: 1\ntenants:\n  acme: {}\n"
BODY = {"florin": 1, "tenants": {"acme": {}}}


def action(verb="create", kind="tenant", id_="acme", outcome="done", fields=(), **more):
    return sample(Action, action=verb, kind=kind, id=id_, outcome=outcome, fields=list(fields), **more)


def error(message, code="conflict", *findings):
    return sample(ActionError, message=message, code=code, findings=findings)


def result(*actions, dry_run=False, unchanged=0):
    verbs = [a["action"] for a in actions]
    counts = {v: verbs.count(v) for v in ("create", "change", "remove", "refuse")} | {"unchanged": unchanged}
    failed = sum(a["outcome"] in {"failed", "skipped"} for a in actions)
    return sample(Applied, dry_run=dry_run, plan="p1", counts=counts, failed=failed, actions=actions)


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return str(path)


def test_a_file_is_applied_and_said_to_be(fake, fleet):
    fields = [{"field": "base_access", "old": None, "new": False}]
    fake.answer("POST", "/admin/v1/apply?prune=false", result(action(fields=fields), unchanged=2))
    done = fake.florin("apply", "-f", fleet)
    assert (done.exit_code, fake.asked) == (0, [("POST", "/admin/v1/apply?prune=false", BODY)])
    assert done.stdout.splitlines() == [
        "+ tenant acme",
        "  + base_access: no",
        "1 created, 0 changed, 0 removed, 2 unchanged.",
    ]
    assert json.loads(fake.florin("apply", "-f", fleet, "--json").stdout)["plan"] == "p1"


@pytest.mark.parametrize(
    ("actions", "code", "shown"),
    [
        ((), 0, "Nothing to do: 7 objects up to date."),
        ((action(outcome="planned"),), 4, "1 to create, 0 to change, 0 to remove, 7 unchanged."),
        (
            (action("refuse", outcome="failed", error=error("No.")),),
            1,
            "    refused: No.",
        ),
    ],
)
def test_a_dry_run_ends_with_what_it_found(fake, fleet, actions, code, shown):
    fake.answer(
        "POST", "/admin/v1/apply?prune=false&dry_run=true", result(*actions, dry_run=True, unchanged=7)
    )
    done = fake.florin("apply", "-f", fleet, "--dry-run")
    assert (done.exit_code, len(fake.asked)) == (code, 1)
    assert shown in done.stdout.splitlines()


def test_a_diff_shows_old_and_new(fake, fleet):
    fields = [
        {"field": "live", "old": "v1", "new": "v2"},
        {"field": "canary", "old": "v2 at 10 %", "new": None},
        {"field": "versions.v3.digest", "old": None, "new": DIGEST},
    ]
    config = [{"field": f"config.{n}", "old": None, "new": n} for n in range(7)]
    fake.answer(
        "POST",
        "/admin/v1/apply?prune=false&dry_run=true",
        result(
            action("change", "adapter", "acme/support", "planned", fields),
            action("create", "base", "base", "planned", config),
            action("remove", "key", "k\x1b[31m", "planned"),
            dry_run=True,
        ),
    )
    lines = fake.florin("apply", "-f", fleet, "--dry-run").stdout.splitlines()
    assert lines == [
        "~ adapter acme/support",
        "  ~ live: v1 → v2",
        "  - canary: v2 at 10 %",
        f"  + versions.v3.digest: {DIGEST[:19]}…",
        "+ base base",
        "  + config: 7 fields",
        "- key k\\x1b[31m",
        "1 to create, 1 to change, 1 to remove, 0 unchanged.",
    ]


def test_pruning_needs_a_yes_and_does_what_was_agreed_to(fake, fleet):
    plan = result(action("remove", "key", "k1", "planned"), dry_run=True)
    fake.answer("POST", "/admin/v1/apply?prune=true&dry_run=true", plan)
    confirmed = "/admin/v1/apply?prune=true&confirm=true"
    fake.answer("POST", f"{confirmed}&dry_run=true", plan)
    fake.answer("POST", f"{confirmed}&plan=p1", result(action("remove", "key", "k1")))
    asked = fake.florin("apply", "-f", fleet, "--prune")
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert "- key k1" in asked.stdout
    assert [path for _, path, _ in fake.asked] == ["/admin/v1/apply?prune=true&dry_run=true"]
    done = fake.florin("apply", "-f", fleet, "--prune", "--yes")
    assert (done.exit_code, fake.asked[-1][1]) == (0, f"{confirmed}&plan=p1")


def test_what_failed_is_named_with_its_reason(fake, fleet):
    codes = ("rank_too_high", "bias")
    findings = [sample(Finding, code=code, message="Bad.") for code in codes]
    refused = error("acme/x was refused.", "adapter_rejected", *findings)
    skipped = error("It needs tenant acme, which failed.")
    answer = result(
        action(kind="adapter", id_="acme/x", outcome="failed", error=refused),
        action(kind="key", id_="k1", outcome="skipped", error=skipped),
    )
    fake.answer("POST", "/admin/v1/apply?prune=false", answer)
    done = fake.florin("apply", "-f", fleet)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "+ adapter acme/x",
        "    refused: acme/x was refused.",
        "      rank_too_high: Bad.",
        "      bias: Bad.",
        "+ key k1",
        "    skipped: It needs tenant acme, which failed.",
        "0 created, 0 changed, 0 removed, 2 failed, 0 unchanged.",
    ]
    assert "apply again" in done.stderr


def test_keys_are_sent_as_digests_only(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("ACME_KEY", SECRET)
    (tmp_path / "bolt.key").write_text(f"{SECRET}\n")
    (tmp_path / "fleet.yaml").write_text(
        f"florin: 1\nkeys:\n  k1: {{tenant: acme, secret: {{env: ACME_KEY}}}}\n"
        f"  k2: {{tenant: bolt, secret: {{file: bolt.key}}}}\n  k3: {{role: finance, secret: '{DIGEST}'}}\n"
    )
    fake.answer("POST", "/admin/v1/apply?prune=false", result())
    assert fake.florin("apply", "-f", str(tmp_path / "fleet.yaml")).exit_code == 0
    keys = fake.asked[0][2]["keys"]
    assert {k: v["secret"] for k, v in keys.items()} == dict.fromkeys(("k1", "k2", "k3"), DIGEST)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "florin: 1"),
        ("- 1", "florin: 1"),
        ("florin: 1\ntenants: {acme: {}, acme: {}}", "duplicate key 'acme', in line 2, column 21"),
        ("florin: 1\nengines: {a: &x {}, b: *x}", "alias"),
        (
            "florin: 1\ntenants: !!python/object:os.x {}",
            "the tag 'tag:yaml.org,2002:python/object:os.x' is not allowed",
        ),
        (
            "florin: 1\ntenants: !!timestamp 2026-01-01",
            "the tag 'tag:yaml.org,2002:timestamp' is not allowed",
        ),
        ("florin: [", "line 1"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: 1e999", "cannot be read|not JSON compliant"),
        ("? [a]\n: b", "a mapping key must be text"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: \x00", "is not valid"),
        (f"keys: {{k1: {{secret: {SECRET}}}}}", "keys.k1.secret"),
        ("keys: {k1: {secret: {env: NOT_THERE}}}", "NOT_THERE"),
        ("keys: {k1: {secret: {env: A, file: b}}}", "keys.k1.secret"),
        ("keys: {k1: {secret: {file: /not/there}}}", "/not/there"),
        ("keys: {k1: {secret: {env: SHORT}}}", "keys.k1.secret"),
    ],
)
def test_invalid_file_is_a_usage_error_without_a_call(fake, tmp_path, monkeypatch, text, said):
    monkeypatch.setenv("SHORT", "s3cret")
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    done = fake.florin("apply", "-f", str(path))
    assert (done.exit_code, fake.asked, done.stdout) == (2, [], "")
    assert any(part in done.stderr for part in said.split("|")), done.stderr
    assert SECRET not in done.stderr
    assert "s3cret" not in done.stderr


def test_a_file_on_stdin(fake):
    fake.answer("POST", "/admin/v1/apply?prune=false", result())
    env = {"FLORIN_URL": fake.url, "FLORIN_OPERATOR_KEY": KEY}
    done = CliRunner().invoke(tree(), ["apply", "-f", "-"], input=FILE, env=env)
    assert (done.exit_code, fake.asked[0][2]) == (0, BODY)


def test_words_are_words_and_prices_stay_as_they_are_written():
    loaded = fleet_file.load(
        "a: no\nb: 12:30\nc: 2026-07-01\nd: 0123\ne: true\nf: 1.5\n1e5: x\nprices: [{rate: 2.50, gpu: 4090}]"
    )
    assert loaded == {
        "a": "no",
        "b": "12:30",
        "c": "2026-07-01",
        "d": "0123",
        "e": True,
        "f": 1.5,
        "1e5": "x",
        "prices": [{"rate": "2.50", "gpu": "4090"}],
    }


EXPORTED = {"florin": 1} | {section: {} for section in fleet_file.SECTIONS} | {"prices": []}


def test_an_export_goes_to_stdout_or_whole_into_a_file(fake, tmp_path):
    fake.answer("GET", "/admin/v1/export", EXPORTED)
    out = fake.florin("export")
    assert (out.exit_code, fleet_file.load(out.stdout)) == (0, EXPORTED)
    assert out.stdout.startswith("# ")
    assert json.loads(fake.florin("export", "--json").stdout) == EXPORTED
    target = tmp_path / "fleet.yaml"
    target.write_text("old")
    done = fake.florin("export", "--output", str(target))
    assert (done.exit_code, done.stdout, target.read_text()) == (0, "", out.stdout)
    assert "0 tenants" in done.stderr
    assert list(Path(tmp_path).iterdir()) == [target]
    lost = fake.florin("export", "--output", str(tmp_path / "none" / "x.yaml"))
    assert lost.exit_code == 2
