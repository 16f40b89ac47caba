"""florin cost set-aside and exclude: what they ask, print, and how they end."""

from __future__ import annotations

import json

import pytest

PATH = "/finance/v1/set-aside"
ONE = {
    "hour": "2026-11-03T14:00:00Z", "engine": "gpu-a", "gpu_type": "H100", "gpu_count": 1,
    "since": "2026-11-03T14:05:00Z", "reason": "record r cannot be: completion_tokens 9\x1b[31m",
}  # fmt: skip
EXCLUDED = {"engine": "gpu-a", "hour": ONE["hour"], "quarantined": 1234, "kept": 0, "set_aside": False}


def test_hours_are_listed_with_their_reason(fake):
    fake.answer("GET", PATH, {"data": [ONE]})
    done = fake.florin("cost", "set-aside")
    assert done.exit_code == 0
    assert "gpu-a" in done.stdout
    assert "cannot be" in " ".join(done.stdout.split())
    assert "\x1b[31m" not in done.stdout
    assert "florin cost exclude" in done.stderr
    assert json.loads(fake.florin("cost", "set-aside", "--json").stdout) == {"data": [ONE]}


def test_none_is_said(fake):
    fake.answer("GET", PATH, {"data": []})
    assert "No engine-hour is set aside." in fake.florin("cost", "set-aside").stderr


@pytest.mark.parametrize("options", [(), ("--everything",)])
def test_records_are_excluded(fake, options):
    fake.answer("POST", f"{PATH}/exclude", EXCLUDED)
    done = fake.florin("cost", "exclude", "gpu-a", ONE["hour"], "--yes", *options)
    assert done.exit_code == 0
    assert done.stdout == "1,234 records quarantined.\n"
    assert "is rolled up again" in done.stderr
    [(_, _, asked)] = fake.asked
    assert asked == {"engine": "gpu-a", "hour": ONE["hour"], "everything": bool(options)}


def test_what_is_left_is_said_and_ends_in_exit_code_1(fake):
    fake.answer("POST", f"{PATH}/exclude", {**EXCLUDED, "kept": 2, "set_aside": True})
    done = fake.florin("cost", "exclude", "gpu-a", ONE["hour"], "--yes")
    assert done.exit_code == 1
    assert "2 records belong to closed months and stay" in done.stderr
    assert "--everything" in done.stderr
