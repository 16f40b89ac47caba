"""florin cost policy show and set."""

from __future__ import annotations

from gateway.costs.policies.schemas import PolicyChange, PolicyInForce
from tests.support.samples import sample

PATH = "/finance/v1/policy"
ROW = sample(
    PolicyChange, policy="fixed", shares={"acme": 6, "bolt": 4}, valid_from="2026-10", reason="contract 17"
)
SHOWN = sample(
    PolicyInForce,
    month="2026-10",
    policy="fixed",
    shares={"acme": 6, "bolt": 4},
    own={"corgi": "none"},
    history=[ROW, ROW | {"tenant": "corgi", "policy": "none", "shares": {}}],
)


def test_what_holds_and_every_policy_ever_set_are_shown(fake):
    fake.answer("GET", f"{PATH}?month=2026-10", SHOWN)
    out = fake.florin("cost", "policy", "show", "--month", "2026-10")
    assert out.exit_code == 0
    assert "fixed (acme 60 %, bolt 40 %); none for corgi" in out.stdout
    assert "contract 17" in out.stdout
    assert "all tenants" in out.stdout
    fake.answer("GET", PATH, SHOWN | {"history": [ROW | {"valid_from": "1970-01"}]})
    assert "the beginning" in fake.florin("cost", "policy", "show").stdout


def test_without_any_it_says_how_to_set_one(fake):
    fake.answer("GET", PATH, sample(PolicyInForce, month="2026-10", policy="none", history=[]))
    assert "florin cost policy set" in fake.florin("cost", "policy", "show").stderr


def test_a_policy_is_set(fake):
    fake.answer("PUT", PATH, SHOWN | {"changed": True})
    out = fake.florin(
        *("cost", "policy", "set", "fixed", "--share", "acme=60%", "--share", "bolt=40%"),
        *("--from", "2026-10", "--reason", "contract 17"),
    )
    assert out.exit_code == 0
    assert fake.asked[-1][2] == {
        "policy": "fixed", "shares": {"acme": 60, "bolt": 40}, "shares_total": 100, "valid_from": "2026-10",
        "reason": "contract 17",
    }  # fmt: skip
    assert out.stdout.strip() == "fixed (acme 60 %, bolt 40 %); none for corgi, from 2026-10."


def test_of_a_tenant(fake):
    fake.answer("PUT", PATH, SHOWN | {"changed": False, "month": "2026-09"})
    out = fake.florin("cost", "policy", "set", "none", "--tenant", "corgi")
    assert fake.asked[-1][2] == {"policy": "none", "tenant": "corgi"}
    assert "nothing changed" in out.stderr
    assert "Another policy was set from 2026-10 on" in out.stderr
