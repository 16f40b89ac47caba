"""florin cost sample: a month to try the finance commands with, written by Florin's own Python."""

from __future__ import annotations

import json
import stat

from gateway.costs.sample_month import month as sample_month


def test_a_month_is_written_for_its_owner_alone(florin, tmp_path, monkeypatch):
    monkeypatch.setattr(
        sample_month, "fill", lambda _: None
    )  # tests/unit/gateway/costs/test_sample_month.py fills it
    place = tmp_path / "of" / "october"
    done = florin("cost", "sample", str(place), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "directory": str(place), "files": [str(place / "ledger.db"), str(place / "bill.csv")],
    }  # fmt: skip
    assert [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "ledger.db")] == [0o700, 0o600]
    again = florin("cost", "sample", str(place))
    assert (again.exit_code, "ledger.db already exists" in again.stderr) == (2, True)


def test_a_place_that_cannot_be_written(florin, tmp_path):
    (tmp_path / "file").write_text("")
    done = florin("cost", "sample", str(tmp_path / "file" / "below"))
    assert (done.exit_code, "Cannot write" in done.stderr) == (2, True)
