"""`python -m loadtests.recovery`, one incident of it: clients, site and report hold together."""

from __future__ import annotations

import json

import pytest

from loadtests.recovery.__main__ import main


@pytest.mark.long  # of the tool: that streams are resumed is tested beside it
@pytest.mark.timeout(300)
def test_an_engine_that_dies_breaks_no_stream(monkeypatch, tmp_path):
    report = tmp_path / "report.json"
    words = ["recovery", "--only", "engine-died", "--runs", "1", "--json", str(report)]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    (row,) = json.loads(report.read_text())
    assert (row["incident"], row["asked"], row["failed"]) == ("engine-died", 8, {})
    assert row["seconds"]["pause_in_the_stream"]["median"] > 0
