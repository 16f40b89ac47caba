"""A canary beside the live version, as `florin adapter show` prints it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fleet.adapters.commands.page import compared
from gateway.fleet.adapters.schemas.adapters import AdapterDetails
from tests.support.samples import sample

GUARD = {
    "action": "rollback", "max_error_rate": 0.01, "max_latency_ratio": 1.5, "min_requests": 50,
    "window_seconds": 600, "then": [50, 100],
}  # fmt: skip
ARM = {
    "requests": 1234, "failures": 12, "error_rate": 12 / 1234, "first_token": {"p50": 0.0227, "p95": 1.5},
    "per_token": {"p50": None, "p95": None},
}  # fmt: skip
NOTHING = {
    "requests": 0,
    "failures": 0,
    "error_rate": None,
    "first_token": ARM["per_token"],
    "per_token": ARM["per_token"],
}
BODY = sample(
    AdapterDetails,
    live="v1",
    canary={"version": "v2", "weight": 10, "guard": GUARD, "held": None},
    comparison={"canary": ARM, "live": NOTHING, "verdict": "keep", "reason": "Nothing is shown."},
)


def shown(capsys: pytest.CaptureFixture[str], **fields: Any) -> str:
    compared(AdapterDetails.read(BODY | fields))
    return " ".join(capsys.readouterr().out.split())


def test_a_guarded_canary(capsys: pytest.CaptureFixture[str]):
    text = shown(capsys)
    assert (
        "rollback if more than 0.01 of requests fail, or take over 1.5 times as long, within 10 min" in text
    )
    assert "then 50 %, then 100 %" in text
    assert "v2 (canary) 1,234 0.97% 22.7 ms 1.5 s - -" in text
    assert "v1 0 - - - - -" in text
    assert text.endswith("Verdict: keep. Nothing is shown.")


def test_a_canary_without_a_guard_has_figures_only(capsys: pytest.CaptureFixture[str]):
    bare = BODY["canary"] | {"guard": None}
    text = shown(capsys, canary=bare, comparison=BODY["comparison"] | {"verdict": None, "reason": None})
    assert text.startswith("requests failed")
    assert "Verdict" not in text


@pytest.mark.parametrize(("verdict", "words"), [("rollback", "rolled back"), ("promote", "made live")])
def test_what_the_last_guard_decided(capsys: pytest.CaptureFixture[str], verdict: str, words: str):
    outcome = {
        "verdict": verdict,
        "version": "v2",
        "reason": "It fails.",
        "decided_at": 1_795_000_000_000_000,
    }
    text = shown(capsys, canary=None, comparison=None, outcome=outcome)
    assert text.startswith(f"v2 was {words} by its guard, 2026-11-18 ")
    assert text.endswith(". It fails.")
