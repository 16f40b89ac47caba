"""What `florin registry` tells a person."""

from __future__ import annotations

import pytest

from gateway.commands.registry import _people

COUNTS = {"tenant": 2, "key": 3, "adapter": 1, "version": 1, "engine": 1}


def test_a_sound_registry_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    _people({"status": "ok", "known": COUNTS})
    said = capsys.readouterr().out
    assert "2 tenants, 3 keys" in said


def test_a_lost_one_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]):
    _people(
        {
            "status": "regressed",
            "reason": "Redis is empty.",
            "known": COUNTS,
            "left": dict.fromkeys(COUNTS, 0) | {"tenant": 1},
            "differences": {
                "tenant": {
                    "missing": {"count": 12, "first": ["acme", "bolt"]},
                    "added": {"count": 1, "first": ["x"]},
                }
            },
        }
    )
    told = capsys.readouterr()
    assert "tenant, missing in Redis: 12 (acme, bolt …)" in told.err
    assert "tenant, added in Redis: 1 (x)" in told.err
    assert "Redis is empty." in told.err
    assert "florin registry restore" in told.err
    assert "florin registry accept" in told.err
