"""What `florin registry` tells a person."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.installation.registry.commands import _people
from gateway.installation.schemas import Registry
from tests.support.samples import sample

COUNTS = {"tenant": 2, "key": 3, "adapter": 1, "version": 1, "engine": 1}


def registry(**fields: Any) -> Registry:
    return Registry.read(sample(Registry, known=COUNTS, **fields))


def test_a_sound_registry_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    _people(registry(status="ok"))
    assert "2 tenants, 3 keys" in capsys.readouterr().out


def test_a_lost_one_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]):
    ids = {"missing": {"count": 12, "first": ["acme", "bolt"]}, "added": {"count": 1, "first": ["x"]}}
    _people(
        registry(
            status="regressed",
            reason="Redis is empty.",
            left=dict.fromkeys(COUNTS, 0) | {"tenant": 1},
            differences={"tenant": ids},
        )
    )
    printed = capsys.readouterr()
    assert "tenant, missing in Redis: 12 (acme, bolt …)" in printed.err
    assert "tenant, added in Redis: 1 (x)" in printed.err
    assert "Redis is empty." in printed.err
    assert "florin registry restore" in printed.err
    assert "florin registry accept" in printed.err
